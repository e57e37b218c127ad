"""Logs what a request has changed in topics, records or configs, and which client asked for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker._core.server.request import Request
from kbroker.rules.topic_names import listed

log = logging.getLogger(__name__)

MOST_NAMES = 100
"""How many topics or configs one line names."""
LONGEST_TEXT = 200
"""How many characters of a client's text one line quotes."""


def log_change(request: Request, what: str, each: Sequence[str]) -> None:
    """Log the changes in `each`; does nothing if there are none."""
    if each:
        log.info("%s %s; asked for by %s", what, listed(each, MOST_NAMES), _asker(request))


def quoted(text: str | None) -> str:
    """A client's text, quoted on one line and cut after LONGEST_TEXT characters."""
    if text is not None and len(text) > LONGEST_TEXT:
        text = text[: LONGEST_TEXT - 3] + "..."
    return repr(text)


def _asker(request: Request) -> str:
    connection = request.connection
    return f"{connection.peer}, client id {quoted(request.client_id)}, {connection.principal}"
