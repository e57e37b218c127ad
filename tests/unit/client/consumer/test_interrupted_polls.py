"""Records of a poll that is interrupted: nobody has got them, so they come again and no commit goes past them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from kbroker._core.client.consumer.record import ConsumerRecord
from kbroker._core.client.consumer.records import Records
from kbroker.client import AsyncConsumer
from kbroker.client.consumer.consumer import Consumer
from tests.unit.client.consumer.conftest import SECONDS, MakeMembers, Members

PARTITIONS = 2
COUNT = 20  # records of each partition


class Stop(Exception):
    """What a handler of signals raises."""


class Interruption:
    """For `sys.setprofile`: a signal whose handler raises at the n-th of the places where Python runs handlers. These
    are the beginnings of functions, and what is right behind a call of compiled code.
    """

    def __init__(self, at: int):
        self.at = at
        self.seen = 0

    def look(self, _: FrameType, event: str, what: object) -> None:
        if event not in ("call", "c_return") or what is sys.setprofile:
            return
        self.seen += 1
        if self.seen == self.at:
            raise Stop


class Reader:
    """What somebody has got of each partition, and what a consumer thinks he has."""

    def __init__(self, members: Members, consumer: Consumer):
        self.topic = members.topic
        self.consumer = consumer
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.interruptions = 0

    def take(self, rows: list[tuple[int, int]]) -> None:
        for partition, offset in rows:
            assert offset == self.positions[partition], "neither lost nor given twice"
            self.positions[partition] += 1

    def check(self) -> None:
        """While the exception is dealt with: its traceback has the frames of the poll."""
        self.interruptions += 1
        for partition, position in self.positions.items():
            assert self.consumer.position(self.topic, partition) in (position, None)

    def check_commit(self) -> None:
        if self.consumer.options["group.id"] is None:
            return
        self.consumer.commit()
        committed = self.consumer.committed([(self.topic, partition) for partition in self.positions])
        assert {each.partition_id: at and at.offset for each, at in committed.items()} == self.positions

    @property
    def is_done(self) -> bool:
        return set(self.positions.values()) == {COUNT}


def rows_of(records: Any) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def polled(consumer: Consumer) -> Any:
    return consumer.poll(SECONDS, 4)


def called_by_compiled_code(consumer: Consumer) -> Any:
    return next(iter(lambda: consumer.poll(SECONDS, 4), None))


def arrow(consumer: Consumer) -> Any:
    return consumer.poll_arrow(SECONDS, 4)


def numpy(consumer: Consumer) -> Any:
    return consumer.poll_numpy(SECONDS, 4)


WAYS: dict[Callable[[Consumer], Any], Callable[[Any], list[tuple[int, int]]]] = {
    polled: rows_of,
    called_by_compiled_code: rows_of,
    arrow: lambda batch: list(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)),
    numpy: lambda arrays: list(zip(arrays["partition"].tolist(), arrays["offset"].tolist(), strict=True)),
}


def fill(members: Members) -> None:
    for partition in range(PARTITIONS):
        members.append(partition, [b"%d" % number for number in range(COUNT)])


@pytest.fixture(scope="module", autouse=True)
def imports() -> None:
    """None is to be interrupted: Python does not get over that."""
    Records().arrow(("offset",))
    Records().numpy(("offset",))


@pytest.fixture(params=["by hand", "classic", "consumer"])
def reader(members_of: MakeMembers, request: pytest.FixtureRequest) -> Iterator[Reader]:
    members = members_of(PARTITIONS)
    fill(members)
    if request.param == "by hand":
        consumer = members.consumer(enable_auto_commit=False)
        consumer.assign([(members.topic, partition) for partition in range(PARTITIONS)])
    else:
        consumer = members.join(group_protocol=request.param, enable_auto_commit=False)
        members.poll_until(lambda: len(consumer.assignment()) == PARTITIONS)
        consumer.seek_to_beginning()
    yield Reader(members, consumer)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_interruption_anywhere_in_a_poll_costs_no_record(reader: Reader, way: Callable[[Consumer], Any]) -> None:
    at = 1
    while not reader.is_done:
        try:
            sys.setprofile(Interruption(at).look)
            found = way(reader.consumer)
            sys.setprofile(None)
        except Stop:
            reader.check()
            at += 1
        else:
            reader.take(WAYS[way](found))
            reader.check_commit()
            at = sys.maxsize  # it has been interrupted everywhere
    assert reader.interruptions > 10


def test_signals_at_any_moment_cost_no_record(reader: Reader) -> None:
    is_armed = False

    def ring(*_: object) -> None:
        if is_armed:
            raise Stop

    before = signal.signal(signal.SIGALRM, ring)
    try:
        while not reader.is_done:
            signal.setitimer(signal.ITIMER_REAL, 20e-6 + 1e-6 * (reader.interruptions % 300), 50e-6)
            try:
                is_armed = True
                records = reader.consumer.poll(SECONDS, 4)
                is_armed = False
            except Stop:
                is_armed = False
                reader.check()
            else:
                reader.take(rows_of(records))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            records = None
    finally:
        signal.signal(signal.SIGALRM, before)


def test_records_that_nobody_keeps_or_looks_at_come_again(members_of: MakeMembers) -> None:
    members = members_of(PARTITIONS)
    fill(members)
    consumer = members.consumer(enable_auto_commit=False)
    consumer.assign([(members.topic, 0)])
    consumer.poll(SECONDS, 5)
    assert consumer.position(members.topic, 0) in (0, None)
    kept = consumer.poll(SECONDS, 5)
    assert consumer.position(members.topic, 0) == 5
    assert len(consumer.poll(SECONDS, 5)) == 5
    assert consumer.position(members.topic, 0) == 10
    del kept
    assert rows_of(consumer.poll(SECONDS, 1)) == [(0, 10)]
    consumer.seek(members.topic, 0, 12)
    consumer.poll(SECONDS, 5)
    consumer.seek(members.topic, 0, 18)
    assert rows_of(consumer.poll(SECONDS, 1)) == [(0, 18)]


def test_tasks_that_are_cancelled_with_records_in_hand_cost_none(members_of: MakeMembers) -> None:
    members = members_of(PARTITIONS)
    fill(members)
    found: list[ConsumerRecord] = []

    async def read() -> int:
        cancelled = 0
        async with AsyncConsumer(
            bootstrap_servers=f"127.0.0.1:{members.broker.port}",
            group_id=members.group_id,
            auto_offset_reset="earliest",
        ) as consumer:
            await consumer.subscribe(members.topic)
            while len(found) < PARTITIONS * COUNT:
                try:
                    found.extend(await cancelled_behind(consumer))
                except asyncio.CancelledError:
                    cancelled += 1
                found.extend(await consumer.poll(SECONDS, 3))  # no traceback has the task any more
        return cancelled

    async def cancelled_behind(consumer: AsyncConsumer) -> Records:
        polling = asyncio.create_task(consumer.poll(SECONDS, 3))
        polling.add_done_callback(lambda _: waiting.cancel())

        async def wait() -> Records:
            return await polling

        waiting = asyncio.create_task(wait())
        return await waiting

    assert asyncio.run(read()) > 5
    assert sorted(rows_of(found)) == [(n, at) for n in range(PARTITIONS) for at in range(COUNT)]


def test_a_poll_in_a_thread_that_nobody_waits_for_any_more_costs_no_record(members_of: MakeMembers) -> None:
    members = members_of(PARTITIONS)
    fill(members)
    consumer = members.consumer(enable_auto_commit=False)

    async def abandon() -> None:
        polled = asyncio.get_running_loop().run_in_executor(None, consumer.poll, SECONDS, 5)
        await asyncio.sleep(0)
        polled.cancel()

    consumer.assign([(members.topic, 0)])
    asyncio.run(abandon())  # which ends when its threads have
    assert rows_of(consumer.poll(SECONDS, 5)) == [(0, at) for at in range(5)]
