"""What `--verify` says of lakes that are as they should be, and of those that are not."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest

from kbroker.client import AdminClient, Producer
from kbroker.spark.loader.errors import NotALake
from kbroker.spark.loader.verify import Verification, verify
from kbroker.testing import Broker
from tests.kit.load import BEGIN_MS, InProcess, fill, load, settings_of

NAMES = ["2023-11-14T22", "2023-11-14T23", "2023-11-15T00"]


@pytest.fixture
def servers(broker: Broker, topic: str) -> str:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 2)
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
