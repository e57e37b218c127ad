"""Random histories of a cluster: what the controllers write and tell keeps its invariants at every step.

Brokers die, come, stop, fall silent; sessions end; controllers are deposed by liars; the store loses requests and
answers; topics are made, grown, moved, deleted; leaders change their ISRs. In the end everything is well again, and
everybody knows everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kbroker.cluster.controller_requests import (
    PREFERRED,
    UNCLEAN,
    AlterPartition,
    AlterReassignments,
    ControlledShutdown,
    ElectLeaders,
)
from kbroker.cluster.topic_requests import CreateTopics, DeleteTopics, GrowTopics, PlannedTopic
from kbroker.coordination import paths
from kbroker.coordination.store import Check, Create, Delete, SetData
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.controller import reassignment
from kbroker.rules.controller.values import PartitionState
from tests.kit.parts.control_cluster import ControlCluster, Member

BROKERS = (1, 2, 3, 4)
NODES = st.sampled_from(BROKERS)
TOPICS = ("a", "b", "unclean")
NAMES = st.sampled_from(TOPICS)
REPLICAS = st.permutations(BROKERS).flatmap(lambda order: st.integers(1, 3).map(lambda count: tuple(order[:count])))
UNCLEAN_CONFIG = {"unclean.leader.election.enable": "true"}


class Histories(RuleBasedStateMachine):
    """Four brokers. A rule changes one thing, and then lets a few steps happen, or all."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = ControlCluster()
        self.faults: list[str] = []
        self.seen_writes = 0
        self.states: dict[TopicPartition, PartitionState] = {}
        self.leaders: dict[tuple[bytes, int, int], int] = {}
        self.ids = 0
        self.last_epoch = 0
        self.answers = 0
        self.asked = 0
        self.served: dict[TopicPartition, frozenset[int]] = {}
        """The ISR with which a leader that has taken its role has served last."""
        self.were_away: set[int] = set()
        """Brokers that were away, or taken for it: nobody tells them which replicas were taken from them meanwhile."""

    @initialize()
    def begin(self) -> None:
        for node_id in BROKERS[:3]:
            self.start(node_id)
        self.cluster.settle()

    # --- what happens -------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        member = self.cluster.start(node_id)
        member.session.fault = self.fault

    def fault(self) -> str | None:
        return self.faults.pop() if self.faults else None

    def member(self, node_id: int) -> Member | None:
        member = self.cluster.members.get(node_id)
        return member if member is not None and member.is_running else None

    def active(self) -> Member | None:
        return next((each for each in self.cluster.live() if each.controller.is_active), None)

    def ask(self, request: Any) -> None:
        member = self.active()
        if member is not None:
            self.asked += 1
            member.controller.ask(request, self.count_answer)

    def count_answer(self, _: Any) -> None:
        self.answers += 1

    @rule(node_id=NODES)
    def come(self, node_id: int) -> None:
        member = self.cluster.members.get(node_id)
        if member is None or not member.is_running:
            if member is not None and not member.session.is_over:
                member.session.expire()
            self.start(node_id)

    @rule(node_id=NODES, seen=st.booleans(), expires=st.booleans())
    def die(self, node_id: int, seen: bool, expires: bool) -> None:
        if self.member(node_id) is not None:
            self.cluster.kill(node_id, seen=seen)
            self.were_away.add(node_id)
            self.asked = self.answers  # its answers are lost with it
            if expires:
                self.cluster.expire(node_id)

    @rule(node_id=NODES)
    def session_of_the_dead_ends(self, node_id: int) -> None:
        member = self.cluster.members.get(node_id)
        if member is not None and not member.is_running and not member.session.is_over:
            member.session.expire()

    @rule(node_id=NODES)
    def session_ends(self, node_id: int) -> None:
        member = self.member(node_id)
        if member is not None:
            self.were_away.add(node_id)
            member.session.expire()
            member.controller.resign()
            member.session = self.cluster.tree.connect()
            member.session.fault = self.fault
            self.faults.clear()
            self.cluster.register(member)
            member.controller.session_is(member.session, member.told.epoch)

    @rule(node_id=NODES)
    def stop(self, node_id: int) -> None:
        member = self.member(node_id)
        if member is not None:
            request = M.ControlledShutdownRequest(broker_id=node_id, broker_epoch=member.told.epoch)
            self.ask(ControlledShutdown(request))
            self.some_steps(20)
            self.were_away.add(node_id)
            self.cluster.stop(node_id)

    @rule(node_id=NODES)
    def fall_silent(self, node_id: int) -> None:
        self.cluster.silent.add(node_id)

    @rule()
    def all_speak(self) -> None:
        self.cluster.silent.clear()

    @rule(node_id=NODES)
    def a_liar_says_that_a_broker_is_gone(self, node_id: int) -> None:
        self.were_away.add(node_id)
        for member in self.cluster.live():
            for callback in member.peers.refused_callbacks:
                callback(node_id)

    @rule(faults=st.lists(st.sampled_from(["before", "after"]), max_size=3), spared=st.integers(0, 6))
    def the_store_fails(self, faults: list[str], spared: int) -> None:
        self.faults = [*faults, *[""] * spared]

    @rule(name=NAMES, replicas=st.lists(REPLICAS, min_size=1, max_size=3))
    def make(self, name: str, replicas: list[tuple[int, ...]]) -> None:
        self.ids += 1
        assignment = paths.TopicAssignment(UUID(int=self.ids), dict(enumerate(replicas)), {}, {})
        configs = UNCLEAN_CONFIG if name == "unclean" else {}
        self.ask(CreateTopics({name: PlannedTopic(assignment, configs)}))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.ask(DeleteTopics([name]))

    @rule(name=NAMES, replicas=REPLICAS)
    def grow(self, name: str, replicas: tuple[int, ...]) -> None:
        if (data := self.cluster.node(paths.topic_path(name))) is not None:
            count = len(paths.decode_topic("", data).replicas)
            self.ask(GrowTopics({name: {count: replicas}}))

    @rule(name=NAMES, partition_id=st.integers(0, 2), wanted=st.none() | REPLICAS)
    def move(self, name: str, partition_id: int, wanted: tuple[int, ...] | None) -> None:
        self.ask(AlterReassignments({TopicPartition(name, partition_id): wanted}))

    @rule(names=st.lists(NAMES, min_size=1, unique=True), wanted=st.none() | REPLICAS)
    def move_many(self, names: list[str], wanted: tuple[int, ...] | None) -> None:
        self.ask(AlterReassignments({TopicPartition(name, each): wanted for name in names for each in range(3)}))

    @rule(kind=st.sampled_from([PREFERRED, UNCLEAN]), name=NAMES)
    def elect(self, kind: int, name: str) -> None:
        if kind == PREFERRED or name == "unclean":
            self.ask(ElectLeaders(kind, tuple(TopicPartition(name, each) for each in range(3))))

    @rule(node_id=NODES, data=st.data())
    def a_leader_changes_isrs(self, node_id: int, data: st.DataObject) -> None:
        """What a leader knows comes from what it was told, so it may be old."""
        member = self.member(node_id)
        if member is None:
            return
        for partition, role in list(member.told.roles.items()):
            if role.leader != node_id or not data.draw(st.booleans()):
                continue
            others = [each for each in role.replicas if each != node_id]
            isr = [node_id, *data.draw(st.lists(st.sampled_from(others), unique=True) if others else st.just([]))]
            known = member.told.metadata.get(partition)
            epoch = known.zk_version if known and known.leader_epoch == role.leader_epoch else role.partition_epoch
            self.ask(self.alter(member, partition, role.leader_epoch, epoch, isr))

    def alter(
        self, member: Member, partition: TopicPartition, leader_epoch: int, partition_epoch: int, isr: list[int]
    ) -> AlterPartition:
        members = [
            M.AlterPartitionRequest.BrokerState(
                broker_id=each,
                broker_epoch=self.cluster.members[each].told.epoch if each in self.cluster.members else -1,
            )
            for each in isr
        ]
        wanted = M.AlterPartitionRequest.PartitionData(
            partition_index=partition.partition_id,
            leader_epoch=leader_epoch,
            new_isr_with_epochs=members,
            partition_epoch=partition_epoch,
            leader_recovery_state=0,
        )
        topic_id = member.told.topic_ids[partition.topic]
        topic = M.AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=[wanted])
        return AlterPartition(
            M.AlterPartitionRequest(broker_id=member.node_id, broker_epoch=member.told.epoch, topics=[topic]), 3
        )

    @rule(node_id=NODES, name=NAMES, partition_id=st.integers(0, 2))
    def a_directory_fails(self, node_id: int, name: str, partition_id: int) -> None:
        member = self.member(node_id)
        partition = TopicPartition(name, partition_id)
        if member is not None and partition in member.told.roles:
            member.told.failed.add(partition)
            member.told.roles.pop(partition)
            path = f"{paths.LOG_DIR_EVENT_PREFIX}"
            self.cluster.tree.change(0, [Create(path, paths.encode_log_dir_event(node_id), sequential=True)])

    @rule(count=st.integers(1, 60))
    def some_steps(self, count: int) -> None:
        for _ in range(count):
            for member in self.cluster.live():
                member.controller.step()
            self.cluster.deliver()
        self.cluster.clock.now_ms += 50

    @rule()
    def all_steps(self) -> None:
        self.faults.clear()
        self.cluster.settle()

    # --- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def states_are_sound(self) -> None:
        """Look at every write since the last look."""
        self.note_leaders_at_work()
        writes = self.cluster.tree.writes
        for transaction in writes[self.seen_writes :]:
            for operation in transaction:
                if operation.path.endswith("/state"):
                    assert isinstance(transaction[0], Check), "fenced"
                    self.note_state(operation)
                elif operation.path == paths.CONTROLLER_EPOCH and isinstance(operation, SetData):
                    epoch = int(operation.data)
                    assert epoch == self.last_epoch + 1
                    self.last_epoch = epoch
        self.seen_writes = len(writes)

    def note_leaders_at_work(self) -> None:
        for member in self.cluster.live():
            for partition, role in member.told.roles.items():
                state = self.states.get(partition)
                if state is not None and state.leader == member.node_id and state.leader_epoch == role.leader_epoch:
                    self.served[partition] = frozenset(state.isr)

    def note_state(self, operation: Any) -> None:
        _, _, _, name, _, partition_id, _ = operation.path.split("/")
        partition = TopicPartition(name, int(partition_id))
        before = self.states.get(partition)
        if isinstance(operation, Delete):
            self.states.pop(partition, None)
            self.served.pop(partition, None)
            for key in [key for key in self.leaders if key[0] == str(partition).encode()]:
                del self.leaders[key]
            return
        now = PartitionState(*paths.decode_partition_state(operation.path, operation.data))
        self.states[partition] = now
        assert now.controller_epoch <= self.last_epoch
        assert now.leader == -1 or now.leader in now.isr
        assert now.isr and len(set(now.isr)) == len(now.isr)
        key = (str(partition).encode(), now.leader_epoch, 0)
        assert self.leaders.setdefault(key, now.leader) == now.leader, "one leader for each epoch"
        if before is None:
            self.served[partition] = frozenset(now.isr)
            assert now.leader_epoch == 0 and now.leader == now.isr[0]
            return
        assert now.controller_epoch >= before.controller_epoch
        assert now.leader_epoch - before.leader_epoch in (0, 1)
        if now.leader_epoch == before.leader_epoch:
            assert now.leader == before.leader, "only the ISR has changed"
            if now.leader != -1:
                self.served[partition] = frozenset(now.isr)
        elif now.leader != -1 and now.recovery == 1 and (before.recovery == 0 or now.leader not in before.isr):
            assert name == "unclean" and now.isr == (now.leader,)
        else:
            assert now.leader == -1 or now.leader in before.isr, "a leader comes from the ISR"
            # Who was elected and could not lead has left nobody behind: the ISR from before may come back.
            may_be_in = before.isr if now.leader != -1 else {*before.isr, *self.served[partition]}
            assert set(now.isr) <= set(may_be_in), "an election lets nobody in"

    def teardown(self) -> None:
        """The faults end, everybody is well: everything is served, and everybody knows."""
        self.faults.clear()
        cluster = self.cluster
        cluster.silent.clear()
        for node_id in BROKERS:
            member = self.member(node_id)
            if member is not None and member.told.failed:
                self.die(node_id, seen=False, expires=True)  # its disk is mended
            self.come(node_id)
        cluster.settle()
        self.catch_up()
        self.states_are_sound()
        assert self.answers >= self.asked
        active = cluster.active
        registered = {member.node_id for member in cluster.live()}
        assert not cluster.tree.model.children(paths.DELETE_TOPICS), "every deletion has ended"
        known: dict[TopicPartition, tuple[int, ...]] = {}
        for name in cluster.tree.model.children(paths.TOPICS):
            for partition_id, replicas in cluster.assignment(name).replicas.items():
                partition = TopicPartition(name, partition_id)
                known[partition] = replicas
                state = cluster.state(name, partition_id)
                assert set(state.isr) <= set(replicas), partition
                assert state.leader in registered, (partition, state)
                self.check_told(partition, replicas, state)
        for member in cluster.live():
            assert member.told.alive == registered, (member.node_id, active.node_id)
            assert member.told.metadata.keys() == known.keys(), member.node_id
            replicas_here = {each for each, replicas in known.items() if member.node_id in replicas}
            assert member.node_id in self.were_away or member.told.logs <= replicas_here

    def catch_up(self) -> None:
        """Let leaders bring their ISRs to all replicas, as they do when all is well, until nothing is left to do."""
        for _ in range(10):
            before = len(self.cluster.tree.writes)
            for name in self.cluster.tree.model.children(paths.TOPICS):
                for partition_id, replicas in self.cluster.assignment(name).replicas.items():
                    state = self.cluster.state(name, partition_id)
                    if set(state.isr) != set(replicas) and state.leader in self.cluster.members:
                        member = self.cluster.members[state.leader]
                        isr = [state.leader, *(each for each in replicas if each != state.leader)]
                        at = TopicPartition(name, partition_id)
                        self.ask(self.alter(member, at, state.leader_epoch, state.partition_epoch, isr))
                        self.cluster.settle()
            if len(self.cluster.tree.writes) == before:
                return
        raise AssertionError("it never ends")

    def check_told(self, partition: TopicPartition, replicas: tuple[int, ...], state: PartitionState) -> None:
        for member in self.cluster.live():
            told = member.told.metadata[partition]
            assert (told.leader, told.leader_epoch, tuple(told.isr), told.zk_version) == (
                state.leader, state.leader_epoch, state.isr, state.partition_epoch,
            ), (member.node_id, partition)  # fmt: skip
            if member.node_id in replicas:
                role = member.told.roles[partition]
                assert (role.leader, role.leader_epoch) == (state.leader, state.leader_epoch), (
                    member.node_id,
                    partition,
                )


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    with patch.object(reassignment, "CHUNK", 1):
        yield


def quick(machine: type[RuleBasedStateMachine], examples: int) -> Callable[..., Any]:
    case = machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=40, deadline=None)
    return case


TestHistories = quick(Histories, 60)
