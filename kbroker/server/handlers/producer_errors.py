"""What a fenced producer is told, by the age of its request (KIP-588)."""

from __future__ import annotations

from kbroker.errors import ErrorCode


def for_version(error: ErrorCode, version: int, fenced_from: int) -> ErrorCode:
    """`error` as versions before `fenced_from` know it: they take an old epoch for what it is called in Produce."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
