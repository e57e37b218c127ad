"""What goes wrong in the middle of something: a rebalance, a registration, a shutdown."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

import pytest

from kbroker.client import ConsumerRebalanceListener, ConsumerRecord, UsageError
from kbroker.coordination.store import NoNode, NotEmpty, Store
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.unit.client.connector.conftest import PARTITIONS, WAIT_S, Place


class Told(ConsumerRebalanceListener):
    """Does `at_release` or `at_start` once, when the connector is `watched`, and keeps what that raised."""

    def __init__(self, *, at_release: Callable[[], object] | None = None, at_start: Callable[[], object] | None = None):
        self.at_release, self.at_start = at_release, at_start
        self.is_done = threading.Event()
        self.error: Exception | None = None

    def before_releasing_partitions(self, partitions: Mapping[str, set[int]]) -> None:
        call, self.at_release = self.at_release, None
        self._do(call)

    def before_starting_fetchers(self, consumer_id: str, assignment: Mapping[str, Mapping[int, str]]) -> None:
        call, self.at_start = self.at_start, None
        self._do(call)

    def _do(self, call: Callable[[], object] | None) -> None:
        if call is None:
            return
        try:
            call()
        except Exception as error:
            self.error = error
        self.is_done.set()


def test_what_could_not_be_let_go_of_is_let_go_of_later(
    own: tuple[Place, ZooKeeperProcess], caplog: pytest.LogCaptureFixture
) -> None:
    place, server = own
    caplog.set_level(logging.INFO, "kbroker.client")
    told = Told(at_release=server.stop)
    with place.connector(zookeeper_session_timeout_ms=2_000) as first:
        first.set_consumer_rebalance_listener(told)
        first.create_message_streams({place.topic: 1})
        second = place.connector(zookeeper_session_timeout_ms=30_000)
        joining = threading.Thread(target=second.create_message_streams, args=({place.topic: 1},))
        joining.start()
        place.wait(lambda: f"{first.consumer_id}: attempt 1 to rebalance: ZooKeeper" in caplog.text)
        server.start()
        place.wait(lambda: place.is_shared_by(first, second))
        joining.join(WAIT_S)
        second.shutdown()
    assert told.error is None


def test_a_shutdown_does_not_wait_for_an_id_that_is_taken(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    group = f"/consumers/{place.group}"
    for name in ("", "/ids"):
        place.tree.create(f"{group}{name}")
    place.tree.create(f"{group}/ids/{place.group}_taken", b"somebody")
    connector = place.connector(consumer_id="taken", zookeeper_session_timeout_ms=30_000)
    given: list[list[ConsumerRecord]] = []

    def read() -> None:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        given.append(list(stream))

    reader = threading.Thread(target=read)
    reader.start()
    place.wait(lambda: place.tree.exists(f"{group}/offsets") is not None)
    connector.shutdown()
    reader.join(WAIT_S)
    assert given == [[]]
    assert caplog.messages == []
    assert place.tree.children(f"{group}/ids") == [f"{place.group}_taken"]


def test_offsets_are_committed_though_the_group_does_not_agree(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kbroker.client")
    with place.reading(auto_commit_interval_ms=50, rebalance_max_retries=5) as first:
        place.wait(lambda: place.is_shared_by(first.connector))
        place.tree.create(f"/consumers/{place.group}/owners/{place.topic}/{PARTITIONS}", b"somebody")
        place.admin.create_partitions(place.topic, PARTITIONS + 1)
        place.wait(lambda: f"{place.topic}-{PARTITIONS} is owned by somebody" in caplog.text)
        for sent in range(1, 4):
            place.producer.send(place.topic, b"again", partition=0).result(WAIT_S)
            place.wait(lambda sent=sent: place.offsets().get(0) == sent)


def delete_tree(store: Store, path: str) -> None:
    """Once more where others make nodes meanwhile."""
    with contextlib.suppress(NoNode):
        while True:
            for name in store.children(path):
                delete_tree(store, f"{path}/{name}")
            with contextlib.suppress(NotEmpty):
                store.delete(path)
                break


def test_a_group_that_somebody_deletes_is_made_anew(place: Place) -> None:
    with place.reading() as first, place.reading() as second:
        place.wait(lambda: place.is_shared_by(first.connector, second.connector))
        delete_tree(place.tree, f"/consumers/{place.group}")
        place.wait(lambda: place.is_shared_by(first.connector, second.connector))
        values = place.send(40)
        place.wait(lambda: {value for each in (first, second) for value in each.values if value is not None} >= values)


def test_a_listener_cannot_shut_its_connector_down(place: Place) -> None:
    with place.connector() as first:
        told = Told(at_release=first.shutdown)
        first.set_consumer_rebalance_listener(told)
        first.create_message_streams({place.topic: 1})
        with place.reading() as second:
            place.wait(lambda: place.is_shared_by(first, second.connector))
            assert isinstance(told.error, UsageError)


def test_an_offset_that_has_gone_with_a_session_is_committed_again(place: Place, zookeeper: ZooKeeperProcess) -> None:
    values = place.send(40)
    with place.reading(auto_commit_enable=False) as first:
        place.wait(lambda: set(first.values) == values)
        first.connector.commit_offsets()
        assert sum(place.offsets().values()) == len(values)
        delete_tree(place.tree, f"/consumers/{place.group}/offsets/{place.topic}")
        zookeeper.expire(first.connector._session.store)
        place.wait(lambda: len(first.values) == 2 * len(values))  # auto.offset.reset
        first.connector.commit_offsets()
        assert sum(place.offsets().values()) == len(values)


@pytest.mark.parametrize("moment", ["at_release", "at_start"])
def test_a_session_that_expires_in_a_rebalance(place: Place, zookeeper: ZooKeeperProcess, moment: str) -> None:
    values = place.send(40)
    with place.reading() as first:
        place.wait(lambda: place.is_shared_by(first.connector))
        told = Told(**{moment: lambda: zookeeper.expire(first.connector._session.store)})
        first.connector._member.listener = told
        with place.reading() as second:
            place.wait(lambda: place.is_shared_by(first.connector, second.connector))
            values |= place.send(40)
        assert told.is_done.wait(WAIT_S)  # when the other has gone, if not before
        place.wait(lambda: place.is_shared_by(first.connector))
        values |= place.send(40)
        place.wait(lambda: {value for each in (first, second) for value in each.values if value is not None} >= values)
    assert told.error is None


def test_a_stream_whose_waiting_chunks_go_to_others_reads_on(place: Place) -> None:
    options = {"queued_max_message_chunks": 1, "consumer_timeout_ms": 1000 * int(WAIT_S)}
    with place.connector(consumer_id="a", **options) as first:
        idle, read = first.create_message_streams({place.topic: 2})[place.topic]
        assert [each.partition_id for each in idle.partitions()] == [0, 1]
        place.producer.send(place.topic, b"goes", partition=1).result(WAIT_S)
        while not idle._waiting:
            place.producer.send(place.topic, b"turn", partition=2).result(WAIT_S)
            assert next(read).value == b"turn"
        with place.reading(consumer_id="z", streams=2) as second:
            place.wait(lambda: place.is_shared_by(first, second.connector))
            assert [each.partition_id for each in idle.partitions()] == [0]
            place.producer.send(place.topic, b"stays", partition=0).result(WAIT_S)
            assert next(idle).value == b"stays"
            assert next(read).value == b"goes"


INTERRUPTED = """
import os, signal, sys, threading
from kbroker.client import ConsumerConnector, ConsumerTimeout

