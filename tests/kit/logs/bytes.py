"""The bytes of a whole log."""

from __future__ import annotations

from pathlib import Path

from kbroker.storage import file_names
from kbroker.storage.log import Log


def bytes_of(log: Log) -> bytes:
    """Return what the segments of an open log hold, without what is allocated behind them."""
    return b"".join(
        Path(log.path_of(at.base_offset, file_names.LOG)).read_bytes()[: at.size] for at in log.state.segments()
    )
