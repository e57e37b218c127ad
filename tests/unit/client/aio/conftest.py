"""Event loops that the asyncio clients are used in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

SECONDS = 30.0
T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    if request.param == "asyncio":
        return asyncio.new_event_loop
    return pytest.importorskip("uvloop").new_event_loop  # type: ignore[no-any-return]


@pytest.fixture
def run(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> Run[Any]:
    """Runs a coroutine in a loop of its own, in any thread; TimeoutError when it takes too long."""

    def run_bounded(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(asyncio.wait_for(coroutine, SECONDS))

    return run_bounded
