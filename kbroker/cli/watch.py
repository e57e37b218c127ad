"""Looks at a cluster: one, or one after the other until the user presses Ctrl-C (`--watch`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from kbroker.client.errors import ClientError

T = TypeVar("T")
EVERY_S = 2.0
"""The pause between two looks."""


def looks(look: Callable[[], T], *, again: bool) -> Iterator[T]:
    """Yield what `look` returns; with `again` for ever, every EVERY_S seconds.

    A look of many may fail: stderr has a line that says why, and the next follows. Raises ClientError if a single look
    fails, or the first of many with an error that no retry can help.
    """
    is_first = True
    while True:
        try:
            found = look()
        except ClientError as error:
            if not again or (is_first and not error.retriable):
                raise
            print(f"kbroker: {error}", file=sys.stderr, flush=True)
        else:
            yield found
            if not again:
                return
        is_first = False
        time.sleep(EVERY_S)
