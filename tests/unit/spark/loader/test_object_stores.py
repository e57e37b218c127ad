"""Lakes where nothing is renamed or created on a condition: the commit is a record of a topic."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from pyarrow.fs import PyFileSystem

from kbroker.client import AdminClient, Consumer, Producer, TimedOut
from kbroker.client.prepared_transaction import PreparedTransaction
from kbroker.spark.loader.commits import commit_files
from kbroker.spark.loader.commits.commit_files import all_commits, commit_path, files_now, read_commit
from kbroker.spark.loader.commits.topic_commits import TopicCommits
from kbroker.spark.loader.errors import LakeDamaged, LakeTaken
from kbroker.spark.loader.lake import identity
from kbroker.spark.loader.lake.storage import ObjectStore, storage_of
from kbroker.spark.loader.run import Loader
from kbroker.spark.loader.settings import Settings
from kbroker.testing import Broker
from tests.kit.spark.load import (
    BEGIN_MS,
    HOUR_MS,
    InProcess,
    create,
    fill,
    folding_campaign,
    kill_before,
    killed_at,
    load,
    on_broker,
    settings_of,
    visible_in,
)
from tests.kit.spark.object_stores import NothingIsRenamed, below, nothing_is_renamed, s3_bucket


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as uri:
        yield uri


@pytest.fixture(params=["s3", "files"])
def place(request: pytest.FixtureRequest, bucket: str, topic: str, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Where the lake is, and settings for that."""
    if request.param == "s3":
        return below(bucket, topic), {}
    return str(tmp_path / "lake"), {"filesystem": nothing_is_renamed()}


def test_loads_add_what_is_new(broker: Broker, topic: str, place: tuple[str, dict[str, Any]]) -> None:
    servers, (lake, more) = broker.bootstrap_servers, place
    create(servers, topic, 2)
    fill(servers, topic, 2, 100)
    settings = settings_of(lake, servers, topic, **more)
    assert isinstance(storage_of(settings), ObjectStore)
    assert load(lake, servers, topic, **more).commits == [1]
    assert load(lake, servers, topic, **more).commits == []
    fill(servers, topic, 2, 50, start=100)
    assert load(lake, servers, topic, **more).commits == [2]
    assert visible_in(settings) == on_broker(servers, topic)
    assert [commit.number for commit in all_commits(storage_of(settings))] == [1, 2]
    assert load(lake, servers, topic, reload_since_ms=0, **more).rows == 300
    assert visible_in(settings) == on_broker(servers, topic)
    storage = storage_of(settings)
    assert sorted(path for path, _ in storage.files("") if path.endswith(".parquet")) == sorted(files_now(storage))


def test_a_pattern_leaves_out_what_loads_write(broker: Broker, topic: str, place: tuple[str, dict[str, Any]]) -> None:
    """Each load would find what the one before it has written."""
    servers, (lake, more) = broker.bootstrap_servers, place
    create(servers, topic, 2)
    fill(servers, topic, 2, 10)
    more |= {"pattern": re.compile(f"{topic}.*|kbroker-load-.*"), "audit_topic": f"{topic}-audit"}
    assert load(lake, servers, **more).rows == 20
    assert load(lake, servers, **more).commits == []


def test_who_comes_later_takes_over(broker: Broker, topic: str, place: tuple[str, dict[str, Any]]) -> None:
    servers, (lake, more) = broker.bootstrap_servers, place
    create(servers, topic, 2)
    fill(servers, topic, 2, 10)

    class Overtaken(InProcess):
        def run(self, *arguments):  # type: ignore[no-untyped-def]
            fill(servers, topic, 2, 10, start=10)
            assert load(lake, servers, topic, **more).rows == 40
            return super().run(*arguments)

    settings = settings_of(lake, servers, topic, **more)
    with pytest.raises(LakeTaken, match="another loader has taken over"):
        Loader(settings, Overtaken()).run()
    assert visible_in(settings) == on_broker(servers, topic)
    assert load(lake, servers, topic, **more).commits == []


def test_a_lost_log_of_commits_is_noticed(broker: Broker, topic: str, place: tuple[str, dict[str, Any]]) -> None:
    servers, (lake, more) = broker.bootstrap_servers, place
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.create_topic(topic, 1)
        fill(servers, topic, 1, 10)
        before = set(admin.list_topics())
        load(lake, servers, topic, **more)
        (log,) = set(admin.list_topics()) - before
        admin.delete_topics([log])
        with pytest.raises(LakeDamaged, match="has lost them"):
            load(lake, servers, topic, **more)


def test_a_log_of_commits_that_lost_the_last_ones_is_noticed(
    broker: Broker, topic: str, place: tuple[str, dict[str, Any]]
) -> None:
    """Brokers that lose what they have acknowledged: rows of the commit that is gone would be loaded again."""
    servers, (lake, more) = broker.bootstrap_servers, place
    create(servers, topic, 1)
    fill(servers, topic, 1, 10)
    load(lake, servers, topic, **more)
    settings = settings_of(lake, servers, topic, **more)
    storage = storage_of(settings)
    storage.write(commit_path(2), replace(read_commit(storage, 1), number=2).encode())
    fill(servers, topic, 1, 10, start=10)
    with pytest.raises(LakeDamaged, match="has lost commits after 1"):
        load(lake, servers, topic, **more)


