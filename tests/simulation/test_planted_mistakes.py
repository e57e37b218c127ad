"""The simulator finds what has gone wrong before: each mistake is planted in the real code, and must be found.

What each of Kafka's broke is in the issue that is named. A mistake is looked for in histories of the faults that bring
it about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from kbroker.cluster import controller_election, controller_store, fenced_writes
from kbroker.cluster.peers import PeerError
from kbroker.cluster.producer_ids import BLOCK_SIZE
from kbroker.coordination import paths
from kbroker.coordination.store import Create, EventKind, StoreError, WatchEvent
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.replication.control_requests import NO_EPOCH
from kbroker.replication.partitions import UNKNOWN_BROKER_EPOCH, ReplicatedPartitions
from kbroker.rules import follower, in_sync, incomplete_replica
from kbroker.rules.controller import brokers, deletion, elections, takeover
from kbroker.rules.controller import in_sync as controller_in_sync
from kbroker.rules.controller import partitions as controller_partitions
from kbroker.rules.controller.values import PartitionState
from kbroker.rules.follower import AskEarliest, BeginAt, LogView, Retry, Step, TruncateTo
from kbroker.rules.in_sync import NOBODY, Next
from kbroker.rules.incomplete_replica import Verdict
from kbroker.storage.log import Log
from tests.simulation.broker import Life, Peers
from tests.simulation.faults import Faults
from tests.simulation.scheduler import MS, SECOND
from tests.simulation.simulation import RECOVERY, Outcome, Plan, run_seed
from tests.simulation.stored import batch_positions

SEEDS = 400
"""In how many histories a mistake is looked for. A change of the product moves it to another one."""
MANY = 80
Patch = pytest.MonkeyPatch


class Plant(NamedTuple):
    """A mistake, the faults that bring it about, and what the checker says then."""

    put: Callable[[Patch], None]
    faults: tuple[str, ...]
    says: str
    """How the broken promise begins: with its invariant's name."""
    plan: dict[str, Any] = {}
    first: int = 0
    """The first seed: few histories show it, because other rules keep what it loses."""
    fault: Callable[[Patch], None] = lambda _: None
    """A fault that random histories hardly ever have; it alone breaks nothing."""


# --- followers


def truncate_to_high_watermark(patch: Patch) -> None:
    """KAFKA-1211, KIP-101: a follower that restarts cuts off what is committed, and is elected."""

    def first_step(log: LogView) -> TruncateTo | None:
        return TruncateTo(log.high_watermark) if log.log_end_offset > log.high_watermark else None

    patch.setattr(follower, "first_step", first_step)


def ask_about_no_epoch(patch: Patch) -> None:
    """KAFKA-7164: a follower that has missed an epoch goes on behind what its leader does not have."""
    patch.setattr(Log, "newest_epoch", property(lambda _: -1))


def cut_where_the_answer_ends(patch: Patch) -> None:
    """KAFKA-6361, KIP-279: a follower keeps records of an epoch that its leader never had, up to the answer's end."""
    right = follower.truncation

    def truncation(diverging_epoch: int, diverging_end: int, log: LogView) -> Step:
        keeps = log.log_start_offset <= diverging_end < log.log_end_offset
        return TruncateTo(diverging_end) if keeps else right(-1, diverging_end, log._replace(epochs=()))

    patch.setattr(follower, "truncation", truncation)


def ignore_the_leaders_start(patch: Patch) -> None:
    """A follower keeps records that its leader has deleted."""
    patch.setattr(Log, "follow_start", lambda self, offset: None)


def go_on_behind_the_leaders_start(patch: Patch) -> None:
    """A follower that lacks all that its leader still has keeps what it has, and asks for the same again."""
    patch.setattr(follower, "after_earliest", lambda earliest, log: Retry(""))


def begin_at_the_leaders_end(patch: Patch) -> None:
    """A follower that lacks all that its leader still has begins where the leader's log ends, not where it starts."""
    right = follower.after_latest

    def after_latest(latest: int, log: LogView) -> Step:
        step = right(latest, log)
        return BeginAt(latest) if step == AskEarliest() and latest > log.log_end_offset else step

    patch.setattr(follower, "after_latest", after_latest)


