"""Looks at a cluster, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest

from kbroker.cli.watch import looks
from kbroker.client.errors import BrokerError, ClientError, TimedOut
from kbroker.errors import ErrorCode

PASSING = TimedOut("30 s are over")
LASTING = BrokerError("too old", code=ErrorCode.UNSUPPORTED_VERSION)


def looking(*answers: int | ClientError) -> Callable[[], int]:
    left = list(answers)

    def look() -> int:
        answer = left.pop(0)
        if isinstance(answer, ClientError):
            raise answer
        return answer

    return look


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.cli.watch.EVERY_S", 0)


def test_a_single_look_is_one_and_raises_its_error() -> None:
    assert list(looks(looking(1, 2), again=False)) == [1]
    with pytest.raises(TimedOut):
        list(looks(looking(PASSING, 2), again=False))


def test_a_watch_tells_what_failed_and_looks_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(islice(looks(looking(PASSING, 1, LASTING, 2), again=True), 2)) == [1, 2]
    told = capsys.readouterr().err.splitlines()
    assert told == [f"kbroker: {PASSING}", f"kbroker: {LASTING}"]


def test_a_watch_that_cannot_begin_ends() -> None:
    with pytest.raises(BrokerError):
        next(looks(looking(LASTING, 1), again=True))
