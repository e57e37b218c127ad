"""`kbroker load --every`: when loads begin, and what ends them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from kbroker.cli.load import _interval, _print_load, configure
from kbroker.cli.load_every import FOR_GOOD, run_every
from kbroker.errors import KbrokerError
from kbroker.spark.loader.errors import LakeTaken, LoadFailed
from kbroker.spark.loader.summary import Summary, TopicSummary


class Day:
    """A clock, and loads of so many seconds; an exception in place of a number is raised. Then comes Ctrl-C."""

    def __init__(self, *loads: float | BaseException):
        self.at = 1000.0
        self.began: list[float] = []
        self.told: list[Summary] = []
        self._loads = list(loads)

    def load(self) -> Summary:
        self.began.append(self.at - 1000)
        if not self._loads:
            raise KeyboardInterrupt
        what = self._loads.pop(0)
        if isinstance(what, BaseException):
            raise what
        self.at += what
        return Summary(commits=[len(self.began)])

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.at += seconds

    def run(self, tell: Callable[[Summary], None] | None = None) -> int:
        return run_every(self.load, tell or self.told.append, 60, now=lambda: self.at, sleep=self.sleep)


def test_loads_begin_so_long_after_each_other_and_at_once_behind_one_that_took_longer() -> None:
    day = Day(5, 59.5, 150, 60, 0)
    assert day.run() == 0
    assert day.began == [0, 60, 120, 270, 330, 390]
    assert [each.commits for each in day.told] == [[1], [2], [3], [4], [5]]


def test_ctrl_c_ends_it_between_loads_too() -> None:
    day = Day(5)

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    assert run_every(day.load, day.told.append, 60, now=lambda: day.at, sleep=sleep) == 0
    assert len(day.told) == 1


@pytest.mark.parametrize("error", [LoadFailed("gone"), LakeTaken("gone"), KbrokerError("gone"), OSError(5, "gone")])
def test_the_next_load_tries_again(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    day = Day(5, error, error, 5)
    assert day.run() == 0
    assert day.began == [0, 60, 120, 180, 240]
    assert [each.commits for each in day.told] == [[1], [4]]
    assert capsys.readouterr().err == f"kbroker: {error}; the next load tries again\n" * 2
    with pytest.raises(type(error)):
        Day(error, 5).run()


@pytest.mark.parametrize("kind", FOR_GOOD)
def test_what_is_not_better_the_next_time_ends_it(kind: type[KbrokerError]) -> None:
    error = kind("that is it")
    with pytest.raises(kind):
        Day(5, error, 5).run()


def test_who_no_longer_listens_ends_it() -> None:
    def tell(summary: Summary) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Day(5, 5).run(tell)


def test_a_load_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    done = Summary(commits=[3, 4], topics=[TopicSummary("views", rows=2000)], lost=["offsets 0 to 3"], seconds=2)
    parser = argparse.ArgumentParser()
    configure(parser)
    given = ["views", "--to", "lake", "--every", "60"]

    def said(summary: Summary, *more: str) -> list[str]:
        _print_load(parser.parse_args([*given, *more]), summary)
        return [line[9:] for line in capsys.readouterr().out.splitlines()]

    line = "commit 3, 4: 2,000 rows in 2.0 s, 1,000 rows/s"
    assert said(done) == [line]
    assert said(Summary()) == said(done, "--quiet") == []
    done.was_cut_off = True
    assert said(done) == ["the load before was cut off; its files have their names now", line]
    assert said(done, "--json", "--quiet")[0].endswith('"was_cut_off": true}')


def test_there_has_to_be_a_time_between() -> None:
    assert (_interval("60"), _interval("500ms"), _interval("1h")) == (60_000, 500, 3_600_000)
    with pytest.raises(Exception, match="is no time between loads"):
        _interval("0")