# --- leaders


def leave_out_a_batch(patch: Patch) -> None:
    """A leader with a wrong position for an offset leaves out a batch: its followers take that for compaction."""
    right = Log.read

    def read(self: Log, offset: int, max_bytes: int, **given: bool) -> bytes:
        data = right(self, offset, max_bytes, **given)
        positions = list(batch_positions(data))
        return data[positions[1] :] if given.get("to_log_end") and len(positions) > 2 else data

    patch.setattr(Log, "read", read)


def keep_the_last_stable_offset(patch: Patch) -> None:
    """The last stable offset of a leader that is elected stays where it is: readers of committed records wait there."""
    stable: dict[Log, int] = {}
    lead, right = Log.lead, Log.read

    def lead_on(self: Log, epoch: int, followers: Any, in_sync: Any) -> int:
        end = lead(self, epoch, followers, in_sync)
        if epoch:
            stable[self] = self.last_stable_offset
        return end

    def read(self: Log, offset: int, max_bytes: int, **given: bool) -> bytes:
        is_above = given.get("committed") and offset >= stable.get(self, offset + 1)
        return b"" if is_above else right(self, offset, max_bytes, **given)

    patch.setattr(Log, "lead", lead_on)
    patch.setattr(Log, "read", read)


def let_in_before_the_epochs_start(patch: Patch) -> None:
    """KAFKA-7128: a new leader lets a replica in that has less than was committed before."""

    def let_in(self: ReplicatedPartitions, at: TopicPartition) -> None:
        with self._lock:
            replica = self._replicas.get(at)
            if replica is None or replica.in_sync is None:
                return
            assert replica.log is not None
            state = replica.log.state
            state.take_ready()
            followers = state.followers()
            node_id = in_sync.next_to_join(replica.in_sync, followers, state.high_watermark, 0, self._live)
            if node_id != NOBODY:
                self._propose_locked(at, replica, in_sync.expand(replica.in_sync, node_id), followers)

    def settle(self: Life) -> None:
        if self.partitions is not None:
            self.partitions.on_news(list(self.partitions.all()))
        right(self)

    right = Life.settle
    patch.setattr(ReplicatedPartitions, "_let_in", let_in)
    patch.setattr(Life, "settle", settle)


def begin_the_epoch_again(patch: Patch) -> None:
    """After all brokers were down, a leader leads on in the same epoch, and begins it anew at its log's end."""
    patch.setattr(takeover, "_led_by_returned", lambda context, dated: ())
    right = Log.lead

    def lead(self: Log, epoch: int, followers: Any, in_sync: Any) -> int:
        self.open()
        leads_on = self.state.role != "leader" and self.newest_epoch == epoch
        end = right(self, epoch, followers, in_sync)
        if leads_on:
            self.state.set_epochs([*self.epochs[:-1], (epoch, end)])
        return end

    patch.setattr(Log, "lead", lead)


def lose_answers(patch: Patch) -> None:
    """Let leaders not get the answers to a third of their changes of ISRs. This is a fault, and no mistake."""
    right = Peers.send

    def send(self: Peers, node_id: int, message: Any, version: int, answered: Any, *, timeout_ms: int) -> None:
        def lost(answer: Any) -> None:
            is_lost = isinstance(message, M.AlterPartitionRequest) and self._life.scheduler.chance.random() < 0.3
            answered(PeerError(node_id, "lost", sent=True) if is_lost else answer)

        right(self, node_id, message, version, lost, timeout_ms=timeout_ms)

    patch.setattr(Peers, "send", send)


def write_isrs_themselves(patch: Patch) -> None:
    """KAFKA-2729, KAFKA-8836: a leader writes its ISR into the tree, as before KIP-497, and does not only ask."""
    right = Peers.send

    def write(life: Life, message: Any) -> None:
        assert life.session is not None
        names = {hosted.topic_id.bytes: at.topic for at, hosted in life.partitions.all().items()}
        for topic in message.topics:
            for each in topic.partitions:
                isr = tuple(member.broker_id for member in each.new_isr_with_epochs)
                epoch = life.partitions.controller_epoch
                data = paths.PartitionRegistration(life.node_id, each.leader_epoch, isr, epoch)
                path = paths.partition_state_path(names[topic.topic_id], each.partition_index)
                with contextlib.suppress(StoreError):
                    life.session.set(path, paths.encode_partition_state(data), each.partition_epoch)

    def send(self: Peers, node_id: int, message: Any, version: int, answered: Any, *, timeout_ms: int) -> None:
        if isinstance(message, M.AlterPartitionRequest):
            write(self._life, message)
        right(self, node_id, message, version, answered, timeout_ms=timeout_ms)

    patch.setattr(Peers, "send", send)


