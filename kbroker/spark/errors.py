"""What users of Spark are told, in one line that names what is wrong."""

from __future__ import annotations

from kbroker.errors import KbrokerError


class WrongOption(KbrokerError, ValueError):
    """An option that is missing, wrong, or of no use here; the message names it."""
