"""Sends the response for a handler that answers after it has returned."""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.errors import AnswerTooLarge, ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.error_responses import error_response
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


def answer_question(request: Request, asked: Message, response: Message, error: int = ErrorCode.NONE) -> None:
    """Send `response` to a request that changes nothing. If it is too large, the API's error is sent in its place."""
    try:
        if error:
            request.count_error(error)
        request.respond_with(response)
    except AnswerTooLarge as refused:
        told = error_response(ApiKey(request.api_key), request.api_version, asked, refused.code, str(refused))
        assert told is not None, request
        answer(request, told, refused.code)