def refuse_what_was_done(patch: Patch) -> None:
    """KAFKA-14144: the controller refuses what it has done already, because its partition epoch is an older one."""
    check = controller_in_sync._check

    def check_version_first(context: Any, partition: Any, leader: int, asked: Any) -> PartitionState | ErrorCode:
        state = context.states.get(partition)
        if state is not None and asked.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        return check(context, partition, leader, asked)

    patch.setattr(controller_in_sync, "_check", check_version_first)


def wait_for_the_lost_answer(patch: Patch) -> None:
    """KAFKA-14144: nobody tells the leader that its change was made, and it waits for that."""
    refuse_what_was_done(patch)
    patch.setattr(in_sync, "learned", lambda known, told: known)


def believe_every_refusal(patch: Patch) -> None:
    """A leader is refused what was done already, and forgets whom it has let in."""
    wait_for_the_lost_answer(patch)

    def answered(known: Any, asked: Any, answer: Any) -> Any:
        if known.proposal == asked and isinstance(answer, ErrorCode):
            return known._replace(proposed=None), Next.GO_ON
        return right(known, asked, answer)

    right = in_sync.answered
    patch.setattr(in_sync, "answered", answered)


def refuse_the_same_epoch(patch: Patch) -> None:
    """KAFKA-9769: a role that the disk has refused counts as taken, so that it is not taken when it is told again."""
    go_offline = ReplicatedPartitions._go_offline

    def counted(self: Any, at: Any, hosted: Any, missed: Any = None) -> None:
        epoch = hosted.leader_epoch if missed is None else missed.leader_epoch
        go_offline(self, at, hosted._replace(leader_epoch=epoch))

    patch.setattr(ReplicatedPartitions, "_go_offline", counted)


# --- requests that come late


def repeat(patch: Patch, kind: type, is_late: Callable[[ReplicatedPartitions, Any], bool]) -> None:
    """Let requests of a kind come a second time, if they are late by then. This is a fault, and no mistake."""
    right = Peers.send

    def send(self: Peers, node_id: int, message: Any, version: int, answered: Any, *, timeout_ms: int) -> None:
        right(self, node_id, message, version, answered, timeout_ms=timeout_ms)
        world = self._life.simulation

        def again() -> None:
            told = world.brokers[node_id].life
            if told is not None and told.partitions is not None and is_late(told.partitions, message):
                right(self, node_id, message, version, lambda _: None, timeout_ms=timeout_ms)

        if isinstance(message, kind) and not world.faults.is_over:
            self._life.after(world.scheduler.chance.randrange(3 * SECOND), again)

    patch.setattr(Peers, "send", send)


def repeat_roles_of_former_lives(patch: Patch) -> None:
    repeat(
        patch,
        M.LeaderAndIsrRequest,
        lambda partitions, message: message.broker_epoch < partitions._metadata.broker_epoch,
    )


def obey_what_a_former_life_was_told(patch: Patch) -> None:
    """KAFKA-7235, KIP-380: a broker takes what was meant for its life before, and leads without the records it lost."""
    fence = ReplicatedPartitions._fence

    def of_any_life(self: ReplicatedPartitions, request: Any) -> ErrorCode:
        request.broker_epoch = UNKNOWN_BROKER_EPOCH
        return fence(self, request)

    patch.setattr(ReplicatedPartitions, "_fence", of_any_life)


