"""Topics into a lake, without Spark: what is in it afterwards, whatever happens to the topics meanwhile."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import duckdb
import pyarrow
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet
import pytest

from kbroker.cli.arguments import CODECS
from kbroker.client import AdminClient, Producer, TopicPartition
from kbroker.spark.loader.commits.commit import Commit
from kbroker.spark.loader.commits.commit_files import all_commits
from kbroker.spark.loader.errors import LakeTaken, LoadFailed, NotALake, RecordsLost
from kbroker.spark.loader.lake.storage import Directory
from kbroker.spark.loader.plans.plan import Plan
from kbroker.spark.loader.run import Loader, Watcher
from kbroker.spark.loader.verification.verify import verify
from kbroker.testing import Broker
from tests.kit.parts.processors import wait_until
from tests.kit.spark.load import (
    BEGIN_MS,
    HOUR_MS,
    InProcess,
    await_decided,
    create,
    fill,
    hours_of,
    load,
    on_broker,
    settings_of,
    visible,
)


@pytest.fixture
def servers(broker: Broker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def send(servers: str, topic: str, *records: tuple[int, int, str], **options: object) -> None:
    """Partition, hours since BEGIN_MS, value."""
    with Producer({"bootstrap.servers": servers, **options}) as producer:
        for partition, hours, value in records:
            producer.send(topic, value, partition=partition, timestamp=BEGIN_MS + hours * HOUR_MS).result(30)


def parquet_files(lake: Path) -> list[str]:
    return sorted(str(path.relative_to(lake)) for path in lake.glob("**/*.parquet"))


def test_every_load_adds_what_is_new(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    fill(servers, topic, 2, 200)
    first = load(lake, servers, topic)
    assert (first.rows, first.commits) == (400, [1])
    assert visible(lake) == on_broker(servers, topic)
    assert load(lake, servers, topic).commits == []
    fill(servers, topic, 2, 100, start=200)
    assert load(lake, servers, topic).rows == 200
    assert visible(lake) == on_broker(servers, topic)


def test_any_reader_sees_what_is_committed(servers: str, topic: str, lake: Path) -> None:
    """All of it and nothing else, also while tasks have written what is not."""
    create(servers, topic)
    fill(servers, topic, 2, 200)
    load(lake, servers, topic)

    def rows() -> list[int]:
        found = duckdb.sql(f"select partition, \"offset\" from '{lake}/**/*.parquet' where topic = '{topic}'")
        return [
            len(found.distinct().fetchall()),
            len(found.fetchall()),
            dataset.dataset(lake, partitioning="hive").count_rows(),
        ]

    class Looking(InProcess):
        def run(self, *arguments):  # type: ignore[no-untyped-def]
            made = super().run(*arguments)
            assert sum(file.rows for each in made for file in each.files) == 100
            assert rows() == 3 * [400]
            return made

    fill(servers, topic, 2, 50, start=200)
    Loader(settings_of(lake, servers, topic), Looking()).run()
    assert rows() == 3 * [500]


def test_columns_are_those_of_a_data_frame_without_the_topic(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 1)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"value", key=b"key", headers=[("a", b"1"), ("b", None)], timestamp=BEGIN_MS).result(30)
        producer.send(topic, None, timestamp=BEGIN_MS).result(30)
    load(lake, servers, topic)
    (path,) = parquet_files(lake)
    assert path == f"topic={topic}/date=2023-11-14/hour=22/part-0-0-1.parquet"
    rows = parquet.ParquetFile(lake / path).read().to_pylist()
    assert [list(row) for row in rows] == 2 * [
        ["key", "value", "partition", "offset", "timestamp", "timestampType", "headers"]
    ]
    assert rows[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert (rows[1]["key"], rows[1]["value"], rows[1]["headers"], rows[1]["offset"]) == (None, None, [], 1)
    assert rows[0]["timestamp"].timestamp() * 1000 == BEGIN_MS


@pytest.mark.parametrize("codec", CODECS)
def test_files_are_compressed_as_wanted(servers: str, topic: str, lake: Path, codec: str) -> None:
    create(servers, topic, 1)
    send(servers, topic, (0, 0, "a"))
    load(lake, servers, topic, compression=codec)
    (path,) = parquet_files(lake)
    columns = parquet.ParquetFile(lake / path).metadata.row_group(0)
    found = {columns.column(number).compression for number in range(columns.num_columns)}
    assert found == {"UNCOMPRESSED" if codec == "none" else codec.upper()}


def test_late_records_are_a_new_file_of_their_own_hour(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 1)
    send(servers, topic, (0, 0, "a"), (0, 1, "b"), (0, 3, "c"))
    load(lake, servers, topic)
    before = parquet_files(lake)
    send(servers, topic, (0, 0, "late"))
    load(lake, servers, topic)
    assert set(parquet_files(lake)) - set(before) == {f"topic={topic}/date=2023-11-14/hour=22/part-0-3-3.parquet"}
    assert hours_of(lake)[f"topic={topic}/date=2023-11-14/hour=22"] == 2


def test_by_arrival_all_of_a_load_is_in_its_hour(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 1)
    send(servers, topic, (0, 0, "a"), (0, 1, "b"))
    load(lake, servers, topic, time="arrival")
    assert len(parquet_files(lake)) == 1
    assert abs(time.time() - next(all_commits(Directory(str(lake)))).files[0].hour * 3600) < 2 * 3600
    with pytest.raises(NotALake, match="--time arrival"):
        load(lake, servers, topic)


def marked(lake: Path) -> list[str]:
    return sorted(path.parent.name for path in lake.glob("**/_SUCCESS"))


def lateness_since(hours: float) -> int:
    """With which an hour is late now when it is so many hours after BEGIN_MS."""
    return time.time_ns() // 1_000_000 - round(BEGIN_MS + hours * HOUR_MS)


def test_hours_are_marked_once_every_partition_is_past_them(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 3)  # nothing ever comes to the third
    send(servers, topic, (0, 0, "a"), (1, 0, "b"), (0, 2, "c"))
    load(lake, servers, topic, lateness_ms=lateness_since(0.1))
    assert marked(lake) == []
    found = load(lake, servers, topic, lateness_ms=lateness_since(1))
    assert (found.commits, found.rows, found.topics[0].complete_hours) == ([2], 0, 1)  # though there is nothing new
    assert marked(lake) == ["hour=22"]
    assert load(lake, servers, topic, lateness_ms=lateness_since(1)).commits == []
    assert Loader(settings_of(lake, servers, topic), InProcess()).preview() is None
    send(servers, topic, (1, 0, "late"), (0, 3, "d"))
    assert load(lake, servers, topic).topics[0].complete_hours == 3
    assert marked(lake) == ["hour=00", "hour=01", "hour=22"]


def test_hours_of_which_something_is_unread_or_undecided_are_not_marked(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    fill(servers, topic, 2, 1000)
    seen: list[dict[str, int]] = []

    class Looking(Watcher):
        def planned(self, plan: Plan) -> None:
            there = hours_of(lake)
            seen.append({hour: there[hour] for hour in there if (lake / hour / "_SUCCESS").exists()})

    committed = {"client": {"isolation.level": "read_committed"}}
    Loader(settings_of(lake, servers, topic, commit_bytes=20_000, **committed), InProcess(), Looking()).run()
    there = hours_of(lake)
    assert len(marked(lake)) == len(there) > len(seen[-1]) > len(seen[1]) > 0
    assert all(there[hour] == rows for marked_then in seen for hour, rows in marked_then.items())
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0, timestamp=BEGIN_MS + 100 * HOUR_MS).result(30)
        send(servers, topic, (1, 100, "in the same hour"))
        assert load(lake, servers, topic, **committed).topics[0].complete_hours == 0
        producer.commit_transaction()
    await_decided(servers, topic, 1002)
    assert load(lake, servers, topic, **committed).topics[0].complete_hours == 1


def test_small_partitions_share_tasks_and_files(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 10)
    fill(servers, topic, 10, 30, step_ms=1000)
    load(lake, servers, topic)
    assert len(parquet_files(lake)) == 1
    assert visible(lake) == on_broker(servers, topic)


def test_a_load_of_much_is_several_commits(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    fill(servers, topic, 2, 1000)
    assert len(load(lake, servers, topic, commit_bytes=20_000).commits) > 2
    assert visible(lake) == on_broker(servers, topic)


def test_patterns_take_topics_that_come(servers: str, topic: str, lake: Path) -> None:
    pattern = re.compile(re.escape(topic) + "-.*")
    create(servers, f"{topic}-a")
    fill(servers, f"{topic}-a", 2, 10)
    load(lake, servers, pattern=pattern)
    create(servers, f"{topic}-b")
    fill(servers, f"{topic}-b", 2, 10)
    load(lake, servers, pattern=pattern)
    assert visible(lake) == on_broker(servers, f"{topic}-a", f"{topic}-b")
    with pytest.raises(LoadFailed, match="no topic matches"):
        load(lake, servers, pattern=re.compile("no such"))


# --- where it begins --------------------------------------------------------------------------------------


def test_a_topic_can_begin_at_its_end_or_at_a_time(servers: str, topic: str, lake: Path, tmp_path: Path) -> None:
    create(servers, topic)
    fill(servers, topic, 2, 100)
    load(lake, servers, topic, start=-1)
    assert visible(lake) == {}
    fill(servers, topic, 2, 10, start=100)
    load(lake, servers, topic, start=-1)
    assert {place[2] for place in visible(lake)} == set(range(100, 110))
    load(tmp_path / "other", servers, topic, start=BEGIN_MS + 105 * 60_000)
    assert {place[2] for place in visible(tmp_path / "other")} == set(range(105, 110))


def test_a_reload_is_in_place_of_what_was_there(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    for start in (0, 100, 200):
        fill(servers, topic, 2, 100, start=start)
        load(lake, servers, topic)
    before = parquet_files(lake)
    fill(servers, topic, 2, 10, start=300)
    found = load(lake, servers, topic, reload_since_ms=BEGIN_MS + 150 * 60_000)
    assert found.rows == 2 * (310 - 107)  # files are replaced whole: the hour of record 150 begins with 107
    assert visible(lake) == on_broker(servers, topic)
    assert set(before) - set(parquet_files(lake))
    assert load(lake, servers, topic).commits == []


def test_a_reload_is_not_where_new_topics_begin(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    fill(servers, topic, 2, 10)
    load(lake, servers, topic, reload_since_ms=BEGIN_MS + 5 * 60_000)
    assert visible(lake) == on_broker(servers, topic)


def test_a_reload_leaves_what_the_brokers_no_longer_have(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 1)
    for start in (0, 100):
        fill(servers, topic, 1, 100, start=start)
        load(lake, servers, topic)
    all_of_it = visible(lake)
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.delete_records({(topic, 0): 50})
    assert load(lake, servers, topic, reload_since_ms=0).rows == 100
    assert visible(lake) == all_of_it


# --- what happens to topics -------------------------------------------------------------------------------


def test_a_partition_that_is_added_is_loaded_from_its_start(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 1)
    fill(servers, topic, 1, 10)
    load(lake, servers, topic, start=-1)
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.create_partitions(topic, 3)
    fill(servers, topic, 3, 10, start=10)
    load(lake, servers, topic, start=-1)
    assert len(visible(lake)) == 30


def test_a_topic_that_was_made_again_is_loaded_when_that_is_wanted(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 1)
    fill(servers, topic, 1, 10)
    load(lake, servers, topic)
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.delete_topics([topic])
        create(servers, topic, 1)
    fill(servers, topic, 1, 10, step_ms=1000)
    with pytest.raises(RecordsLost, match="was deleted and made again; with --data-loss continue"):
        load(lake, servers, topic)
    found = load(lake, servers, topic, data_loss="continue")
    assert (found.rows, found.lost) == (10, [f"topic {topic} was deleted and made again"])
    assert sum(hours_of(lake).values()) == 20
    assert sum("generation-1" in path for path in parquet_files(lake)) == 1
    assert load(lake, servers, topic).commits == []


def test_records_that_retention_took_are_an_error_or_a_note(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 1)
    fill(servers, topic, 1, 10)
    load(lake, servers, topic)
    fill(servers, topic, 1, 90, start=10)
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.delete_records({(topic, 0): 50})
    with pytest.raises(RecordsLost, match="offsets 10 to 49 are deleted"):
        load(lake, servers, topic)
    found = load(lake, servers, topic, data_loss="continue")
    assert (found.rows, found.lost) == (50, [f"{topic}-0: offsets 10 to 49 are deleted"])


def test_retention_while_tasks_read(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 1)
    fill(servers, topic, 1, 100)

    class Deleting(InProcess):
        def run(self, *arguments):  # type: ignore[no-untyped-def]
            with AdminClient(bootstrap_servers=servers) as admin:
                admin.delete_records({(topic, 0): 50})
            return super().run(*arguments)

    with pytest.raises(RecordsLost, match="offset 0 was deleted before it was read"):
        Loader(settings_of(lake, servers, topic), Deleting()).run()
    assert visible(lake) == {}
    assert list((lake / "_kbload/staging").iterdir()) == []
    loose = Loader(settings_of(lake, servers, topic, data_loss="continue"), InProcess()).run()
    assert (loose.rows, visible(lake)) == (50, on_broker(servers, topic))


def test_a_topic_made_again_while_tasks_read(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 1)
    fill(servers, topic, 1, 100)

    class MakingAgain(InProcess):
        def run(self, *arguments):  # type: ignore[no-untyped-def]
            with AdminClient(bootstrap_servers=servers) as admin:
                admin.delete_topics([topic])
            create(servers, topic, 1)
            fill(servers, topic, 1, 100, step_ms=1)
            return super().run(*arguments)

    with pytest.raises(LoadFailed, match="was deleted and made again while it was read"):
        Loader(settings_of(lake, servers, topic), MakingAgain()).run()
    assert visible(lake) == {}


def test_gaps_of_transactions_and_what_they_aborted(servers: str, topic: str, lake: Path, tmp_path: Path) -> None:
    create(servers, topic, 1)
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for number in range(10):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0, timestamp=BEGIN_MS).result(30)
            producer.commit_transaction() if number % 3 else producer.abort_transaction()
    await_decided(servers, topic, 20)
    committed = {"client": {"isolation.level": "read_committed"}}
    found = load(lake, servers, topic, **committed)
    assert (found.rows, found.topics[0].missing) == (6, 14)
    assert visible(lake) == on_broker(servers, topic, **{"isolation.level": "read_committed"})
    assert load(tmp_path / "all", servers, topic).rows == 10


def test_gaps_of_compaction(topic: str, lake: Path) -> None:
    settings = {"log.cleaner.backoff.ms": 100, "log.segment.bytes": 1 << 20}
    with Broker(settings=settings) as broker:
        servers = broker.bootstrap_servers
        create(servers, topic, 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_bytes=14_000)
        for start in range(0, 2000, 100):
            fill(servers, topic, 1, 100, start=start)
        wait_until(lambda: len(on_broker(servers, topic)) < 2000, "the cleaner", 30)
        found = load(lake, servers, topic)
        assert 7 <= found.rows < 2000
        assert found.rows + found.topics[0].missing == 2000
        assert len(visible(lake)) == found.rows
        assert load(lake, servers, topic).commits == []


# --- who else is there ------------------------------------------------------------------------------------


def test_a_second_loader_is_told_at_once(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    fill(servers, topic, 2, 10)

    class Second(InProcess):
        def run(self, *arguments):  # type: ignore[no-untyped-def]
            with pytest.raises(LakeTaken, match="another loader is at work"):
                load(lake, servers, topic)
            return super().run(*arguments)

    assert Loader(settings_of(lake, servers, topic), Second()).run().rows == 20
    assert visible(lake) == on_broker(servers, topic)


def test_a_second_loader_without_locks_loses_at_the_commit(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    fill(servers, topic, 2, 10)

    class Overtaken(InProcess):
        def run(self, *arguments):  # type: ignore[no-untyped-def]
            (lake / "_kbload/lock").rename(lake / "_kbload/lock-of-another")
            fill(servers, topic, 2, 10, start=10)
            assert load(lake, servers, topic).rows == 40
            return super().run(*arguments)

    with pytest.raises(LakeTaken, match="has committed 1 meanwhile"):
        Loader(settings_of(lake, servers, topic), Overtaken()).run()
    assert visible(lake) == on_broker(servers, topic)
    assert load(lake, servers, topic).commits == []


def test_a_directory_of_something_else_is_refused(servers: str, topic: str, tmp_path: Path) -> None:
    create(servers, topic)
    (tmp_path / "thesis.txt").write_text("text")
    with pytest.raises(NotALake, match=r"thesis\.txt"):
        load(tmp_path, servers, topic)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(LoadFailed, match=r"thesis\.txt: not a directory"):
        load(tmp_path / "thesis.txt", servers, topic)


def test_without_topics_nothing_is_made(servers: str, lake: Path) -> None:
    with pytest.raises(LoadFailed, match="no topic is named, and no pattern"):
        load(lake, servers)
    assert not lake.exists()


def test_a_lake_of_another_cluster_is_refused(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    load(lake, servers, topic)
    path = lake / "_kbload/lake.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "cluster_id": "another"}))
    with pytest.raises(NotALake, match="lake of cluster another"):
        load(lake, servers, topic)


def test_progress_is_shown_by_a_group(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    fill(servers, topic, 2, 10)
    load(lake, servers, topic)
    assert load(lake, servers, topic, group=topic).commits == []  # one that nothing was loaded with
    with AdminClient(bootstrap_servers=servers) as admin:
        assert sorted(each.offset for each in admin.committed(topic).values()) == [10, 10]
    fill(servers, topic, 2, 10, start=10)
    load(lake, servers, topic, group=topic)
    with AdminClient(bootstrap_servers=servers) as admin:
        assert sorted(each.offset for each in admin.committed(topic).values()) == [20, 20]


def test_a_dry_run_writes_nothing(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    fill(servers, topic, 2, 10)
    found = Loader(settings_of(lake, servers, topic), InProcess()).preview()
    assert found is not None and found.offsets == {topic: 20}
    assert not lake.exists()
    load(lake, servers, topic)
    assert Loader(settings_of(lake, servers, topic), InProcess()).preview() is None


# --- values -----------------------------------------------------------------------------------------------

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "member", "type": "long", "nullable": True, "metadata": {}},
            {"name": "page", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)


def test_what_cannot_be_decoded_is_in_quarantine(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic, 1)
    send(servers, topic, *((0, n // 4, f'{{"member": {n}, "page": "p{n % 2}"}}') for n in range(8)))
    send(servers, topic, (0, 0, "no json"), (0, 1, '{"member": "x"}'), (0, 1, '{"member": 10}'))
    formats = {"valueFormat": "json", "valueSchema": SCHEMA}
    found = load(lake, servers, topic, formats=formats)
    assert (found.rows, found.topics[0].undecodable) == (11, 2)
    rows = [
        row for path in parquet_files(lake) for row in parquet.read_table(pyarrow.OSFile(str(lake / path))).to_pylist()
    ]
    assert {row["offset"]: row["value"] for row in rows} == {
        **{n: {"member": n, "page": f"p{n % 2}"} for n in range(8)},
        10: {"member": 10, "page": None},
    }
    kept = sorted((lake / "_quarantine").glob("**/*.undecodable"))
    bad = [row for path in kept for row in parquet.read_table(pyarrow.OSFile(str(path))).to_pylist()]
    assert {row["offset"]: row["value"] for row in bad} == {8: b"no json", 9: b'{"member": "x"}'}
    assert all(row["reason"] for row in bad)
    assert bad[1]["reason"].startswith("field member: ")
    again = load(
        lake, servers, topic, formats={**formats, "valueSchema": SCHEMA.replace("long", "string")}, reload_since_ms=0
    )
    assert again.topics[0].undecodable == 1
    assert len(list((lake / "_quarantine").glob("**/*.undecodable"))) == 1


def test_a_time_that_spark_cannot_read_is_none(servers: str, topic: str, lake: Path) -> None:
    """Spark reads no times at all of a file with one that its microseconds do not reach."""
    create(servers, topic, 1)
    last_ms = (1 << 63) // 1000
    stamps = [BEGIN_MS, last_ms, last_ms + 1, (1 << 63) - 1]
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"v"] * len(stamps), timestamps=stamps).result(30)
    load(lake, servers, topic)
    found = visible(lake)
    assert [found[(topic, 0, offset)][2] for offset in range(4)] == [BEGIN_MS, last_ms, -1, -1]
    assert verify(settings_of(lake, servers, topic), InProcess()).is_good


def test_a_record_from_the_future_completes_no_hours(servers: str, topic: str, lake: Path) -> None:
    """One that is the latest for good said that its partition was read up to now, however much was left of it."""
    create(servers, topic, 1)
    send(servers, topic, (0, 24 * 365 * 30, "of a clock that is wrong"))
    fill(servers, topic, 1, 240)
    load(lake, servers, topic, commit_bytes=2_000)
    commits = list(all_commits(Directory(str(lake))))
    assert len(commits) > 2
    complete: set[int] = set()
    for commit in commits:
        assert not complete & {file.hour for file in commit.files}
        complete |= set(commit.complete_hours.get(topic, ()))
    assert complete >= {BEGIN_MS // HOUR_MS + hours for hours in range(4)}


def test_a_reload_that_is_cut_off_has_taken_nothing_away(servers: str, topic: str, lake: Path) -> None:
    """All files went with the first of its commits, and what the others were to read again had been deleted by then."""
    create(servers, topic, 1)
    fill(servers, topic, 1, 200)
    load(lake, servers, topic)
    before = visible(lake)

    class CutOff(Watcher):
        def committed(self, commit: Commit) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Loader(settings_of(lake, servers, topic, reload_since_ms=0, commit_bytes=2_000), InProcess(), CutOff()).run()
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 200})
    load(lake, servers, topic)
    assert visible(lake) == before


def test_values_stay_as_they_are_in_the_lake(servers: str, topic: str, lake: Path) -> None:
    """A load that forgot it made files that no reader put together with those before."""
    create(servers, topic, 1)
    fill(servers, topic, 1, 10)
    load(lake, servers, topic, formats={"valueFormat": "string"})
    fill(servers, topic, 1, 10, start=10)
    with pytest.raises(LoadFailed, match=f"values of topic {topic} as string, .* load with --value-format string, or"):
        load(lake, servers, topic)
    assert load(lake, servers, topic, reload_since_ms=0).rows == 20
    with pytest.raises(LoadFailed, match=f"values of topic {topic} as binary, .* load without --value-format, or"):
        load(lake, servers, topic, formats={"valueFormat": "string"})
    assert load(lake, servers, topic).commits == []
    assert visible(lake) == on_broker(servers, topic)
