"""Loading a lake in tests: without Spark where that makes no difference, and killed at any call of the file system."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet as parquet
from pytest import MonkeyPatch

from kbroker.client import AdminClient, Consumer, Producer, TopicPartition
from kbroker.spark.loader import run
from kbroker.spark.loader.commits import commit_files
from kbroker.spark.loader.lake.storage import PREPARED, storage_of
from kbroker.spark.loader.run import Loader
from kbroker.spark.loader.settings import Settings
from kbroker.spark.loader.summary import Summary
from tests.kit.parts.processors import wait_until

STEPS = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")
"""The calls with which a load changes a file system, except writes to files that nobody looks at yet."""

BEGIN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000

T = TypeVar("T")
R = TypeVar("R")
Rows = dict[tuple[str, int, int], tuple[bytes | None, bytes | None, int]]
"""Key, value and timestamp by topic, partition and offset."""


class InProcess:
    """Runs tasks one after the other, in this process."""

    slots = 2

    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        weigh: Callable[[R], tuple[int, int]],
        progressed: Callable[[int, int], None],
    ) -> list[R]:
        return [function(item) for item in items]


class Meanwhile(InProcess):
    """Calls one of `things` before each job of a verification, and the last one after all jobs."""

    def __init__(self, *things: Callable[[], object]):
        self.things = list(things)

    def run(self, *arguments: Any) -> list[Any]:
        if self.things:
            self.things.pop(0)()
        found = super().run(*arguments)
        if len(self.things) == 1:
            self.things.pop(0)()
        return found


def settings_of(lake: Path | str, servers: str, *topics: str, **more: Any) -> Settings:
    options = {"bootstrap.servers": servers, **more.pop("client", {})}
    return Settings(lake=str(lake), client=options, topics=topics, **more)


def load(lake: Path | str, servers: str, *topics: str, **more: Any) -> Summary:
    """Load topics into a lake without Spark, and return the summary."""
    return Loader(settings_of(lake, servers, *topics, **more), InProcess()).run()


def create(servers: str, topic: str, partitions: int = 2, **configs: str) -> None:
    """Create a topic. `configs` are its settings, with _ for dots."""
    options = {name.replace("_", "."): value for name, value in configs.items()}
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.create_topic(topic, partitions, configs=options)


def fill(servers: str, topic: str, partitions: int, count: int, *, start: int = 0, step_ms: int = 60_000) -> None:
    """Send `count` records to each partition, with timestamps `step_ms` apart."""
    numbers = range(start, start + count)
    with Producer(bootstrap_servers=servers) as producer:
        sent = [
            producer.send_many(
                topic,
                [b"%d of %d" % (number, partition) for number in numbers],
                [b"key %d" % (number % 7) for number in numbers],
                partitions=partition,
                timestamps=[BEGIN_MS + number * step_ms for number in numbers],
            )
            for partition in range(partitions)
        ]
        for each in sent:
            each.result(30)


def await_decided(servers: str, topic: str, end: int) -> None:
    """Wait until all transactions of partition 0 before offset `end` are decided: markers come after a commit."""
    place = TopicPartition(topic, 0)
    with AdminClient(bootstrap_servers=servers) as admin:
        wait_until(lambda: admin.list_offsets([place], read_committed=True)[place].offset >= end, "the last marker", 30)


def visible(lake: Path | str) -> Rows:
    """Return the rows that a plain glob over the lake finds. AssertionError if a row is there twice."""
    found: Rows = {}
    for path in Path(lake).glob("**/*.parquet"):
        topic = path.parts[-4].removeprefix("topic=")
        table = parquet.read_table(pyarrow.OSFile(str(path)))
        columns = [table.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
        stamps = table.column("timestamp").cast("int64").to_pylist()
        for partition, offset, key, value, stamp in zip(*columns, stamps, strict=True):
            place = (topic, partition, offset)
            assert place not in found, f"{place} is there twice, in {path} too"
            found[place] = (key, value, stamp)
    return found


def visible_in(settings: Settings) -> Rows:
    """Return the rows that a plain reader of all Parquet files of any lake finds. AssertionError as in `visible`."""
    storage = storage_of(settings)
    found: Rows = {}
    for path, _ in storage.files(""):
        if not path.endswith(".parquet"):
            continue
        with storage.open_input(path) as file:
            for row in parquet.read_table(file).to_pylist():
                place = (path.split("/")[0].removeprefix("topic="), row["partition"], row["offset"])
                assert place not in found, f"{place} is there twice"
                found[place] = (row["key"], row["value"], round(row["timestamp"].timestamp() * 1000))
    return found


def on_broker(servers: str, *topics: str, **options: Any) -> Rows:
    """Return all records that a consumer gets from the broker."""
    found: Rows = {}
    with AdminClient(bootstrap_servers=servers) as admin:
        described = admin.describe_topics(topics)
    places = [TopicPartition(name, each.partition) for name, of in described.items() for each in of.partitions]
    with Consumer({"bootstrap.servers": servers, "auto.offset.reset": "none", **options}) as consumer:
        ends = consumer.end_offsets(places)
        consumer.assign(consumer.beginning_offsets(places))
        while any((consumer.position(*place) or 0) < ends[place] for place in places):
            for each in consumer.poll(0.1):
                found[(each.topic, each.partition, each.offset)] = (each.key, each.value, each.timestamp)
    return found


def hours_of(lake: Path | str) -> Counter[str]:
    """Return the number of rows in each folder of an hour."""
    found: Counter[str] = Counter()
    for path in Path(lake).glob("**/*.parquet"):
        found["/".join(path.parts[-4:-1])] += parquet.read_metadata(pyarrow.OSFile(str(path))).num_rows
    return found


# --- loads that are killed --------------------------------------------------------------------------------


def killed_at(step: int, settings: Settings, die: Callable[[int, Settings], None] | None = None) -> bool:
    """Load in a process that is killed right before its `step`th call. Return False if it ended with fewer calls."""
    process = _processes.Process(target=die or load_and_die, args=(step, settings))
    process.start()
    process.join(60)
    if process.exitcode not in (0, -signal.SIGKILL):
        process.kill()
        raise AssertionError(f"the load has ended with {process.exitcode}")
    return process.exitcode != 0


def load_and_die(step: int, settings: Settings) -> None:
    kill_before(step, [(os, name) for name in STEPS])
    Loader(settings, InProcess()).run()


def folding_campaign(
    settings: Settings, die: Callable[[int, Settings], None], look: Callable[[], Rows], every: int, patch: MonkeyPatch
) -> int:
    """Kill loads that fold before each `every`th step, in a lake that was not folded. Return the number of steps.

    `die` is the process that is killed; bundles have two commits.
    """
    patch.setattr(commit_files, "BUNDLE", 2)
    patch.setattr(run, "fold", lambda storage: None)
    servers, (topic,) = settings.client["bootstrap.servers"], settings.topics
    create(servers, topic, 1)
    storage = storage_of(settings)
    step, was_killed, number = 1, True, 0
    while was_killed:
        for _ in range(3):
            Loader(settings, InProcess()).run()
            fill(servers, topic, 1, 2, start=number)
            number += 2
        was_killed = killed_at(step, settings, die)
        own = commit_files.commit_numbers(storage)
        Loader(settings, InProcess()).run()
        assert look() == on_broker(servers, topic), f"step {step}, {own}"
        commits = [commit.number for commit in commit_files.all_commits(storage)]
        assert commits == list(range(1, commits[-1] + 1)), f"step {step}, {own}"
        assert commits[-1] - own[-1] in (0, 1), f"step {step}, {own}"
        step += every
    assert own[-1] > 10 > 5 > len(own)
    assert len(storage.names(PREPARED)) <= 8
    return step


def kill_before(step: int, calls: Sequence[tuple[Any, str]]) -> None:
    """Have this process killed right before the `step`th of these calls from now on: (module or class, name)."""
    left = step

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def counting(*arguments: Any, **keywords: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)

        return counting

    for owner, name in calls:
        setattr(owner, name, counted(getattr(owner, name)))


_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.kit.spark.load"])
