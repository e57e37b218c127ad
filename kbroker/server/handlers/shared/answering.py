"""Sends the response for a handler that answers after it has returned."""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.errors import AnswerTooLarge, ErrorCode
from kbroker.protocol.messages import Message


def answer(request: Request, response: Message, error: int = ErrorCode.NONE) -> None:
    """Send `response`. `error`, one code for the whole answer, is counted in the metrics unless it is NONE.

    A response that is too large closes the connection instead of raising: the caller's work is done and must not fail.
    """
    if error:
        request.count_error(error)
    try:
        request.respond_with(response)
    except AnswerTooLarge as refused:
        request.close(str(refused))
