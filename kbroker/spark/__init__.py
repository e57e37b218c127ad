"""Kafka topics in PySpark: `format("kbroker")`, a session that is set up for it, and the loader. No jar.

The files at this level are what users call: `source.py` (read it first) is the format, `session.py`, `frames.py`,
`compacted.py` and `lakes.py` have the functions. The folders do the work, and import none of these files; they share
`errors.py` and `schema.py`. Brokers are reached with `kbroker.client` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kbroker.spark.session import session

if TYPE_CHECKING:
    from kbroker.spark.compacted import latest as latest
    from kbroker.spark.frames import read as read
    from kbroker.spark.frames import stream as stream
    from kbroker.spark.lakes import load as load

__all__ = ["latest", "load", "read", "session", "stream"]

_MODULES = {"latest": "compacted", "load": "lakes", "read": "frames", "stream": "frames"}


def __getattr__(name: str) -> Any:
    """Import `name` on first use: Spark imports this package only to find the format, and needs nothing else of it."""
    if name in _MODULES:
        return getattr(import_module(f"kbroker.spark.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
