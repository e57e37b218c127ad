"""Kafka topics in PySpark: `format("kbroker")`, a session that is set up for it, and the loader. No jar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.spark.session import session

if TYPE_CHECKING:
    from kbroker.spark.loader.load import load as load

__all__ = ["load", "session"]


def __getattr__(name: str) -> Any:
    """Spark imports this package to look for the format; the loader only where it is asked for."""
    if name == "load":
        from kbroker.spark.loader.load import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
