"""What users of Spark are told, in one line that names what is wrong."""

from __future__ import annotations

from kbroker.errors import KbrokerError


class WrongOption(KbrokerError, ValueError):
    """An option that is missing, wrong, or of no use here; the message names it."""


class CannotWrite(KbrokerError, ValueError):
    """The DataFrame, or how it is written, does not fit a topic."""


class NotDelivered(KbrokerError):
    """Rows did not reach their topic; the message says which one, and why."""


class SinkFailed(KbrokerError):
    """An exactly-once stream cannot go on; the message says what to do."""


class DataLoss(KbrokerError):
    """Records that were to be read are gone."""

    def __init__(self, what: str, remedy: str = "set failOnDataLoss=false to go on with what is there"):
        super().__init__(f"{what}; {remedy}")
