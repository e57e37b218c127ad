"""`for record in consumer`: what has not come out of the loop is not behind any position, and is not lost."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kbroker._core.client.consumer.record import ConsumerRecord
from kbroker.client import AsyncConsumer, ClientClosed, OffsetAndMetadata
from kbroker.client.consumer.consumer import Consumer
from tests.unit.client.consumer.conftest import SECONDS, Heard, MakeMembers, Members

COUNT = 60  # records of each partition of the model


def some(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """So many by a loop that is left then."""
    return list(itertools.islice(consumer, count))


def places(records: list[ConsumerRecord]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def filled(members: Members, partitions: int, count: int) -> None:
    for partition in range(partitions):
        members.append(partition, [b"%d %d" % (partition, number) for number in range(count)])


class Loops(RuleBasedStateMachine):
    """One partition or two, read in any way: the model is where each stands, a number."""

    members: Members
    partitions = st.integers(0, 1)

    @initialize()
    def begin(self) -> None:
        self.group_id = f"{self.members.group_id}-{next(groups)}"
        self.positions = {0: 0, 1: 0}
        self.committed = {0: 0, 1: 0}
        self.open()

    def open(self) -> None:
        self.paused: set[int] = set()
        self.consumer = self.members.consumer(group_id=self.group_id, enable_auto_commit=False)
        self.members.alive.remove(self.consumer)
        self.consumer.assign([(self.members.topic, n) for n in self.positions])

    def is_left(self) -> bool:
        return any(at < COUNT for n, at in self.positions.items() if n not in self.paused)

    def came(self, record: ConsumerRecord) -> None:
        assert record.partition not in self.paused
        assert record.offset == self.positions[record.partition]
        self.positions[record.partition] += 1

    @rule(count=st.integers(1, 30))
    def loop(self, count: int) -> None:
        if not self.is_left():
            return
        for record in self.consumer:
            self.came(record)
            self.stands_behind_what_came()
            count -= 1
            if count == 0 or not self.is_left():
                break

    @rule(most=st.integers(1, 50))
    def poll(self, most: int) -> None:
        for record in self.consumer.poll(0.05, most):
            self.came(record)

    @rule()
    def commit(self) -> None:
        self.consumer.commit()
        self.committed = dict(self.positions)

    @rule(partition=partitions, offset=st.integers(0, COUNT - 1))
    def seek(self, partition: int, offset: int) -> None:
        self.consumer.seek(self.members.topic, partition, offset)
        self.positions[partition] = offset

    @rule(partition=partitions)
    def pause(self, partition: int) -> None:
        self.consumer.pause(self.members.topic, partition)
        self.paused.add(partition)

    @rule(partition=partitions)
    def resume(self, partition: int) -> None:
        self.consumer.resume(self.members.topic, partition)
        self.paused.discard(partition)

    @rule()
    def begin_anew(self) -> None:
        """Without a commit: from what was committed."""
        self.consumer.close()
        self.positions = dict(self.committed)
        self.open()

    @invariant()
    def stands_behind_what_came(self) -> None:
        for partition, at in getattr(self, "positions", {}).items():
            # None: the group has not been asked yet.
            assert self.consumer.position(self.members.topic, partition) in (at, None)

    def teardown(self) -> None:
        if hasattr(self, "consumer"):
            self.consumer.close()


groups = itertools.count()


@pytest.mark.timeout(240)
def test_any_order_of_loops_polls_and_commits(members_of: MakeMembers) -> None:
    class OfTopic(Loops):
        members = members_of(2)

    filled(OfTopic.members, 2, COUNT)
    quick = settings(
        max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(OfTopic, settings=quick)


def test_what_a_crash_in_a_loop_leaves_comes_again(members_of: MakeMembers) -> None:
    members = members_of(1)
    filled(members, 1, 50)
    crashed = members.join(enable_auto_commit=False)
    assert places(some(crashed, 20)) == [(0, n) for n in range(20)]
    crashed.commit()
    assert crashed.committed([(members.topic, 0)]) == {(members.topic, 0): OffsetAndMetadata(20, "", 0)}
    assert places(some(crashed, 10)) == [(0, n) for n in range(20, 30)]
    members.alive.remove(crashed)
    crashed.__exit__(RuntimeError, None, None)
    assert places(some(members.join(), 30)) == [(0, n) for n in range(20, 50)]


def test_close_commits_what_came_out_of_the_loop_and_no_more(members_of: MakeMembers) -> None:
    members = members_of(2)
    filled(members, 2, 30)
    found: list[tuple[int, int]] = []
    for count in (7, 1, 22, 30):
        consumer = members.join()
        found += places(some(consumer, count))
        members.close(consumer)
    assert sorted(found) == [(partition, n) for partition in range(2) for n in range(30)]


def test_a_loop_that_was_left_goes_on_and_so_does_a_poll(members_of: MakeMembers) -> None:
    members = members_of(1)
    filled(members, 1, 20)
    consumer = members.join(enable_auto_commit=False)
    first = iter(consumer)
    assert next(first).offset == 0
    assert next(iter(consumer)).offset == 1
    assert [record.offset for record in consumer.poll(SECONDS, 3)] == [2, 3, 4]
    assert next(first).offset == 5
    assert consumer.position(members.topic, 0) == 6
    consumer.seek(members.topic, 0, 15)
    assert next(first).offset == 15
    consumer.pause(members.topic, 0)
    assert len(consumer.poll(0.05)) == 0
    assert consumer.position(members.topic, 0) == 16
    consumer.resume(members.topic, 0)
    assert [record.offset for record in some(consumer, 4)] == [16, 17, 18, 19]
    consumer.close()
    members.alive.remove(consumer)
    with pytest.raises(ClientClosed):
        next(first)


def test_a_loop_gives_nothing_of_what_was_given_up_meanwhile(members_of: MakeMembers) -> None:
    members = members_of(2)
    filled(members, 2, 40)
    heard = Heard()
    consumer = members.join(heard)
    found = places(some(consumer, 10))
    other = members.join()
    members.settle(2)
    found += places(members.records)  # type: ignore[arg-type]
    members.records.clear()
    (kept,), (given,) = members.shares()
    assert ("revoked", [0, 1]) in heard.events
    members.append(kept, [b"last"])
    members.append(given, [b"last"])
    for reader, partition in ((consumer, kept), (other, given)):
        while (partition, 40) not in found:
            found += places(some(reader, 1))
    # Nothing twice and nothing lost: what had not come out was not committed when it went.
    assert sorted(found) == [(partition, n) for partition in range(2) for n in range(41)]


def test_loops_of_asyncio_count_the_same(members_of: MakeMembers) -> None:
    members = members_of(1)
    filled(members, 1, 30)
    options = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, "group_id": members.group_id}

    async def life(count: int) -> list[int]:
        found: list[int] = []
        async with AsyncConsumer(bootstrap_servers=f"127.0.0.1:{members.broker.port}", **options) as consumer:  # type: ignore[arg-type]
            await consumer.assign([(members.topic, 0)])
            async for record in consumer:
                found.append(record.offset)
                assert consumer.position(members.topic, 0) == record.offset + 1
                if len(found) == count:
                    break
            async for record in consumer:
                found.append(record.offset)
                break
            found += [record.offset for record in await consumer.poll(SECONDS, 1)]
        return found

    assert asyncio.run(life(9)) == list(range(11))
    assert asyncio.run(life(17)) == list(range(11, 30))