def is_of_older_epochs(partitions: ReplicatedPartitions, message: Any) -> bool:
    """Return whether the broker knows later leader epochs of all partitions that a StopReplica names."""
    epochs = {
        TopicPartition(topic.topic_name, each.partition_index): each.leader_epoch
        for topic in message.topic_states
        for each in topic.partition_states
    }
    known = [partitions.get(at) for at in epochs]
    pairs = zip(known, epochs.values(), strict=True)
    return all(hosted is not None and 0 <= epoch < hosted.leader_epoch for hosted, epoch in pairs)


def repeat_stops_of_older_epochs(patch: Patch) -> None:
    repeat(patch, M.StopReplicaRequest, is_of_older_epochs)


def obey_late_stops(patch: Patch) -> None:
    """KAFKA-9539, KIP-570: a replica is stopped or deleted that was given a role again since."""
    right = ReplicatedPartitions._stop_refusal

    def of_any_epoch(self: ReplicatedPartitions, stop: Any) -> ErrorCode:
        return right(self, stop._replace(leader_epoch=NO_EPOCH))

    patch.setattr(ReplicatedPartitions, "_stop_refusal", of_any_epoch)


def replace_disks_of_who_joins(patch: Patch) -> None:
    """Hold back changes of ISRs until a replica that joins has come back with a new disk: a fault, and no mistake."""
    right = Peers.send

    def send(self: Peers, node_id: int, message: Any, version: int, answered: Any, *, timeout_ms: int) -> None:
        life, world = self._life, self._life.simulation
        chance = world.scheduler.chance

        def go_on() -> None:
            right(self, node_id, message, version, answered, timeout_ms=timeout_ms)

        def wait() -> None:
            if broker.life is not None and broker.life.is_serving:
                life.after(chance.randrange(50 * MS), go_on)
            else:
                life.after(10 * MS, wait)

        joining: set[int] = set()
        if isinstance(message, M.AlterPartitionRequest) and not world.faults.is_over:
            wanted = [each for topic in message.topics for each in topic.partitions]
            joining = {member.broker_id for each in wanted for member in each.new_isr_with_epochs}
            joining.difference_update(*(state.isr for state in world.checker.states.values()))
        broker = world.brokers[min(joining, default=node_id)]
        if not joining or broker.life is None or chance.random() < 0.5:
            go_on()
            return
        broker.kill()
        broker.disk.empty()
        world.scheduler.after(1, broker.start)
        wait()

    patch.setattr(Peers, "send", send)


def let_in_a_former_life(patch: Patch) -> None:
    """KAFKA-14139, KIP-903: a replica joins the ISR for what it had before its disk was replaced."""
    right = controller_in_sync._is_eligible

    def eligible(context: Any, broker_id: int, epoch: int) -> bool:
        return right(context, broker_id, controller_in_sync.NOT_GIVEN)

    patch.setattr(controller_in_sync, "_is_eligible", eligible)


# --- controllers


def write_without_the_epoch(patch: Patch) -> None:
    """KAFKA-6082: a controller that was paused goes on writing states after another one was elected."""
    init = fenced_writes.FencedWrites.__init__

    def without_check(self: Any, *args: Any) -> None:
        init(self, *args)
        self._check = fenced_writes.Check(paths.CONTROLLER_EPOCH)

    patch.setattr(fenced_writes.FencedWrites, "__init__", without_check)


def read_epochs_slowly(patch: Patch) -> None:
    """Let some time pass before a candidate has read the controller epoch. This is a fault, and no mistake."""
    right = controller_election.Candidate._epoch

    def epoch(self: Any) -> tuple[int, int]:
        for _ in range(50):
            self._store.exists(paths.CONTROLLER_EPOCH)
        return right(self)

    patch.setattr(controller_election.Candidate, "_epoch", epoch)


def read_blocks_slowly(patch: Patch) -> None:
    """Let some time pass before a controller writes a block of producer ids. This is a fault, and no mistake."""
    right = controller_store.ControllerStore._decoded

    def decoded(self: Any, path: str, *args: Any) -> Any:
        if path == paths.PRODUCER_ID_BLOCK:
            for _ in range(50):
                self._store.exists(path)
        return right(self, path, *args)

    patch.setattr(controller_store.ControllerStore, "_decoded", decoded)


