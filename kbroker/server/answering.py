"""How an API's response leaves, whoever gives it: the dispatcher, or a handler whose answer came later."""

from __future__ import annotations

from kbroker._core.request import Request
from kbroker.errors import ErrorCode
from kbroker.protocol.messages import Message


def answer(request: Request, response: Message, error: int = ErrorCode.NONE) -> None:
    """Sends `response`. `error`, if there is one, is counted: one code of the whole answer, for the metrics."""
    if error:
        request.count_error(error)
    request.respond(response.encode(request.api_version))
