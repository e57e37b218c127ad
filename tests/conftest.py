"""What holds for every test run: the compiled core is made from the sources beside it, and Ctrl-C works."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.kit import build

settings.register_profile("kbroker", deadline=None)  # a slow machine is no failure
settings.load_profile("kbroker")


def pytest_configure(config: pytest.Config) -> None:
    if not build.is_current():
        raise pytest.UsageError("kbroker/_core has changed since it was compiled: run make build")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell script that starts us in the background has it ignored, and so would all that the tests start.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
