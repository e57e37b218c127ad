"""What holds for every test run: the compiled core is made from the sources beside it, Ctrl-C works, and what hangs is
ended with the stack of every thread."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import engine

from tests.kit import build

settings.register_profile("kbroker", deadline=None)  # a slow machine is no failure
settings.load_profile("kbroker")
# The default is five minutes: a failing example has to be reported before its test times out.
engine.MAX_SHRINKING_SECONDS = 30


SHARED = re.compile(r"tests/(?:client_suite/.*\[(kbroker|kafka-[\d.]+)|(spark)/)")
"""Those of the client suite share a broker: which, is the first of a test's parameters. All about Spark share that."""

UNIT = re.compile(r"tests/unit/[^/]+")
"""A folder of unit tests, or a file that is in none."""

HANGS_S = 60.0
"""A test that is not over so long after its time waits where no signal is heard: not in Python."""

STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # before pytest captures it
    if not build.is_current():
        raise pytest.UsageError("kbroker/_core has changed since it was compiled: run make build")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell script that starts the tests in the background ignores SIGINT; all child processes would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """pytest-timeout fails a test whose time is over; this ends the process, where that is not heard."""
    mark = item.get_closest_marker("timeout")
    given = item.config.getoption("timeout") or item.config.getini("timeout")
    faulthandler.dump_traceback_later(
        float(mark.args[0] if mark else given) + HANGS_S, exit=True, file=item.config.stash[STDERR]
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file share what it has started: one process has them all. Who is through first takes the next file."""
    from xdist.scheduler import LoadFileScheduling

    class ByWhatIsShared(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/simulation/"):
                return nodeid  # each has a world of its own, and takes seconds
            shared = SHARED.match(nodeid)
            return shared[1] or shared[2] if shared else str(super()._split_scope(nodeid))

    return ByWhatIsShared(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In some folders tests wait, in others they compute: they take turns, and side by side keep all cores busy.

    Files of a folder keep their order, and are spread over the run. What is not a unit test lasts longer, and is
    through after three quarters. Spark, whose files follow each other in one process, begins.
    """
    files: dict[str, dict[str, int]] = {}
    for item in items:
        folder, file = place_of(item)
        known = files.setdefault(folder, {})
        known.setdefault(file, len(known))

    def turn(item: pytest.Item) -> float:
        folder, file = place_of(item)
        share = (files[folder][file] + 0.5) / len(files[folder])
        return {"tests/spark": 0.0, "tests": 0.75 * share}.get(folder, share)

    items.sort(key=turn)


def place_of(item: pytest.Item) -> tuple[str, str]:
    """The file of a test, behind its folder below tests/unit; all others but those of Spark count as one folder."""
    file = item.nodeid.partition("::")[0]
    unit = UNIT.match(file)
    return (unit[0] if unit else "tests/spark" if file.startswith("tests/spark/") else "tests"), file


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
