from collections.abc import Mapping
from typing import Any

from kbroker._core.wire.columns import Columns

def arrow_batch(columns: Columns) -> Any: ...
def numpy_arrays(columns: Columns, dtypes: Mapping[str, Any] | None = None) -> dict[str, Any]: ...
