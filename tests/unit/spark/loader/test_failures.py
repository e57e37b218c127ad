"""Loads that cannot be: what they say, that nothing of them is seen, and that the next one goes on."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from kbroker.client import ClientError, Producer, UnreadableRecords
from kbroker.spark.loader.errors import LakeDamaged, LoadFailed
from kbroker.spark.loader.run import Loader
from kbroker.spark.loader.settings import Settings
from kbroker.spark.loader.summary import Summary
from kbroker.testing import Broker
from tests.kit.spark.load import InProcess, create, fill, load, on_broker, settings_of, visible


def load_with_little_disk(settings: Settings, limit: int, said: Path) -> None:
    """No file may be larger than that: as on a disk that is full, writing fails in the middle."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        Loader(settings, InProcess()).run()
    except LoadFailed as error:
        said.write_text(str(error)[:limit])


@pytest.mark.parametrize("limit", [100, 2000])
def test_a_full_disk(broker: Broker, topic: str, tmp_path: Path, limit: int) -> None:
    topic = "".join(c for c in topic if c.isalnum())
    servers, lake, said = broker.bootstrap_servers, tmp_path / "lake", tmp_path / "said"
    create(servers, topic, 1)
    load(lake, servers, topic)
    for start in range(0, 4000, 1000):
        fill(servers, topic, 1, 1000, start=start, step_ms=1)
    process = multiprocessing.get_context("forkserver").Process(
        target=load_with_little_disk, args=(settings_of(lake, servers, topic), limit, said)
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert said.read_text().startswith(f"{lake}: "[:limit])
    assert limit < 200 or "large" in said.read_text()
    assert visible(lake) == {}
    assert list((lake / "_kbload").glob("staging/*")) == []
    assert load(lake, servers, topic).rows == 4000
    assert visible(lake) == on_broker(servers, topic)


def test_a_broker_that_goes_while_tasks_read(topic: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with Broker() as broker:
        servers = broker.bootstrap_servers
        create(servers, topic, 1)
        fill(servers, topic, 1, 1000)

        class Killing(InProcess):
            def run(self, *arguments):  # type: ignore[no-untyped-def]
                broker.kill()
                return super().run(*arguments)

        quick = {"request.timeout.ms": 2000, "default.api.timeout.ms": 2000}
        with pytest.raises(ClientError):
            Loader(settings_of(lake, servers, topic, client=quick, poll_timeout_s=0.3), Killing()).run()
        assert visible(lake) == {}
        with pytest.raises(ClientError):
            load(lake, servers, topic, client={"request.timeout.ms": 500, "default.api.timeout.ms": 500})
        broker.start()
        assert load(lake, servers, topic).rows == 1000
        assert visible(lake) == on_broker(servers, topic)


def test_damaged_records_are_named(topic: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with Broker(directory=tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        create(servers, topic, 1)
        with Producer(bootstrap_servers=servers) as producer:
            for number in range(3):
                producer.send(topic, b"value %d" % number, partition=0).result(30)
        broker.stop()
        (segment,) = (tmp_path / "data" / f"{topic}-0").glob("*.log")
        segment.write_bytes(segment.read_bytes().replace(b"value 1", b"valuE 1"))
        broker.start()
        with pytest.raises(UnreadableRecords, match=rf"{topic}-0.* 1\b"):
            load(lake, servers, topic)
        assert visible(lake) == {}


def test_a_damaged_commit_is_named(broker: Broker, topic: str, tmp_path: Path) -> None:
    servers, lake = broker.bootstrap_servers, tmp_path / "lake"
    create(servers, topic, 1)
    fill(servers, topic, 1, 10)
    load(lake, servers, topic)
    (path,) = (lake / "_kbload/commits").iterdir()
    path.write_text(path.read_text()[:-20])
    with pytest.raises(LakeDamaged, match=r"commits/0000000001\.json is no commit"):
        load(lake, servers, topic)


def test_a_lost_attempt_that_writes_after_all_is_done(broker: Broker, topic: str, tmp_path: Path) -> None:
    servers, lake = broker.bootstrap_servers, tmp_path / "lake"
    create(servers, topic, 1)
    fill(servers, topic, 1, 10)
    lost: list[tuple[Callable[[Any], Any], Any]] = []

    class Losing(InProcess):
        def run(self, function: Any, items: Any, *more: Any) -> list[Any]:
            lost.extend((function, item) for item in items)
            return super().run(function, items, *more)

    Loader(settings_of(lake, servers, topic), Losing()).run()
    for function, item in lost:
        function(item)
    assert list((lake / "_kbload/staging").rglob("000000"))
    before = {path: path.stat().st_mtime_ns for path in lake.glob("topic=*/**/*")}
    assert load(lake, servers, topic) == Summary(seconds=ANY)
    assert {path: path.stat().st_mtime_ns for path in lake.glob("topic=*/**/*")} == before
    assert list((lake / "_kbload/staging").iterdir()) == []
