"""Rows about transactions: how many a second, what they cost the broker, and what read_committed costs."""

from __future__ import annotations

import json
import re
import subprocess

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from perf import tools
from perf.duel import Duel, Figure, Measured, absolute, compared
from perf.peers import Kbroker, Peer
from tests.kit.clients.wire import WireClient

SECONDS = 6.0
WARM_UP_S = 1.0
PARTITIONS = 4
VALUE = bytes(100)

LOGGED = 2_000_000
PER_TRANSACTION = 100
ABORTED_EVERY = 10

IDS = 5_000


def throughput() -> list[Figure]:
    """Transactions of 1, 10 and 1,000 records of 100 B to one of 4 partitions, by the C client: 1 and 32 producers."""
    figures = []
    with Duel() as duel:
        for producers in (1, 32):
            for records in (1, 10, 1000):

                def load(peer: Peer, producers: int = producers, records: int = records) -> Measured:
                    return commit_transactions(peer, duel.new_topic(peer, PARTITIONS), producers, records)

                ours, kafka = duel.alternate(load)
                what = f"of {records:,} record{'s'[: records > 1]}, {producers} producer{'s'[: producers > 1]}"
                figures.append(compared(f"transactions {what}", ours["per_s"], kafka["per_s"], ">= 1.0", ">= 2", "/s"))
                figures.append(
                    compared(
                        f"broker CPU per transaction {what}", ours["cpu_us"], kafka["cpu_us"], "<= 0.5", "<= 0.25", "us"
                    )
                )
    return figures


def commit_transactions(peer: Peer, topic: str, producers: int, records: int, seconds: float = SECONDS) -> Measured:
    """Return how many transactions `producers` of perf/c/transact.c commit, and the broker's CPU for each."""
    command = [tools.transact(), peer.address, topic, PARTITIONS, producers, records, WARM_UP_S, seconds]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        try:
            load.stdout.readline()
            before = peer.cpu_seconds()
            line = load.stdout.readline()
            cpu = peer.cpu_seconds() - before
            load.wait(60)
        finally:
            load.kill()
    if load.returncode != 0:
        raise RuntimeError(f"transact: exit {load.returncode}")
    measured = json.loads(line)
    done = measured["transactions"]
    return {"per_s": done / measured["seconds"], "cpu_us": cpu / max(done, 1) * 1e6}


def read_committed() -> list[Figure]:
    """The cost of read_committed, on a log of transactions of 100 records of which every tenth was aborted.

    It is the broker's CPU for a committed record that is read with read_committed, as a multiple of what a record costs
    with read_uncommitted: 1.0 would be isolation for free.
    """
    with Duel() as duel:
        topics = {}
        for peer in (duel.ours, duel.peer):
            topics[peer.name] = duel.new_topic(peer, 1)
            write_log(peer, topics[peer.name])

        def load(peer: Peer) -> Measured:
            cpu = {level: cpu_of_reading(peer, topics[peer.name], level) for level in ("uncommitted", "committed")}
            return {"cost": cpu["committed"] / cpu["uncommitted"], "cpu_us": cpu["committed"]}

        ours, kafka = duel.alternate(load, rounds=5, writes=False)
    return [
        compared("cost of read_committed over read_uncommitted", ours["cost"], kafka["cost"], "<= 1.0", "<= 0.7"),
        compared("broker CPU per 1,000 records read_committed", ours["cpu_us"], kafka["cpu_us"], "", "", "us"),
    ]


def write_log(peer: Peer, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": peer.address, "transactional.id": topic, "linger.ms": 1})
    producer.init_transactions(60)
    for number in range(LOGGED // PER_TRANSACTION):
        producer.begin_transaction()
        for _ in range(PER_TRANSACTION):
            producer.produce(topic, VALUE, partition=0)
        if number % ABORTED_EVERY:
            producer.commit_transaction(60)
        else:
            producer.flush(60)
            producer.abort_transaction(60)


def cpu_of_reading(peer: Peer, topic: str, level: str) -> float:
    """Return the broker's CPU, in microseconds, for 1,000 records that the client gets."""
    aborted = LOGGED // ABORTED_EVERY if level == "committed" else 0
    command = [
        tools.rdkafka_performance(), "-C", "-t", topic, "-p", "0", "-c", str(LOGGED - aborted), "-o", "beginning",
        "-b", peer.address, "-X", f"isolation.level=read_{level}", "-X", "fetch.queue.backoff.ms=5",
        "-X", "queued.min.messages=1000000",
    ]  # fmt: skip
    before = peer.cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    cpu = peer.cpu_seconds() - before
    if not re.search(r"(\d+) msgs/s", done.stdout):
        raise RuntimeError(f"rdkafka_performance: {(done.stderr or done.stdout)[-500:]}")
    return cpu / (LOGGED - aborted) * 1e9


def memory() -> list[Figure]:
    """The memory that an open transaction with one partition takes in the broker, measured with 5,000 of them."""
    runs = []
    for _ in range(3):
        with Kbroker() as peer:
            peer.create_topic("open", PARTITIONS)
            open_transactions(peer, "warm-up", 100)
            before = peer.memory_mb()
            open_transactions(peer, "id", IDS)
            runs.append((peer.memory_mb() - before) * 1e3 / IDS)
    return [absolute("memory per open transactional id", runs, "<= 2", "<= 1", "KB")]


def open_transactions(peer: Peer, prefix: str, count: int) -> None:
    with WireClient("127.0.0.1", peer.port) as client:
        # The first request for the coordinator makes it.
        client.call(ApiKey.FIND_COORDINATOR, 1, M.FindCoordinatorRequest(key=prefix, key_type=1))
        for number in range(count):
            transactional_id = f"{prefix}-{number}"
            init = M.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=600_000)
            producer = client.call(ApiKey.INIT_PRODUCER_ID, 1, init)
            if producer.error_code:
                raise RuntimeError(f"{transactional_id}: InitProducerId: error {producer.error_code}")
            add = M.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[
                    M.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="open", partitions=[number % PARTITIONS])
                ],
            )
            added = client.call(ApiKey.ADD_PARTITIONS_TO_TXN, 0, add)
            (topic,) = added.results_by_topic_v3_and_below
            if topic.results_by_partition[0].partition_error_code:
                raise RuntimeError(f"{transactional_id} takes no partition")
