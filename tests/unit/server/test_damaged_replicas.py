"""Damage on the disk of one broker: nothing is lost, nothing spreads, and the replica is made good from the others."""

from __future__ import annotations

import re
import shutil
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kbroker.client import Consumer, Producer
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from kbroker.testing import Cluster
from tests.kit.brokers.whole import WholeBroker
from tests.kit.cluster import replicas
from tests.kit.cluster.members import Members, await_that
from tests.kit.kafka.zookeeper import KafkaOnZooKeeper
from tests.kit.logs.home import read_all
from tests.kit.parts.processors import wait_until

TOPIC = "t"
COUNT = 300
WAIT_S = 60.0
SETTINGS = {"replica.high.watermark.checkpoint.interval.ms": 100}

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    jars = Path(KafkaOnZooKeeper.classpath().split(":")[0]).parent
    with Cluster(3, settings=SETTINGS, zookeeper_jars=jars) as cluster:
        cluster.create_topic(TOPIC)
        produce(cluster, range(COUNT))
        wait_until(
            lambda: all(stored_high_watermark(cluster, each) == COUNT for each in cluster.brokers),
            "the high watermarks are stored", WAIT_S,
        )  # fmt: skip
        yield cluster


def data_of(cluster: Cluster, broker_id: int) -> Path:
    return cluster.brokers[broker_id]._folder.path / "data"


def stored_high_watermark(cluster: Cluster, broker_id: int) -> int | None:
    path = data_of(cluster, broker_id) / "replication-offset-checkpoint"
    found = re.search(rf"^{TOPIC} 0 (\d+)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return None if found is None else int(found[1])


def produce(cluster: Cluster, numbers: range) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all", linger_ms=0) as producer:
        for number in numbers:
            producer.send(TOPIC, b"record %d." % number).result(60)


def consumed(cluster: Cluster, count: int) -> list[bytes | None]:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign_topics(TOPIC)
        found: list[bytes | None] = []
        deadline = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(1.0)]
        return found


def flip(cluster: Cluster, broker_id: int, number: int) -> None:
    """Flip a bit of a record on one broker's disk."""
    for path in data_of(cluster, broker_id).glob(f"{TOPIC}-0/*.log"):
        at = path.read_bytes().find(b"record %d." % number)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"R")
            return
    raise AssertionError(f"broker {broker_id} has no record {number}")


def check_whole(cluster: Cluster, count: int) -> None:
    """All records are there, and all replicas have the same bytes."""
    cluster.await_in_sync()
    assert consumed(cluster, count) == [b"record %d." % number for number in range(count)]
    folders = {each: data_of(cluster, each) / f"{TOPIC}-0" for each in cluster.brokers}
    wait_until(lambda: not replicas.differences(folders, TOPIC), "the replicas are equal", WAIT_S)
    found = [batch for each in folders.values() for batch in replicas.batches(each)]
    assert not any(b"Record" in batch.data for batch in found), "the damage is still there"


