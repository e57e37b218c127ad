"""Fetch, key 1, versions 0 to 17, is served by `_core/server/fetch/fetch.pyx`, which says what each version added.

A request comes here if a log or a segment has to be opened first. This thread opens it and hands the request back to
its processor.
Leaves out: what the compiled core leaves out.
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: None) -> None:
    request.run_blocking()
