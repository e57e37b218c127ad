"""Fetches wait while everything that they wait for changes: nothing is lost, nothing is freed twice."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path

from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch, read_records
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.models.fetch_machine import fetch_request, partition_request, produce_request
from tests.kit.threads import run_all

PARTITIONS = 4
RECORDS = 1200


def test_every_tail_consumer_sees_every_record_once_and_in_order(tmp_path: Path) -> None:
    with SmallBroker(tmp_path, processor_count=3) as broker:
        topic_id = broker.create_topic("t", PARTITIONS)
        barrier = threading.Barrier(6 + 2)

        def consume(version: int, with_session: bool, min_bytes: int) -> None:
            key = topic_id if version >= 13 else "t"
            offsets = [0] * PARTITIONS
            session_id, epoch = 0, 0 if with_session else -1
            with WireClient("127.0.0.1", broker.port) as client:
                barrier.wait()
                changed = set(range(PARTITIONS))
                while sum(offsets) < PARTITIONS * RECORDS:
                    asked = [partition_request(key, each, offsets[each], 3000) for each in sorted(changed)]
                    request = fetch_request(
                        version,
                        asked,
                        max_wait_ms=200,
                        min_bytes=min_bytes,
                        max_bytes=5000,
                        session_id=session_id,
                        session_epoch=epoch,
                    )
                    response = client.call(ApiKey.FETCH, version, request)
                    assert response.error_code == 0
                    changed = set() if with_session else set(range(PARTITIONS))
                    if with_session:
                        session_id, epoch = response.session_id, epoch + 1
                        assert session_id
                    for topic in response.responses:
                        for part in topic.partitions:
                            assert part.error_code == 0
                            for record in read_records(part.records):
                                if record.offset < offsets[part.partition_index]:
                                    continue  # the batch begins before what was asked for
                                assert record.offset == offsets[part.partition_index]
                                assert record.value == b"%d-%d" % (part.partition_index, record.offset)
                                offsets[part.partition_index] += 1
                                changed.add(part.partition_index)

        def produce(partition_ids: list[int]) -> None:
            rng = random.Random(partition_ids[0])
            sent = dict.fromkeys(partition_ids, 0)
            with WireClient("127.0.0.1", broker.port) as client:
                barrier.wait()
                while any(count < RECORDS for count in sent.values()):
                    partition_id = rng.choice([each for each, count in sent.items() if count < RECORDS])
                    first = sent[partition_id]
                    count = min(rng.randint(1, 5), RECORDS - first)
                    values = [b"%d-%d" % (partition_id, first + i) for i in range(count)]
                    batch = encode_batch([(1, None, value) for value in values])
                    response = client.call(ApiKey.PRODUCE, 9, produce_request("t", partition_id, batch))
                    assert response.responses[0].partition_responses[0].base_offset == first
                    sent[partition_id] += count

        consumers = [(12, True, 1), (17, True, 1), (17, True, 500), (4, False, 1), (12, False, 1), (17, False, 2000)]
        bodies = [partial(consume, *each) for each in consumers] + [partial(produce, each) for each in ([0, 1], [2, 3])]
        run_all(*bodies)
        assert all(broker.waiting_fetches("t", each) == 0 for each in range(PARTITIONS))


def test_connections_topics_and_sessions_may_go_at_any_moment(tmp_path: Path) -> None:
    with SmallBroker(tmp_path, processor_count=3, session_slots=4, min_eviction_ms=-1) as broker:
        names = [f"t{each}" for each in range(3)]
        ids = {name: broker.create_topic(name, 2) for name in names}
        broker.create_topic("always", 1)
        shared = [0, 0]  # a session that all use at once, and its epoch as last seen
        stop = threading.Event()

        def consume(seed: int) -> None:
            rng = random.Random(seed)
            client = WireClient("127.0.0.1", broker.port)
            for _ in range(250):
                version = rng.choice([4, 11, 12, 13, 17])
                keys = [(ids[name] if version >= 13 else name) for name in names]
                parts = [partition_request(rng.choice(keys), rng.randint(0, 2), 0) for _ in range(rng.randint(0, 4))]
                parts.sort(key=lambda each: str(each[0]))
                session_id, epoch = rng.choice([(0, -1), (0, 0), tuple(shared)])
                forgotten = [(rng.choice(keys), rng.randint(0, 1))] if rng.random() < 0.3 else []
                request = fetch_request(
                    version,
                    parts,
                    forgotten,
                    max_wait_ms=rng.choice([0, 1, 3, 20]),
                    min_bytes=rng.choice([1, 1, 400, 100_000]),
                    session_id=session_id,
                    session_epoch=epoch,
                )
                asked = client.send(ApiKey.FETCH, version, request)
                if rng.random() < 0.2:
                    client.close()
                    client = WireClient("127.0.0.1", broker.port)
                    continue
                response = client.receive(ApiKey.FETCH, version, asked)
                if response.session_id and not response.error_code:
                    shared[:] = response.session_id, max(epoch, 0) + 1
            client.close()

        def produce() -> None:
            rng = random.Random(77)
            batch = encode_batch([(1, None, b"v" * 100)])
            with WireClient("127.0.0.1", broker.port) as client:
                while not stop.is_set():
                    request = produce_request(rng.choice(names), rng.randint(0, 1), batch)
                    error = client.call(ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0].error_code
                    assert error in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

        def recreate() -> None:
            rng = random.Random(78)
            while not stop.is_set():
                name = rng.choice(names)
                broker.delete_topic(name)
                ids[name] = broker.create_topic(name, 2)

        consumers = [threading.Thread(target=consume, args=(seed,)) for seed in range(6)]
        others = [threading.Thread(target=produce), threading.Thread(target=recreate)]
        for thread in consumers + others:
            thread.start()
        for thread in consumers:
            thread.join()
        stop.set()
        for thread in others:
            thread.join()

        with WireClient("127.0.0.1", broker.port) as client:
            for _ in range(8):
                client.call(ApiKey.FETCH, 12, fetch_request(12, [partition_request("always", 0, 0)]))
        assert broker.sessions.counts()[0] <= 4
        assert not any(log.state.waiting_fetches for log in broker.logs.logs() if log.topic_partition.topic == "always")


def test_requests_cut_anywhere_leave_nothing_waiting(tmp_path: Path) -> None:
    with SmallBroker(tmp_path, processor_count=2) as broker:
        broker.create_topic("t", 1)
        for _ in range(3):
            clients = [WireClient("127.0.0.1", broker.port) for _ in range(50)]
            for client in clients:
                client.send(
                    ApiKey.FETCH, 12, fetch_request(12, [partition_request("t", 0, 0)], max_wait_ms=5, session_epoch=0)
                )
            for client in clients[::2]:
                client.socket.shutdown(2)
            for client in clients[1::2]:
                try:
                    client.read_frame()
                except ConnectionClosed:
                    raise AssertionError("a neighbour's end closed this connection") from None
            for client in clients:
                client.close()
        broker.log("t", 0).append(encode_batch([(1, None, b"v")]))
        with WireClient("127.0.0.1", broker.port) as client:
            client.call(ApiKey.FETCH, 12, fetch_request(12, [partition_request("t", 0, 0)]))
