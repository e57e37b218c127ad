"""A line of the log for what a request has changed of topics and settings, with who asked for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker._core.server.request import Request
from kbroker.rules.topic_names import listed

log = logging.getLogger(__name__)

MOST_NAMES = 100
"""Topics or settings that one line names."""
LONGEST_TEXT = 200
"""Characters of a text from outside that one line quotes."""


def tell_change(request: Request, what: str, each: Sequence[str]) -> None:
    """`each` was done, if anything was."""
    if each:
        log.info("%s %s; asked for by %s", what, listed(each, MOST_NAMES), _asker(request))


def quoted(text: str | None) -> str:
    """A text from outside on one line, and not all of a long one."""
    if text is not None and len(text) > LONGEST_TEXT:
        text = text[: LONGEST_TEXT - 3] + "..."
    return repr(text)


def _asker(request: Request) -> str:
    connection = request.connection
    return f"{connection.peer}, client id {quoted(request.client_id)}, {connection.principal}"