def test_who_only_looks_is_not_disturbed_by_a_first_commit(
    broker: Broker, topic: str, place: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit comes between two looks, at the topic and at the files."""
    servers, (lake, more) = broker.bootstrap_servers, place
    create(servers, topic, 1)
    fill(servers, topic, 1, 10)
    settings = settings_of(lake, servers, topic, **more)
    identity.make(storage_of(settings), settings, None)
    look = Consumer.end_offsets

    def then_load(*arguments: Any) -> Any:
        monkeypatch.setattr(Consumer, "end_offsets", look)
        found = look(*arguments)
        load(lake, servers, topic, **more)
        return found

    TopicCommits(storage_of(settings), settings).close()
    monkeypatch.setattr(Consumer, "end_offsets", then_load)
    assert Loader(settings, InProcess()).preview() is not None
    assert load(lake, servers, topic, **more).commits == []


def test_a_commit_whose_answer_is_lost_and_that_comes_late_has_its_files(
    broker: Broker, topic: str, place: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows of it when the load gives up; its files were removed then, and the lake was damaged for good."""
    servers, (lake, more) = broker.bootstrap_servers, place
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.create_topic(topic, 1)
        fill(servers, topic, 1, 10)
        on_its_way: list[PreparedTransaction] = []

        def lost(producer: Producer) -> None:
            if not on_its_way:
                on_its_way.append(producer.prepare_transaction())
            raise TimedOut("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(Producer, "commit_transaction", lost)
            patch.setattr(Producer, "abort_transaction", lost)
            with pytest.raises(TimedOut):
                load(lake, servers, topic, **more)
        admin.end_transactions(on_its_way, commit=True)
    load(lake, servers, topic, **more)
    assert visible_in(settings_of(lake, servers, topic, **more)) == on_broker(servers, topic)


def test_two_loaders_may_give_the_same_files_their_names(broker: Broker, topic: str, tmp_path: Path) -> None:
    """The second one begins while the first one is at it; what had just got its name was said to be gone."""
    servers, lake = broker.bootstrap_servers, str(tmp_path / "lake")
    create(servers, topic, 2)
    fill(servers, topic, 2, 100)

    others = []

    class Overtaken(NothingIsRenamed):
        def copy_file(self, source: str, target: str) -> None:
            if not others:
                others.append(load(lake, servers, topic, filesystem=nothing_is_renamed()))
            super().copy_file(source, target)

    assert load(lake, servers, topic, filesystem=PyFileSystem(Overtaken())).rows == 200
    assert [(other.was_cut_off, other.rows) for other in others] == [(True, 0)]
    settings = settings_of(lake, servers, topic, filesystem=nothing_is_renamed())
    assert visible_in(settings) == on_broker(servers, topic)


def campaign(servers: str, topic: str, folder: Path, every: int) -> int:
    """Kill first loads before each `every`th call of the store; returns how many there are."""
    create(servers, topic, 2)
    fill(servers, topic, 2, 100)
    all_of_it = on_broker(servers, topic)
    step = 1
    while True:
        settings = settings_of(folder / str(step), servers, topic, filesystem=nothing_is_renamed())
        was_killed = killed_at(step, settings, load_and_die)
        assert visible_in(settings).items() <= all_of_it.items()
        load(settings.lake, servers, topic, filesystem=settings.filesystem)
        assert visible_in(settings) == all_of_it, f"step {step}"
        if not was_killed:
            return step
        step += every


def load_and_die(step: int, settings: Settings) -> None:
    of_store = ("open_output_stream", "copy_file", "delete_file", "delete_dir", "delete_dir_contents")
    of_log = ("init_transactions", "begin_transaction", "send", "commit_transaction")
    kill_before(step, [(NothingIsRenamed, name) for name in of_store] + [(Producer, name) for name in of_log])
    Loader(settings, InProcess()).run()


def test_a_load_into_a_store_that_is_killed_goes_on(broker: Broker, topic: str, tmp_path: Path) -> None:
    assert campaign(broker.bootstrap_servers, topic, tmp_path, 5) > 10


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_load_into_a_store_that_is_killed_anywhere_goes_on(broker: Broker, topic: str, tmp_path: Path) -> None:
    assert campaign(broker.bootstrap_servers, topic, tmp_path, 1) > 10


def fold_and_die(step: int, settings: Settings) -> None:
    commit_files.BUNDLE = 2
    load_and_die(step, settings)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_a_load_into_a_store_that_is_killed_while_it_folds_goes_on(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    lake, servers = str(tmp_path / "lake"), broker.bootstrap_servers
    settings = settings_of(lake, servers, topic, filesystem=nothing_is_renamed())
    assert folding_campaign(settings, fold_and_die, lambda: visible_in(settings), every, monkeypatch) > 10
    storage = storage_of(settings)
    assert sorted(path for path, _ in storage.files("") if path.endswith(".parquet")) == sorted(files_now(storage))


MEMORY_OF_A_LOAD = """
import sys
from pathlib import Path
from tests.kit.spark.load import load

print(load(*sys.argv[1:]).rows)
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")))
"""

HOURS = 48


@pytest.mark.slow
def test_a_tasks_memory_is_bounded_where_parts_of_uploads_wait_in_it(broker: Broker, topic: str, bucket: str) -> None:
    """Records of many hours by turns, all of whose files are open; the store is slower than the load."""
    servers, size, count = broker.bootstrap_servers, 1 << 10, 240_000
    create(servers, topic, 1)
    values = numpy.random.default_rng(1).integers(0, 256, (count // HOURS, size), dtype=numpy.uint8)
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(HOURS):
            at = BEGIN_MS + (numpy.arange(len(values)) // 100 + number) % HOURS * HOUR_MS
            producer.send_many(topic, values, partitions=0, timestamps=at).result(60)
    lake = below(bucket, topic)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_OF_A_LOAD, lake, servers, topic],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    rows, most_kb = map(int, done.stdout.split())
    assert rows == count
    assert most_kb < 300 << 10
