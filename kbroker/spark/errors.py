"""Errors for users of Spark. The message is one line that names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from kbroker.errors import KbrokerError

P = ParamSpec("P")
R = TypeVar("R")


def without_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap `function` so that our errors, whose message says all, come without a traceback.

    Spark shows users each line of it, and there are fifty inside the client.
    """

    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*arguments, **keywords)
        except KbrokerError as error:
            raise error.with_traceback(None) from None

    return call


class WrongOption(KbrokerError, ValueError):
    """An option is missing, wrong, or of no use here; the message names it."""


class CannotWrite(KbrokerError, ValueError):
    """The DataFrame, or the way it is written, does not fit a topic."""


class NotDelivered(KbrokerError):
    """Rows did not reach their topic; the message says which one, and why."""


class SinkFailed(KbrokerError):
    """An exactly-once stream cannot go on; the message says what to do."""


class DataLoss(KbrokerError):
    """Records that were to be read are gone."""

    def __init__(self, what: str, remedy: str = "set failOnDataLoss=false to go on with what is there"):
        super().__init__(f"{what}; {remedy}")
