"""What producers say they have sent, and loads that they have loaded, is what is there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from kbroker.client import AdminClient, AsyncProducer, AuditHandler, Producer
from kbroker.spark.loader.errors import LoadFailed
from kbroker.spark.loader.verification.audit import read_audit
from kbroker.spark.loader.verification.verify import verify
from kbroker.testing import Broker
from tests.kit.spark.load import BEGIN_MS, HOUR_MS, InProcess, Meanwhile, load, settings_of

HOUR = BEGIN_MS // HOUR_MS


@pytest.fixture
def servers(broker: Broker, topic: str) -> str:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 2)
    return broker.bootstrap_servers


def audited_producer(servers: str, topic: str, **options: object) -> Producer:
    return Producer({"bootstrap.servers": servers, **options}, handlers=[AuditHandler(f"{topic}-audit")])


def test_every_way_of_sending_is_counted(servers: str, topic: str) -> None:
    with audited_producer(servers, topic) as producer:
        for number in range(10):
            producer.send_nowait(topic, b"%d" % number, timestamp=BEGIN_MS)
        producer.send(topic, b"late", key=b"key", timestamp=BEGIN_MS - 5 * HOUR_MS)
        producer.send_many(topic, [b"x"] * 1000, timestamps=BEGIN_MS + HOUR_MS)
        producer.send_many(
            topic, [b"x", None] * 50, [b"k"] * 100, timestamps=[BEGIN_MS + n * HOUR_MS for n in range(100)]
        )
    settings = settings_of("", servers)
    found = read_audit(settings, f"{topic}-audit")
    expected = {(topic, "producer", HOUR + n): 1 for n in range(100)}
    expected[(topic, "producer", HOUR)] += 10
    expected[(topic, "producer", HOUR + 1)] += 1000
    expected[(topic, "producer", HOUR - 5)] = 1
    assert found == expected


def test_an_async_producer_is_counted_too(servers: str, topic: str) -> None:
    async def send() -> None:
        async with AsyncProducer(bootstrap_servers=servers, handlers=[AuditHandler(f"{topic}-audit")]) as producer:
            await producer.send(topic, b"one", timestamp=BEGIN_MS)
            await producer.send_many(topic, [b"two", b"three"], timestamps=BEGIN_MS)

    asyncio.run(send())
    assert read_audit(settings_of("", servers), f"{topic}-audit") == {(topic, "producer", HOUR): 3}


def test_producers_and_loads_are_compared(servers: str, topic: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    more = {"audit_topic": f"{topic}-audit"}
    for _ in range(2):
        with audited_producer(servers, topic, **{"compression.type": "zstd"}) as producer:
            producer.send_many(
                topic, [b"%d" % n for n in range(400)], timestamps=[BEGIN_MS + n * 60_000 for n in range(400)]
            )
        load(lake, servers, topic, **more)
    load(lake, servers, topic, reload_since_ms=0, **more)
    found = verify(settings_of(lake, servers, topic, **more), InProcess())
    assert found.is_good
    assert all(each.audit == {"producer": each.lake, "lake": each.lake} for each in found.hours)
    assert sum(each.lake for each in found.hours) == 800
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"nobody counts this", timestamp=BEGIN_MS)
    load(lake, servers, topic, **more)
    found = verify(settings_of(lake, servers, topic, **more), InProcess())
    assert [each.verdict for each in found.hours if each.verdict != "same"] == ["AUDIT DIFFERS"]
    assert not found.is_good


def test_what_is_not_loaded_yet_is_not_lost(servers: str, topic: str, tmp_path: Path) -> None:
    lake, now_ms = tmp_path / "lake", time.time_ns() // 1_000_000
    more = {"audit_topic": f"{topic}-audit"}

    def send() -> None:
        with audited_producer(servers, topic) as producer:
            producer.send_many(topic, [b"x"] * 100, timestamps=now_ms)

    def send_and_load() -> None:
        send()
        load(lake, servers, topic, **more)

    send_and_load()
    send()
    for tasks in (InProcess(), Meanwhile(send_and_load, send_and_load, send_and_load)):
        (found,) = verify(settings_of(lake, servers, topic, **more), tasks).hours
        assert (found.lake, found.audit["lake"], found.verdict) == (100, 100, "open")
        assert found.audit["producer"] > 100
    (found,) = verify(settings_of(lake, servers, topic, **more), InProcess()).hours
    assert (found.lake, found.audit, found.verdict) == (500, {"lake": 500, "producer": 500}, "same")


def test_a_lake_is_compared_with_its_own_loads_wherever_it_is(servers: str, topic: str, tmp_path: Path) -> None:
    more = {"audit_topic": f"{topic}-audit"}
    with audited_producer(servers, topic) as producer:
        producer.send_many(topic, [b"x"] * 10, timestamps=BEGIN_MS)
    for name in ("one", "two"):
        load(tmp_path / name, servers, topic, **more)
    (tmp_path / "one").rename(tmp_path / "moved")
    for name in ("moved", "two"):
        (found,) = verify(settings_of(tmp_path / name, servers, topic, **more), InProcess()).hours
        assert (found.audit, found.verdict) == ({"lake": 10, "producer": 10}, "same")


def test_an_audit_that_is_not_there(servers: str, topic: str, tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="there is no topic no-audit"):
        read_audit(settings_of("", servers), "no-audit")


def test_windows_divide_an_hour() -> None:
    with pytest.raises(ValueError, match="window_ms=7000"):
        AuditHandler(window_ms=7000)


def test_records_without_a_date_are_no_hours(servers: str, topic: str, tmp_path: Path) -> None:
    """Nanoseconds for milliseconds: the hour had no name, and the lake's load named another, that of its own time."""
    with audited_producer(servers, topic) as producer:
        producer.send(topic, b"good", timestamp=BEGIN_MS)
        producer.send(topic, b"bad", timestamp=BEGIN_MS * 1_000_000)
    audit = f"{topic}-audit"
    load(tmp_path / "lake", servers, topic, audit_topic=audit)
    found = verify(settings_of(tmp_path / "lake", servers, topic, audit_topic=audit), InProcess())
    assert {each.hour: (each.lake, each.audit) for each in found.hours} == {
        "no date": (1, {"producer": 1, "lake": 1}),
        "2023-11-14T22": (1, {"producer": 1, "lake": 1}),
    }
    assert found.is_good