def give_ids_without_compare_and_set(patch: Patch) -> None:
    """A controller that was replaced writes a block of producer ids over the next one's, and gives the same ids out."""

    def allocate(self: Any, command: Any) -> tuple[int, int]:
        data, _ = self._store.get(paths.PRODUCER_ID_BLOCK)
        before = self._decoded(paths.PRODUCER_ID_BLOCK, data, paths.decode_producer_id_block) if data else None
        first = before.last + 1 if before else 0
        block = paths.ProducerIdBlock(command.broker_id, first, first + BLOCK_SIZE - 1)
        self._store.set(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(block))
        return first, BLOCK_SIZE

    patch.setattr(controller_store.ControllerStore, "_allocate_ids", allocate)


def take_the_next_epoch(patch: Patch) -> None:
    """A controller that is deposed while it reads the epoch of its election takes the next one's for its own."""
    right = controller_election.Candidate.run

    def run(self: Any, watcher: Any, now_ms: int) -> controller_election.Elected:
        found = self._read(watcher)
        if found is not None and found[1].owner == self._store.session_id:
            epoch, version = self._epoch()
            return controller_election.Elected(self._node_id, found[1].creation_id, (), epoch, version)
        return right(self, watcher, now_ms)

    patch.setattr(controller_election.Candidate, "run", run)


def keep_the_epoch_of_the_deposed(patch: Patch) -> None:
    """A node of the controller that is removed early does not fence its owner: only a new epoch does."""

    def stand(self: Any, now_ms: int) -> None:
        data = paths.encode_controller(self._node_id, now_ms)
        self._store.multi([Create(paths.CONTROLLER, data, ephemeral=True)])

    patch.setattr(controller_election.Candidate, "_stand", stand)


def ask_controllers_that_were_replaced(patch: Patch) -> None:
    """Let controllers hear late that they were replaced, and leaders ask them meanwhile: a fault, and no mistake."""
    begin, right = Faults.begin, Peers.send

    def begin_late(self: Faults, duration: int) -> None:
        tree = self._simulation.tree
        chance = tree.scheduler.chance

        def held(served: Any, event: WatchEvent) -> int:
            is_late = event.path == paths.CONTROLLER and not self.is_over and chance.random() < 0.5
            return chance.randrange(4 * SECOND) if is_late else 0

        tree.hold_event = held
        begin(self, duration)

    def send(self: Peers, node_id: int, message: Any, version: int, answered: Any, *, timeout_ms: int) -> None:
        world = self._life.simulation
        if isinstance(message, M.AlterPartitionRequest) and world.scheduler.chance.random() < 0.7:
            for broker in world.brokers.values():
                controller = broker.life.controller if broker.life is not None else None
                if controller is not None and controller.is_active:
                    is_replaced = controller.context.epoch < world.checker.controller_epoch
                    node_id = broker.node_id if is_replaced else node_id
        right(self, node_id, message, version, answered, timeout_ms=timeout_ms)

    patch.setattr(Faults, "begin", begin_late)
    patch.setattr(Peers, "send", send)


def fence_leaders_that_know_more(patch: Patch) -> None:
    """KAFKA-14154: a leader waits for ever, because a controller that was replaced has fenced it."""
    right = controller_in_sync._check

    def check(context: Any, partition: Any, leader: int, asked: Any) -> PartitionState | ErrorCode:
        checked = right(context, partition, leader, asked)
        return ErrorCode.FENCED_LEADER_EPOCH if checked is ErrorCode.NOT_CONTROLLER else checked

    patch.setattr(controller_in_sync, "_check", check)


def believe_brokers_that_came_back(patch: Patch) -> None:
    """KAFKA-14139 and its like: one whose disk was emptied is in the ISR for the next controller, and is elected."""
    patch.setattr(takeover, "_returned", lambda context, dated: ())


def elect_anybody(patch: Patch) -> None:
    """Jepsen 2013: who is not in the ISR leads, although nobody has allowed that."""

    def allowed(self: Any, command: Any) -> Any:
        return command.topics

    patch.setattr(controller_store.ControllerStore, "_read_unclean", allowed)


def delete_while_replicas_move(patch: Patch) -> None:
    """A reassignment that goes on while its topic is deleted makes the deleted logs again."""

    def queue(context: Any, names: Any) -> Any:
        if names:
            context.deleting.update(dict.fromkeys(sorted(names)))
            yield from deletion.resume_deletions(context)

    patch.setattr(deletion, "_queue", queue)


