"""ReplicatedPartitions over real logs, against an obvious model, a controller that loses answers, and followers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.replication.hosted import Role
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import ManualClock, batch_of
from tests.kit.logs.hosted import HostedLogs
from tests.kit.logs.quick_disk import quick_directory
from tests.kit.models.member import ME, ModelMember
from tests.kit.parts.members import TOPIC, TOPIC_ID, Ask, Member, role

OTHERS = (2, 3)
REPLICAS = ((1,), (1, 2), (1, 2, 3), (1, 2, 3), (1, 2, 3), (2, 3))
STEPS = 1000


class Truth:
    """A partition's state node, as the controller has it."""

    def __init__(self) -> None:
        self.leader = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.isr: tuple[int, ...] = ()
        self.isr_at_election: tuple[int, ...] = ()


class Story:
    """One seed's history."""

    def __init__(self, seed: int, folder: Path):
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.logs = HostedLogs(folder, clock=self.clock, options=LogOptions(min_in_sync=2))
        self.member = Member(self.logs, self.clock)
        self.model = ModelMember()
        self.truth = {0: Truth(), 1: Truth()}
        self.marks: dict[int, tuple[int, int]] = {}
        self.hear_of(frozenset({1, 2, 3}))
        self.steps = {
            self.elect: 2,
            self.tell_something_late: 2,
            self.stop_replica: 0.5,
            self.brokers_come_and_go: 2,
            self.hear_of_the_state: 2,
            self.answer: 25,
            self.pass_time: 6,
            self.append: 15,
            self.fetch: 40,
        }

    def run(self) -> None:
        try:
            steps = self.random.choices(list(self.steps), list(self.steps.values()), k=STEPS)
            for step in steps:
                step()
                self.roles_are_those_of_the_model()
                self.whoever_may_be_elected_has_what_is_committed()
            self.everything_is_settled_once_answers_come()
        finally:
            self.member.partitions.stop()
            self.logs.close()

    def any_partition(self) -> int:
        return self.random.randrange(2)

    # --- the controller

    def elect(self) -> None:
        """Write a new state, and tell the broker."""
        number, replicas = self.any_partition(), self.random.choice(REPLICAS)
        leader = self.random.choice((1, 1, 1, 2, 3, -1))
        truth = self.truth[number]
        truth.leader = leader if leader in (*replicas, -1) else replicas[0]
        truth.leader_epoch += 1
        truth.partition_epoch += 1
        left = tuple(each for each in truth.isr if each in replicas)
        truth.isr = left if truth.leader in left else (replicas[0] if leader == -1 else truth.leader,)
        truth.isr_at_election = truth.isr
        leader, epochs = truth.leader, (truth.leader_epoch, truth.partition_epoch)
        state = role(
            number,
            leader=leader,
            leader_epoch=epochs[0],
            partition_epoch=epochs[1],
            replicas=replicas,
            isr=truth.isr,
        )
        assert self.member.tell_roles(state) == [self.model.take_role(number, leader, *epochs, replicas)]

    def tell_something_late(self) -> None:
        """Tell a role of an epoch that is over; not to a partition that was deleted, where it would count."""
        number, leader = self.any_partition(), self.random.choice((1, 2, 3))
        known = self.model.partitions.get(number)
        if known is None or known.waits:
            return
        epoch, partition_epoch = self.random.randint(0, known.leader_epoch), self.random.randint(0, 20)
        state = role(number, leader=leader, leader_epoch=epoch, partition_epoch=partition_epoch)
        assert self.model.take_role(number, leader, epoch, partition_epoch, (1, 2, 3)) != ErrorCode.NONE
        assert self.member.tell_roles(state) == [ErrorCode.STALE_CONTROLLER_EPOCH]

    def stop_replica(self) -> None:
        number, deletes = self.any_partition(), self.random.random() < 0.3
        epoch = self.random.choice((-2, -1, self.truth[number].leader_epoch, self.truth[number].leader_epoch - 1))
        code = self.model.stop(number, epoch, deletes)
        assert self.member.tell_stop(number, leader_epoch=epoch, deletes=deletes) == [code]
        if deletes and not code:
            self.marks.pop(number, None)
            assert self.logs.get(TopicPartition(TOPIC, number)) is None

    def brokers_come_and_go(self) -> None:
        self.hear_of(frozenset({ME, *self.random.sample(OTHERS, self.random.choice((0, 1, 2, 2, 2)))}))

    def hear_of(self, live: frozenset[int]) -> None:
        self.model.hear_of(live)
        assert not self.member.tell_brokers(*sorted(live))

    def hear_of_the_state(self, number: int | None = None) -> None:
        """Send UpdateMetadata as the controller sends it after each AlterPartition."""
        number = self.any_partition() if number is None else number
        truth = self.truth[number]
        state = M.UpdateMetadataRequest.UpdateMetadataPartitionState(
            partition_index=number,
            leader=truth.leader,
            leader_epoch=truth.leader_epoch,
            zk_version=truth.partition_epoch,
            isr=list(truth.isr),
            replicas=[1, 2, 3],
        )
        topic = M.UpdateMetadataRequest.UpdateMetadataTopicState(
            topic_name=TOPIC, topic_id=TOPIC_ID.bytes, partition_states=[state]
        )
        known = self.model.partitions.get(number)
        if known and known.role == "leader" and (known.leader, known.leader_epoch) == (ME, truth.leader_epoch):
            known.partition_epoch = max(known.partition_epoch, truth.partition_epoch)
        assert not self.member.tell_brokers(*sorted(self.model.live), topic_states=[topic])

    # --- AlterPartition

    def answer(self, *, arrives: bool = False) -> None:
        if not self.member.asks:
            return
        (ask,) = self.member.asks  # one request is in flight
        self.member.asks.clear()
        if not arrives and self.random.random() < 0.1:
            ask.refuse(ErrorCode.NOT_CONTROLLER)
            return
        judged = {}
        for topic in ask.request().topics:
            for part in topic.partitions:
                judged[part.partition_index] = self._judge(part)
        if not arrives and self.random.random() < 0.4:
            ask.fail()
        else:
            self._give(ask, judged)

    def _judge(self, part: Any) -> M.AlterPartitionResponse.PartitionData:
        P = M.AlterPartitionResponse.PartitionData
        truth, number = self.truth[part.partition_index], part.partition_index
        isr = tuple(each.broker_id for each in part.new_isr_with_epochs)
        if part.leader_epoch > truth.leader_epoch or part.partition_epoch > truth.partition_epoch:
            return P(partition_index=number, error_code=ErrorCode.NOT_CONTROLLER)
        if part.leader_epoch < truth.leader_epoch:
            return P(partition_index=number, error_code=ErrorCode.FENCED_LEADER_EPOCH)
        if set(isr) != set(truth.isr):
            if part.partition_epoch < truth.partition_epoch:
                return P(partition_index=number, error_code=ErrorCode.INVALID_UPDATE_VERSION)
            if not set(isr) <= self.model.live:
                return P(partition_index=number, error_code=ErrorCode.INELIGIBLE_REPLICA)
            truth.isr = isr
            truth.partition_epoch += 1
        return P(
            partition_index=number, leader_id=truth.leader, leader_epoch=truth.leader_epoch, isr=list(truth.isr),
            partition_epoch=truth.partition_epoch,
        )  # fmt: skip

    def _give(self, ask: Ask, judged: dict[int, M.AlterPartitionResponse.PartitionData]) -> None:
        for number, answer in judged.items():
            known = self.model.partitions.get(number)
            found = self.member.partitions.get(TopicPartition(TOPIC, number))
            if known and found and found.proposed is not None and not answer.error_code:
                asked = next(p for t in ask.request().topics for p in t.partitions if p.partition_index == number)
                if (asked.leader_epoch, asked.partition_epoch) == (known.leader_epoch, known.partition_epoch):
                    known.partition_epoch = answer.partition_epoch
        ask.answer(lambda topic_partition, _: judged[topic_partition.partition_id])

    def pass_time(self) -> None:
        self.clock.now_ms += self.random.choice((60, 20_000, 20_000))
        for directory in self.logs.manager.directories:
            directory.set_clock_ms(self._now_ms())
        assert self.member.partitions.tick() <= 15_000

    # --- clients and followers

    def _led(self) -> Log | None:
        log = self.logs.get(TopicPartition(TOPIC, self.any_partition()))
        return log if log is not None and log.state.role == "leader" else None

    def append(self) -> None:
        if (log := self._led()) is not None:
            code, _ = log.state.append(batch_of([b"v"]), self.clock.wall_ms(), acks=1)
            assert code == 0

    def fetch(self) -> None:
        if (log := self._led()) is not None:
            node_id = self.random.choice(OTHERS)
            before = max((each.log_end_offset for each in log.state.followers() if each.node_id == node_id), default=0)
            offset = max(0, before, log.state.log_end_offset - self.random.choice((0, 0, 1, 2, 5)))
            log.state.follower_fetched(node_id, -1, offset, 0, self._now_ms())
            news = self.logs.manager.partition_table.news
            assert news is not None
            self.member.partitions.on_news([TopicPartition(*each) for each in news.take()])

    def _now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    def everything_is_settled_once_answers_come(self) -> None:
        for _ in range(3):
            self.answer(arrives=True)
            self.clock.now_ms += 60
            self.member.partitions.tick()
        for number, truth in self.truth.items():
            self.hear_of_the_state(number)
            known = self.model.partitions.get(number)
            if known and known.role == "leader" and known.leader_epoch == truth.leader_epoch:
                hosted = self.member.partitions.get(TopicPartition(TOPIC, number))
                assert hosted is not None
                assert hosted.proposed is None
                assert set(hosted.isr) == set(truth.isr)

    # --- what holds at every moment

    def roles_are_those_of_the_model(self) -> None:
        found = self.member.partitions.all()
        assert {each.partition_id for each in found} == self.model.partitions.keys()
        fetching = {each.partition_id: told for each, told in self.member.fetching.items()}
        assert fetching == self.model.fetching
        for number, known in self.model.partitions.items():
            hosted = found[TopicPartition(TOPIC, number)]
            log = self.logs.get(TopicPartition(TOPIC, number))
            assert log is not None
            assert (log.state.role, log.state.leader_epoch) == (known.role, known.leader_epoch)
            assert hosted.role is (Role.FOLLOWER if known.role == "follower" else Role.LEADER)
            assert (hosted.leader, hosted.leader_epoch) == (known.leader, known.leader_epoch)
            assert hosted.partition_epoch == known.partition_epoch

    def whoever_may_be_elected_has_what_is_committed(self) -> None:
        """The heart of it: the high watermark is nowhere above the end of a replica in the controller's ISR."""
        for number, truth in self.truth.items():
            log = self.logs.get(TopicPartition(TOPIC, number))
            known = self.model.partitions.get(number)
            if log is None or known is None or known.role != "leader" or known.leader_epoch != truth.leader_epoch:
                continue
            state = log.state
            mark, epoch = state.high_watermark, state.leader_epoch
            before, before_epoch = self.marks.get(number, (0, -1))
            assert mark >= before or epoch != before_epoch
            ends = {each.node_id: each.log_end_offset for each in state.followers()}
            came = set(truth.isr) - set(truth.isr_at_election)
            assert all(ends[each] >= max(mark, state.epoch_start_offset) for each in came), (truth.isr, ends, mark)
            if mark > before and epoch == before_epoch:
                assert all(ends[each] >= mark for each in truth.isr if each != ME), (truth.isr, ends, mark)
                assert sum(end >= mark for end in ends.values()) >= 1, "min.insync.replicas is 2"
            self.marks[number] = mark, epoch


@pytest.mark.parametrize("first_seed", range(0, 90, 30))
def test_roles_and_isrs_are_those_of_the_model(first_seed: int) -> None:
    expands = shrinks = commits = 0
    for seed in range(first_seed, first_seed + 30):
        with quick_directory() as folder:
            story = Story(seed, folder)
            try:
                story.run()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error
            counts = story.member.partitions.counts
            expands, shrinks = expands + counts.expands, shrinks + counts.shrinks
            commits += sum(mark for mark, _ in story.marks.values())
    assert min(expands, shrinks, commits) > 10, "the histories say little"
