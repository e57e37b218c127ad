"""Fetch (key 1), versions 4 to 17, is served by `_core/server/fetch/fetch.pyx`, which tells what each version brought.

What comes here has to open a log or a segment first: done on this thread, then the request goes back to its processor.
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.server.services import Services


def handle(services: Services, request: Request, message: None) -> None:
    request.run_blocking()
