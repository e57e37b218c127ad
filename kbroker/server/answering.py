"""How an API's response leaves, when a handler's answer comes later than it returns."""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.errors import AnswerTooLarge, ErrorCode
from kbroker.protocol.messages import Message


def answer(request: Request, response: Message, error: int = ErrorCode.NONE) -> None:
    """Sends `response`. `error`, if there is one, is counted: one code of the whole answer, for the metrics.

    A response that is too large closes the connection: whoever calls this has done his work, and is not to fail.
    """
    if error:
        request.count_error(error)
    try:
        request.respond_with(response)
    except AnswerTooLarge as refused:
        request.close(str(refused))