def metric(cluster: Cluster, broker_id: int, name: str) -> float:
    with urllib.request.urlopen(f"http://{cluster.http_address(broker_id)}/metrics") as answer:
        found = re.search(rf"^kbroker_{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def lose_power(cluster: Cluster) -> None:
    """Kill all brokers at once: none notices that others are gone."""
    for each in cluster.brokers:
        cluster.pause(each)
    cluster.kill(*cluster.brokers)


def start_without_waiting(cluster: Cluster, *broker_ids: int) -> None:
    for each in broker_ids:
        cluster.brokers[each].start()


@pytest.mark.parametrize("leads", [False, True])
def test_a_broker_that_was_killed_and_has_damage_makes_it_good_from_the_others(cluster: Cluster, leads: bool) -> None:
    leader = cluster.leader(TOPIC)
    victim = leader if leads else leader % 3 + 1
    cluster.kill(victim)
    flip(cluster, victim, 100)
    produce(cluster, range(COUNT, COUNT + 10))
    cluster.start(victim)
    check_whole(cluster, COUNT + 10)
    assert re.search(rf"{TOPIC}-0 ends at offset \d+, and was committed up to {COUNT}", cluster.brokers[victim].log)


@pytest.mark.parametrize("damage", ["flipped bit", "emptied disk"])
def test_a_damaged_broker_that_is_the_first_to_start_leaves_the_lead_to_those_that_have_everything(
    cluster: Cluster, damage: str
) -> None:
    victim = cluster.leader(TOPIC)
    others = [each for each in cluster.brokers if each != victim]
    lose_power(cluster)
    if damage == "flipped bit":
        flip(cluster, victim, 100)
    else:
        shutil.rmtree(data_of(cluster, victim))
    start_without_waiting(cluster, victim)
    # It has declined to lead; or the others were registered still, and it is told to follow one of them.
    lacks = re.compile("(it|this replica) lacks")
    wait_until(lambda: lacks.search(cluster.brokers[victim].log) is not None, "the damage is noticed", WAIT_S)
    start_without_waiting(cluster, *others)
    check_whole(cluster, COUNT)
    produce(cluster, range(COUNT, COUNT + 10))
    check_whole(cluster, COUNT + 10)


def test_a_running_leader_whose_damage_keeps_a_follower_back_gives_the_lead_away_and_is_made_good(
    cluster: Cluster,
) -> None:
    leader = cluster.leader(TOPIC)
    emptied = leader % 3 + 1
    cluster.kill(emptied)
    shutil.rmtree(data_of(cluster, emptied))
    flip(cluster, leader, 100)
    start_without_waiting(cluster, emptied)
    wait_until(lambda: cluster.leader(TOPIC) not in (leader, emptied, -1), "another broker leads", WAIT_S)
    check_whole(cluster, COUNT)
    assert 1 <= cluster.brokers[emptied].log.count("CORRUPT_MESSAGE") <= 2, "it is told once for each offset"
    assert re.search(rf"{TOPIC}-0 is damaged at offset \d+", cluster.brokers[leader].log)
    assert metric(cluster, emptied, "replica_damaged_answers_total") >= 1
    damaged = [metric(cluster, each, "replica_damaged_logs_total") for each in (leader, emptied)]
    assert damaged == [1, 0]


# --- what the log cleaner finds

KEYS = 10
END = 30 * KEYS


def append_newer(broker: WholeBroker) -> dict[bytes | None, bytes | None]:
    """Append batches with a newer value of each key. Returns the newest."""
    newest: dict[bytes | None, bytes | None] = {}
    for number in range(END // KEYS):
        newest = {b"key %d" % key: b"value %d of %d" % (number, key) for key in range(KEYS)}
        batch = encode_batch([(1000 + number, key, value) for key, value in newest.items()])
        data = M.ProduceRequest.PartitionProduceData(index=0, records=batch)
        to = M.ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
        answer = broker.call(ApiKey.PRODUCE, 7, M.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[to]))
        assert answer.responses[0].partition_responses[0].error_code == 0
    return newest


def compact(broker: WholeBroker) -> None:
    R = M.IncrementalAlterConfigsRequest
    config = R.AlterableConfig(name="cleanup.policy", config_operation=0, value="compact")
    resource = R.AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[config])
    answer = broker.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, R(resources=[resource]))
    assert answer.responses[0].error_code == 0


def is_clean(broker: WholeBroker, newest: Mapping[bytes | None, bytes | None]) -> bool:
    """Return whether a compacted log has the newest values, and hardly any others."""
    found = read_all(broker.log_of(TOPIC, 0))
    return len(found) < 10 * KEYS and {record.key: record.value for record in found} == newest


@pytest.mark.parametrize("leads", [False, True])
def test_what_the_log_cleaner_finds_damaged_is_made_good_and_cleaned(members: Members, leads: bool) -> None:
    for node_id in (1, 2):
        members.start(node_id, log__cleaner__backoff__ms=20)
    members.settle(1, 2)
    await_that(lambda: any(members.cluster(each).is_controller for each in (1, 2)))
    configs = {"segment__bytes": "1000", "min__cleanable__dirty__ratio": "0"}
    assert members.create(TOPIC, 1, 2, **configs).error_code == 0
    await_that(lambda: members.leader_of(TOPIC, 0) is not None)
    leader = members.leader_of(TOPIC, 0)
    assert leader is not None
    newest = append_newer(leader)
    victim = next(each for each in members.running.values() if (each is leader) == leads)
    log = victim.log_of(TOPIC, 0)
    before = log.history
    damaged = sorted(Path(log.path).glob("*.log"))[3]
    at = damaged.read_bytes().index(b"value")
    with damaged.open("r+b") as file:
        file.seek(at)
        file.write(b"V")
    compact(leader)
    await_that(lambda: log.history != before and log.high_watermark == END)  # it was cut, and copied again
    await_that(lambda: members.leader_of(TOPIC, 0) not in (None, victim if leads else None))
    for each in members.running.values():
        await_that(lambda each=each: is_clean(each, newest))
        assert each.log_of(TOPIC, 0).log_end_offset == END
        assert each.broker._logs.cleaner.uncleanable() == {}
    assert victim.broker._home.partitions.counts.damaged == 1