def repeat_metadata_of_older_controllers(patch: Patch) -> None:
    repeat(
        patch,
        M.UpdateMetadataRequest,
        lambda partitions, message: message.controller_epoch < partitions.controller_epoch,
    )


def obey_older_controllers(patch: Patch) -> None:
    """A broker does what a controller says that was replaced while its requests were on their way."""
    fence = ReplicatedPartitions._fence

    def of_any_epoch(self: ReplicatedPartitions, request: Any) -> Any:
        self._controller_epoch = min(self._controller_epoch, request.controller_epoch)
        return fence(self, request)

    patch.setattr(ReplicatedPartitions, "_fence", of_any_epoch)


def keep_the_leader_epoch(patch: Patch) -> None:
    """A leader that is elected in the epoch of the one before it: two may lead in one epoch."""
    right = elections.elect

    def elect(kind: Any, context: Any, partition: Any, state: PartitionState, **given: Any) -> Any:
        elected = right(kind, context, partition, state, **given)
        return elected and elected._replace(state=elected.state._replace(leader_epoch=state.leader_epoch))

    patch.setattr(controller_partitions, "elect", elect)


def miss_watches(patch: Patch) -> None:
    """A controller that is not told of a broker's end elects nobody in its place."""
    right = Faults.begin

    def begin(self: Faults, duration: int) -> None:
        tree = self._simulation.tree

        def held(served: Any, event: WatchEvent) -> int | None:
            is_of_brokers = event.kind is EventKind.CHILDREN and event.path == paths.BROKER_IDS
            return None if is_of_brokers and tree.scheduler.chance.random() < 0.5 else 0

        tree.hold_event = held
        right(self, duration)

    patch.setattr(Faults, "begin", begin)


def lead_without_lost_records(patch: Patch) -> None:
    """Kafka in ZooKeeper mode: an emptied disk is elected from the ISR, and all others are cut."""
    patch.setattr(incomplete_replica, "verdict", lambda *_: Verdict.TAKE_AS_IT_IS)


def keep_an_isr_that_was_cut_down(patch: Patch) -> None:
    """The only broker that has started leaves all others out of the ISR when it is elected, and has lost records."""

    def nothing(context: Any, broker_id: int, declined: Any) -> Any:
        yield from ()

    patch.setattr(brokers, "undo_elections", nothing)


