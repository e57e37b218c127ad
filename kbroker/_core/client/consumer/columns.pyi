from collections.abc import Mapping
from typing import Any

from kbroker._core.wire.columns import Columns

def arrow_batch(columns: Columns) -> Any:
    """Return a pyarrow.RecordBatch over the memory of `columns`; see `Records.arrow`.

    Raises ImportError without pyarrow.
    """

def numpy_arrays(columns: Columns, dtypes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return read-only NumPy arrays over the memory of `columns`; see `Records.numpy`.

    Raises ValueError for a dtype of anything but key and value, or when one has not the size of its dtype.
    """
