"""What `--verify` says of lakes that are as they should be, and of those that are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from kbroker.client import AdminClient, Producer
from kbroker.spark.loader import run
from kbroker.spark.loader.commits.commit_files import all_commits
from kbroker.spark.loader.commits.publish import publish
from kbroker.spark.loader.errors import LoadFailed, NotALake
from kbroker.spark.loader.lake.storage import Directory
from kbroker.spark.loader.plans.work_units import WorkUnit
from kbroker.spark.loader.verification.verify import Verification, verify
from kbroker.testing import Broker
from tests.kit.spark.load import BEGIN_MS, InProcess, Meanwhile, await_decided, create, fill, load, settings_of

NAMES = ["2023-11-14T22", "2023-11-14T23", "2023-11-15T00"]


@pytest.fixture
def servers(broker: Broker, topic: str) -> str:
    create(broker.bootstrap_servers, topic, 2)
    fill(broker.bootstrap_servers, topic, 2, 150)
    return broker.bootstrap_servers


@pytest.fixture
def lake(servers: str, topic: str, tmp_path: Path) -> Path:
    lake = tmp_path / "lake"
    load(lake, servers, topic)
    fill(servers, topic, 2, 10, start=150)
    return lake


def found_in(lake: Path, servers: str, *topics: str, **more: object) -> Verification:
    return verify(settings_of(lake, servers, *topics, **more), InProcess())


def test_a_lake_that_is_whole(servers: str, topic: str, lake: Path) -> None:
    found = found_in(lake, servers)
    assert found.is_good
    assert [(each.hour, each.broker, each.lake, each.lake_in_all) for each in found.hours] == [
        (name, count, count, count) for name, count in zip(NAMES, (94, 120, 86), strict=True)
    ]
    assert found_in(lake, servers, topic).hours == found.hours


def test_what_retention_took_is_counted_apart(servers: str, topic: str, lake: Path) -> None:
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.delete_records({(topic, 0): 50})
    (first, _, _) = found_in(lake, servers).hours
    assert (first.broker, first.lake, first.lake_in_all, first.verdict) == (47, 47, 94, "same")


class Deleting(InProcess):
    """Deletes the records before `until` of partition 0 when the task begins that reads the one at `read`."""

    def __init__(self, servers: str, read: int, until: int):
        self.servers, self.read, self.until = servers, read, until

    def run(self, function: Callable[[Any], Any], items: Sequence[Any], *_: Any) -> list[Any]:
        return [function(self.looked_at(item)) for item in items]

    def looked_at(self, item: Any) -> Any:
        if isinstance(item, WorkUnit):
            (found,) = item.ranges
            if found.partition == 0 and self.read in range(found.start, found.until):
                with AdminClient(bootstrap_servers=self.servers) as admin:
                    admin.delete_records({found.place: self.until})
        return item


@pytest.mark.parametrize(("read", "until"), [(0, 60), (59, 60), (149, 150), (0, 150)])
def test_what_is_deleted_while_it_is_counted(servers: str, topic: str, lake: Path, read: int, until: int) -> None:
    """Ranges of which the first is gone, and all of it; and those before, which may have been counted."""
    settings = settings_of(lake, servers, task_bytes=1000)
    whole = verify(settings, InProcess()).hours
    found = verify(settings, Deleting(servers, read, until))
    assert found.is_good
    assert sum(each.broker for each in whole) - sum(each.broker for each in found.hours) == until
    assert [each.lake_in_all for each in found.hours] == [each.lake_in_all for each in whole]


def test_files_that_are_gone_or_strange(servers: str, topic: str, lake: Path) -> None:
    gone, strange, *_ = sorted(lake.glob("**/*.parquet"))
    gone.unlink()
    strange.with_name("more.parquet").write_bytes(strange.read_bytes())
    found = found_in(lake, servers)
    assert not found.is_good
    assert found.problems == [
        f"{gone.relative_to(lake)} is gone",
        f"{strange.with_name('more.parquet').relative_to(lake)} is of no commit",
    ]
    assert [each.verdict for each in found.hours].count("DIFFERENT") == 1


def test_rows_that_are_others(servers: str, topic: str, lake: Path) -> None:
    path = min(lake.glob("**/*.parquet"))
    table = parquet.read_table(pyarrow.OSFile(str(path)))
    offsets = table.column("offset").to_pylist()
    offsets[-1] += 1
    place = table.schema.get_field_index("offset")
    parquet.write_table(table.set_column(place, table.schema.field("offset"), pyarrow.array(offsets)), path)
    found = found_in(lake, servers)
    assert any(problem.startswith(f"{path.relative_to(lake)} has ") for problem in found.problems)
    assert not found.is_good


def test_quarantine_and_several_loads_count(servers: str, topic: str, tmp_path: Path) -> None:
    lake = tmp_path / "text"
    formats = {"valueFormat": "string"}
    load(lake, servers, topic, formats=formats)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"\xff", partition=0, timestamp=BEGIN_MS).result(30)
        producer.send(topic, b"no date", partition=0, timestamp=1 << 60).result(30)
    assert load(lake, servers, topic, formats=formats).topics[0].undecodable == 1
    found = found_in(lake, servers)
    assert found.is_good
    assert (found.hours[0].hour, found.hours[0].lake) == ("no date", 1)


def test_there_has_to_be_a_lake(servers: str, topic: str, tmp_path: Path) -> None:
    with pytest.raises(NotALake):
        found_in(tmp_path / "none", servers)


def test_a_load_that_is_at_work_meanwhile_makes_no_difference(servers: str, topic: str, lake: Path) -> None:
    def more() -> None:
        fill(servers, topic, 2, 10, start=1000)
        load(lake, servers, topic)

    before = found_in(lake, servers)
    tasks = Meanwhile(more, more, more)
    found = verify(settings_of(lake, servers), tasks)
    assert tasks.things == []
    assert found == before
    assert len(found_in(lake, servers).hours) > len(before.hours)


def test_small_files_share_a_task(servers: str, topic: str, lake: Path) -> None:
    tasks: list[int] = []

    class Counting(InProcess):
        def run(self, function: Any, items: Any, *more: Any) -> list[Any]:
            tasks.append(len(items))
            return super().run(function, items, *more)

    assert verify(settings_of(lake, servers), Counting()).is_good
    assert len(list(lake.glob("**/*.parquet"))) > 1
    assert tasks == [1, 1]


def test_a_reload_meanwhile_has_it_begin_again(servers: str, topic: str, lake: Path) -> None:
    def again() -> None:
        load(lake, servers, topic, reload_since_ms=0)

    tasks = Meanwhile(lambda: None, again, lambda: None, again, again)
    found = verify(settings_of(lake, servers), tasks)
    assert tasks.things == []
    assert found.is_good
    assert found == found_in(lake, servers)


@pytest.mark.parametrize("reload_since_ms", [None, 0])
def test_files_that_are_about_to_get_their_names_are_there(
    servers: str, topic: str, lake: Path, reload_since_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Directory(str(lake))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(run, "publish", interrupted)
        load(lake, servers, topic, reload_since_ms=reload_since_ms)
    *_, last = all_commits(storage)
    assert all((lake / file.staged).exists() for file in last.files)
    found = found_in(lake, servers)
    assert found.is_good, found.problems
    assert verify(settings_of(lake, servers), Meanwhile(lambda: None, lambda: publish(storage, last))) == found
    assert found_in(lake, servers) == found


def interrupted(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_a_topic_that_was_made_again_since_is_not_compared(servers: str, topic: str, lake: Path) -> None:
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.delete_topics([topic])
        admin.create_topic(topic, 2)
    fill(servers, topic, 2, 200, start=7)
    found = found_in(lake, servers)
    assert found.is_good
    assert {(each.broker, each.lake) for each in found.hours} == {(0, 0)}
    assert sum(each.lake_in_all for each in found.hours) == 300


def test_of_topics_that_were_deleted_since_nothing_is_compared(servers: str, topic: str, lake: Path) -> None:
    other = f"{topic}-other"
    fill(servers, other, 2, 10)
    load(lake, servers, other)
    for name, rows in ((other, 20), (topic, 300)):  # beside one that is there, and all
        with AdminClient(bootstrap_servers=servers) as admin:
            admin.delete_topics([name])
        found = found_in(lake, servers)
        assert found.is_good
        assert [sum(of) for of in zip(*counts_of(found, name), strict=True)] == [0, 0, rows]
        assert found_in(lake, servers, name).is_good


def counts_of(found: Verification, topic: str) -> list[tuple[int, int, int]]:
    return [(each.broker, each.lake, each.lake_in_all) for each in found.hours if each.topic == topic]


def test_a_topic_that_the_lake_has_not_is_named(servers: str, topic: str, lake: Path) -> None:
    with pytest.raises(LoadFailed, match=f"has no topic {topic}s: there is nothing to compare"):
        found_in(lake, servers, topic, f"{topic}s")


def test_a_lake_knows_how_it_was_made(servers: str, topic: str, tmp_path: Path) -> None:
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0, timestamp=BEGIN_MS).result(30)
        producer.abort_transaction()
    await_decided(servers, topic, 152)
    committed = {"isolation.level": "read_committed"}
    only, all_of_it = tmp_path / "committed", tmp_path / "all"
    assert load(only, servers, topic, client=committed, time="arrival").rows == 300
    assert load(all_of_it, servers, topic).rows == 301
    assert found_in(only, servers).is_good
    assert found_in(all_of_it, servers, client=committed).is_good
    with pytest.raises(NotALake, match=r"committed records only \(--committed\): load so, or into another lake"):
        load(only, servers, topic, time="arrival")
    with pytest.raises(NotALake, match=r"those of aborted transactions too \(without --committed\)"):
        load(all_of_it, servers, topic, client=committed)


def test_a_lake_that_does_not_say_it_is_taken_as_it_is(servers: str, topic: str, lake: Path) -> None:
    path = lake / "_kbload/lake.json"
    found = json.loads(path.read_bytes())
    assert found.pop("isolation") == "read_uncommitted"
    path.write_text(json.dumps(found))
    committed = {"isolation.level": "read_committed"}
    assert load(lake, servers, topic, client=committed).rows == 20
    assert found_in(lake, servers, client=committed).is_good
