"""`kbroker load --every` with real brokers: rounds, an outage between them, and its end in the middle of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kbroker.cli.load_every import run_every
from kbroker.cli.main import main
from kbroker.spark.loader import run
from kbroker.spark.loader.run import Loader
from kbroker.testing import Broker
from tests.kit.spark.load import InProcess, create, fill, load, on_broker, settings_of, visible
from tests.kit.spark.load_in_spark import await_file, once_told


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def filled(broker: Broker, topic: str) -> str:
    create(broker.bootstrap_servers, topic, 2)
    fill(broker.bootstrap_servers, topic, 2, 100)
    return topic


def beside(work: Callable[[], None], number: int) -> threading.Thread:
    """Does that while the main thread loads, and then sends this process a signal, whatever happens."""

    def run() -> None:
        try:
            work()
        finally:
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_two_loads_and_ctrl_c_in_the_third(
    spark: SparkSession,
    broker: Broker,
    filled: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lake, servers = tmp_path / "lake", broker.bootstrap_servers
    commits = lake / "_kbload/commits"
    committed = []

    def work() -> None:
        await_file(commits / "0000000001.json", 60)
        fill(servers, filled, 2, 10, start=100)
        await_file(commits / "0000000002.json", 60)
        committed.append(on_broker(servers, filled))
        monkeypatch.setattr(run, "run_unit", once_told)
        fill(servers, filled, 2, 10, start=110)
        await_file(tmp_path / "lake-waits", 60)

    other = beside(work, signal.SIGINT)
    assert main(["load", filled, "--to", str(lake), "-b", servers, "--every", "100ms"]) == 0
    other.join()
    lines = [line[9:].split(" in ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["commit 1: 200 rows", "commit 2: 20 rows"]
    assert [visible(lake)] == committed
    assert list((lake / "_kbload/staging").iterdir()) == []
    monkeypatch.undo()
    again = load(lake, servers, filled)
    assert (again.commits, again.rows, again.was_cut_off) == ([3], 20, False)
    assert visible(lake) == on_broker(servers, filled)


def test_ctrl_c_while_files_get_their_names(
    broker: Broker, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, servers = tmp_path / "lake", broker.bootstrap_servers
    publish = run.publish
    calls: list[int] = []

    def interrupted(*arguments: object) -> None:
        calls.append(1)
        publish(*arguments, between=stop if len(calls) == 1 else lambda: None)  # type: ignore[arg-type]

    def stop() -> None:
        if list(lake.glob("**/*.parquet")):
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "publish", interrupted)
    loader = Loader(settings_of(lake, servers, filled), InProcess())
    assert run_every(loader.run, lambda summary: None, 60) == 0
    assert len(calls) == 2
    assert visible(lake) == on_broker(servers, filled)
    assert not load(lake, servers, filled).was_cut_off


def test_brokers_that_go_and_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    with Broker() as broker:
        servers = broker.bootstrap_servers
        fill(servers, "views", 1, 10)

        def between(seconds: float) -> None:
            rounds.append(len(told))
            if len(rounds) == 1:
                broker.kill()
            elif len(rounds) == 2:
                broker.start()
                fill(servers, "views", 1, 10, start=10)
            else:
                raise KeyboardInterrupt

        rounds: list[int] = []
        told: list[int] = []
        quick = {"request.timeout.ms": 1000, "default.api.timeout.ms": 1000}
        loader = Loader(settings_of(lake, servers, "views", client=quick), InProcess())
        assert run_every(loader.run, lambda summary: told.append(summary.rows), 60, sleep=between) == 0
        assert (rounds, told) == ([1, 1, 2], [10, 10])
        (said,) = capsys.readouterr().err.splitlines()
        assert servers in said and said.endswith("; the next load tries again")
        assert visible(lake) == on_broker(servers, "views")


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_told_to_end(broker: Broker, filled: str, tmp_path: Path, number: int) -> None:
    lake, servers = tmp_path / "lake", broker.bootstrap_servers
    command = [sys.executable, "-m", "kbroker.cli.main", "load", filled, "--to", str(lake), "-b", servers]
    command += ["--every", "60", "--master", "local[2]", "--conf", "spark.driver.memory=512m"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert "commit 1: 200 rows" in child.stdout.readline()
        child.send_signal(number)
        out, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    assert (child.returncode, out) == (0, "")
    assert "kbroker/cli" not in errors, errors  # no traceback but of a pipe, of which PySpark's daemon may have one
    assert visible(lake) == on_broker(servers, filled)