ONE = (("orders", 1, 3),)
THREE = (("orders", 3, 3),)
LATE = "not everything is served again"
UNREAD = f"{LATE} after {RECOVERY // SECOND} s: c"
"""All is well but for a consumer: it has not read everything."""
PLANTS = [
    Plant(truncate_to_high_watermark, ("kill", "pause", "tree"), "leader_has_everything", first=21),
    Plant(ask_about_no_epoch, ("kill", "pause", "cut", "tree"), LATE, first=5),
    Plant(cut_where_the_answer_ends, ("kill", "pause", "cut", "tree"), LATE, first=197),
    Plant(ignore_the_leaders_start, ("kill", "pause", "delete"), LATE),
    Plant(go_on_behind_the_leaders_start, ("kill", "delete"), LATE),
    Plant(begin_at_the_leaders_end, ("kill", "delete"), "starts_where_somebody_asked_for"),
    Plant(leave_out_a_batch, ("kill",), "has_no_gap"),
    Plant(keep_the_last_stable_offset, ("kill",), UNREAD),
    Plant(let_in_before_the_epochs_start, ("kill", "pause", "cut", "tree"), "new_member_has_everything", first=399),
    Plant(begin_the_epoch_again, ("power",), "equal_below_high_watermark", first=948),
    Plant(write_isrs_themselves, ("kill",), "controllers_write_in_their_own_epochs"),
    Plant(wait_for_the_lost_answer, ("kill", "reset", "tree", "cut"), LATE, first=3, fault=lose_answers),
    Plant(believe_every_refusal, ("kill", "pause", "lie", "cut"), LATE, first=3, fault=lose_answers),
    Plant(refuse_the_same_epoch, ("full", "kill"), LATE, first=2),
    Plant(
        obey_what_a_former_life_was_told,
        ("kill", "damage", "pause"),
        "leader_has_everything",
        first=117,
        fault=repeat_roles_of_former_lives,
    ),
    Plant(obey_late_stops, ("full", "admin"), LATE, first=11, fault=repeat_stops_of_older_epochs),
    Plant(
        let_in_a_former_life,
        ("pause", "cut"),
        "new_member_has_everything",
        {"topics": ONE},
        first=186,
        fault=replace_disks_of_who_joins,
    ),
    Plant(write_without_the_epoch, ("pause", "tree", "lie"), "state_is_of_the_controller", first=58),
    Plant(take_the_next_epoch, ("lie",), "controllers_write_in_their_own_epochs", first=72, fault=read_epochs_slowly),
    Plant(keep_the_epoch_of_the_deposed, ("lie",), "controller_has_an_epoch_of_its_own"),
    Plant(
        believe_brokers_that_came_back,
        ("power",),
        "leader_has_everything",
        {"flushes": False, "duration": 20 * SECOND, "topics": THREE},
        first=11,
    ),
    Plant(give_ids_without_compare_and_set, ("lie", "ids"), "producer_ids_are_new", first=5, fault=read_blocks_slowly),
    Plant(fence_leaders_that_know_more, ("pause", "lie"), LATE, first=30, fault=ask_controllers_that_were_replaced),
    Plant(elect_anybody, ("kill", "lie", "pause"), "unclean_only_where_allowed"),
    Plant(delete_while_replicas_move, ("kill", "lie", "admin"), LATE, first=19),
    Plant(
        obey_older_controllers,
        ("lie", "tree", "pause"),
        LATE,
        first=124,
        fault=repeat_metadata_of_older_controllers,
    ),
    Plant(keep_the_leader_epoch, ("lie", "kill"), "epochs_of_state_only_grow"),
    Plant(miss_watches, ("tree", "cut"), LATE, first=1),
    Plant(lead_without_lost_records, ("damage",), "leader_has_everything"),
    Plant(keep_an_isr_that_was_cut_down, ("damage",), "leader_has_everything"),
]
WITH_FAULTS = [plant for plant in PLANTS if plant.fault is not Plant._field_defaults["fault"]]
FEW = 2
"""Histories of a fault alone in make test, beside the one that finds the mistake."""


def outcome_of(plant: Plant, seed: int) -> Outcome:
    return run_seed(seed, plan=replace(Plan.of(seed), faults=plant.faults, **plant.plan))


def found_with(plant: Plant) -> Outcome:
    """Return the outcome of the first history that the mistake breaks."""
    with Patch.context() as patch:
        plant.fault(patch)
        plant.put(patch)
        for seed in range(plant.first, plant.first + SEEDS):
            outcome = outcome_of(plant, seed)
            if outcome.broken:
                return outcome
    raise AssertionError(f"not found in {SEEDS} seeds")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.put.__name__)
def test_a_planted_mistake_is_found(monkeypatch: Patch, plant: Plant) -> None:
    found = found_with(plant)
    assert found.broken.startswith(plant.says), found.broken
    if plant in WITH_FAULTS:
        plant.fault(monkeypatch)
        alone = outcome_of(plant, found.seed)
        assert alone.broken == "", f"without the mistake too: {alone.summary}"


@pytest.mark.parametrize("plant", WITH_FAULTS, ids=lambda plant: plant.put.__name__)
def test_the_fault_that_a_plant_brings_along_breaks_nothing(monkeypatch: Patch, plant: Plant) -> None:
    plant.fault(monkeypatch)
    broken = [outcome_of(plant, seed).broken for seed in range(plant.first, plant.first + FEW)]
    assert broken == [""] * FEW


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plant", WITH_FAULTS, ids=lambda plant: plant.put.__name__)
def test_the_fault_that_a_plant_brings_along_breaks_nothing_in_many_histories(monkeypatch: Patch, plant: Plant) -> None:
    plant.fault(monkeypatch)
    for seed in range(plant.first + FEW, plant.first + MANY):
        outcome = outcome_of(plant, seed)
        assert outcome.broken == "", outcome.summary