connector = ConsumerConnector(zookeeper_connect=sys.argv[1], group_id="interrupted", auto_offset_reset="smallest",
                              queued_max_message_chunks=2, fetch_message_max_bytes=2_000, consumer_timeout_ms=1_000)
(stream,) = connector.create_message_streams({sys.argv[2]: 1})[sys.argv[2]]
given, interrupts, is_ready = [], 0, threading.Event()
sys.setswitchinterval(1e-5)

def ring():
    for _ in range(200):
        is_ready.wait()
        is_ready.clear()
        os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=ring, daemon=True).start()
while True:
    try:
        for number, record in enumerate(stream):
            given.append((record.partition, record.offset))
            if number == 150:
                is_ready.set()
    except KeyboardInterrupt:
        interrupts += 1
    except ConsumerTimeout:
        break
lost = sum(1 + max(each) - len(set(each)) for each in ([n for p, n in given if p == q] for q in {p for p, n in given}))
print(interrupts, lost, len(given) - len(set(given)))
connector.shutdown()
"""


def test_a_stream_goes_on_after_ctrl_c_where_it_was(place: Place) -> None:
    for _ in range(60):
        place.send(1_000)
    command = [sys.executable, "-c", INTERRUPTED, place.address, place.topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    interrupts, lost, twice = map(int, done.stdout.split())
    assert interrupts > 20
    assert lost <= interrupts  # the one in the loop's hands
    assert twice == 0
