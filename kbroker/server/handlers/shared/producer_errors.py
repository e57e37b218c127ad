"""The error code for a fenced producer, by the version of its request (KIP-588)."""

from __future__ import annotations

from kbroker.errors import ErrorCode


def for_version(error: ErrorCode, version: int, fenced_from: int) -> ErrorCode:
    """Return `error`, with INVALID_PRODUCER_EPOCH in place of PRODUCER_FENCED for versions before `fenced_from`."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
