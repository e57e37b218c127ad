"""A small cluster that is right, and can be made wrong: it proves that the simulator finds what is wrong.

Its log is a list in memory, its controller a few lines. ISRs are those of the real `rules.in_sync`.
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from kbroker._core.log.partition_state import AppendResult
from kbroker.coordination import paths
from kbroker.coordination.store import (
    BadVersion,
    Check,
    Create,
    NodeExists,
    NoNode,
    SessionExpired,
    SetData,
    StoreError,
    StoreUnavailable,
)
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import Endpoint, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.records import ControlType
from kbroker.rules import in_sync
from tests.kit.wire.batches import encode_control_batch
from tests.simulation.fetchers import FetchLoops
from tests.simulation.scheduler import MS
from tests.simulation.stored import Stored, batches_in, parse

if TYPE_CHECKING:
    from tests.simulation.broker import Life
    from tests.simulation.simulation import Simulation

MIN_IN_SYNC = 2
MAX_LAG_MS = 4000


class Mistakes(NamedTuple):
    """What the stand-in does wrong."""

    truncates_to_high_watermark: bool = False
    forgets_pending: bool = False
    elects_outside_isr: bool = False


@dataclass
class ModelFile:
    """What a disk has of a log."""

    topic_id: UUID
    batches: list[bytes] = field(default_factory=list)
    synced: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    high_watermark: int = 0


class ModelFollower(NamedTuple):
    node_id: int
    log_end_offset: int
    last_caught_up_ms: int
    last_leader_end: int
    last_fetch_ms: int


class ModelReader:
    """Gives the checker what it has not read yet."""

    def __init__(self, log: ModelLog):
        self._log, self._count = log, 0

    def read(self, until: int) -> Iterator[Stored]:
        while self._count < len(self._log.file.batches):
            batch = parse(self._log.file.batches[self._count])
            if batch.base_offset >= until:
                return
            self._count += 1
            yield batch


class ModelLog:
    """A log as a list. It is its own `state`."""

    def __init__(self, life: Life, at: TopicPartition, file: ModelFile):
        self.life, self.topic_partition, self.file = life, at, file
        self.path = ""
        self.topic_id = file.topic_id
        self.history = 0
        self.role = "follower"
        self.leader_epoch = file.epochs[-1][0] if file.epochs else -1
        self.high_watermark = min(file.high_watermark, self.log_end_offset)
        self.epoch_start = 0
        self.committed: tuple[int, ...] = ()
        self.maximal: frozenset[int] = frozenset()
        self.by_node: dict[int, ModelFollower] = {}

    @property
    def state(self) -> _View:
        return _View(self)

    @property
    def log_start_offset(self) -> int:
        return 0

    @property
    def log_end_offset(self) -> int:
        return _end(self.file.batches)

    @property
    def flushed_offset(self) -> int:
        return _end(self.file.batches[: self.file.synced])

    def flush(self) -> None:
        self.file.synced = len(self.file.batches)

    @property
    def newest_epoch(self) -> int:
        return self.file.epochs[-1][0] if self.file.epochs else -1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        known = [entry for entry in self.file.epochs if entry[0] <= epoch]
        above = [start for other, start in self.file.epochs if other > epoch]
        if not known:
            return -1, -1
        return known[-1][0], above[0] if above else self.log_end_offset

    def lead(self, epoch: int, followers: list[int], isr: tuple[int, ...], now_ms: int) -> None:
        self.role, self.leader_epoch, self.epoch_start = "leader", epoch, self.log_end_offset
        self.file.epochs = [entry for entry in self.file.epochs if entry[1] < self.epoch_start]
        self.file.epochs.append((epoch, self.epoch_start))
        self.committed, self.maximal = isr, frozenset(isr)
        self.by_node = {each: ModelFollower(each, -1, now_ms if each in isr else 0, 0, 0) for each in followers}

    def append(self, data: bytes, acks: int) -> AppendResult:
        if self.role != "leader":
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and len(self.committed) < MIN_IN_SYNC:
            raise ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS)
        batch = parse(data)
        if batch.producer_id >= 0 and batch.control is None:
            known = [parse(each) for each in self.file.batches]
            known = [each for each in known if each.producer_id == batch.producer_id and each.control is None]
            known = [each for each in known if each.producer_epoch == batch.producer_epoch]
            for each in known:
                if each.base_sequence == batch.base_sequence:
                    return AppendResult(
                        each.base_offset, each.last_offset, -1, 0, self.life.simulation.plan.flushes, True, 0
                    )
            if batch.base_sequence != (known[-1].base_sequence + len(known[-1].values) if known else 0):
                raise ProtocolError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        base = self.log_end_offset
        self.file.batches.append(_stamped(data, base, self.leader_epoch))
        self.advance()
        last = self.log_end_offset - 1
        return AppendResult(base, last, -1, 0, self.life.simulation.plan.flushes, True, 0)

    def advance(self) -> None:
        if self.role != "leader" or len(self.committed) < MIN_IN_SYNC:
            return
        own = self.flushed_offset if self.life.simulation.plan.flushes else self.log_end_offset
        ends = [each.log_end_offset for each in self.by_node.values() if each.node_id in self.maximal]
        self.high_watermark = max(self.high_watermark, min([own, *ends]))

    def aborted_transactions(self, offset: int, max_bytes: int) -> list[tuple[int, int]]:
        raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION)

    def read(self, offset: int, max_bytes: int, *, committed: bool = False, until: int | None = None) -> bytes:
        until = self.high_watermark if until is None else until
        if offset > until:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        data = b""
        for batch in self.file.batches:
            stored = parse(batch)
            if stored.last_offset >= offset and stored.last_offset < until and (not data or len(data) < max_bytes):
                data += batch
        return data

    def truncate_to(self, offset: int) -> None:
        kept = [batch for batch in self.file.batches if parse(batch).last_offset < offset]
        self.file.synced = min(self.file.synced, len(kept))
        self.file.batches = kept
        self.file.epochs = [entry for entry in self.file.epochs if entry[1] < offset]
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        self.history += 1


class _View:
    """`log.state.state` is a text; the rest is the log's."""

    def __init__(self, log: ModelLog):
        self._log = log

    @property
    def state(self) -> str:
        return "open"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def _end(batches: list[bytes]) -> int:
    return parse(batches[-1]).last_offset + 1 if batches else 0


def _stamped(data: bytes, base: int, epoch: int) -> bytes:
    """The batch with its offset and epoch, which its CRC does not cover."""
    made = bytearray(data)
    struct.pack_into(">q", made, 0, base)
    struct.pack_into(">i", made, 12, epoch)
    return bytes(made)


class ModelLogs:
    """The logs of one life."""

    def __init__(self, life: Life):
        self._life = life
        self.files: dict[TopicPartition, ModelFile] = life.broker.__dict__.setdefault("model_disk", {})
        self.logs: dict[TopicPartition, ModelLog] = {at: ModelLog(life, at, file) for at, file in self.files.items()}

    def get(self, at: TopicPartition) -> ModelLog | None:
        return self.logs.get(at)

    def all(self) -> list[ModelLog]:
        return list(self.logs.values())

    def open_or_create(self, at: TopicPartition, topic_id: UUID) -> ModelLog:
        if at not in self.logs:
            self.files[at] = ModelFile(topic_id)
            self.logs[at] = ModelLog(self._life, at, self.files[at])
        return self.logs[at]

    def set_clock_ms(self, now_ms: int) -> None:
        pass

    def take_news(self) -> list[TopicPartition]:
        return []

    def write_checkpoints(self, *, everything: bool) -> None:
        for log in self.logs.values():
            log.file.high_watermark = log.high_watermark

    def abandon(self) -> None:
        self.logs.clear()


class StandInPartitions:
    """Roles from LeaderAndIsr; the ISR by `rules.in_sync`."""

    def __init__(self, life: Life, mistakes: Mistakes):
        self._life, self._mistakes = life, mistakes
        self.controller_epoch = 0
        self.isrs: dict[TopicPartition, in_sync.InSync] = {}
        self.epochs: dict[TopicPartition, int] = {}

    def leader_and_isr(self, request: Any, version: int) -> Any:
        life = self._life
        if request.controller_epoch < self.controller_epoch:
            return M.LeaderAndIsrResponse(error_code=11)
        self.controller_epoch = request.controller_epoch
        for topic in request.topic_states:
            for state in topic.partition_states:
                at = TopicPartition(topic.topic_name, state.partition_index)
                if state.leader_epoch <= self.epochs.get(at, -1):
                    continue
                self.epochs[at] = state.leader_epoch
                log = life.logs.open_or_create(at, UUID(bytes=topic.topic_id))
                if state.leader == life.node_id:
                    life.fetchers.stop([at])
                    others = [each for each in state.replicas if each != life.node_id]
                    log.lead(state.leader_epoch, others, tuple(state.isr), life.clock.monotonic_ms())
                    self.isrs[at] = in_sync.led(state.leader_epoch, state.partition_epoch, state.isr)
                else:
                    self.isrs.pop(at, None)
                    log.role, log.leader_epoch = "follower", state.leader_epoch
                    if self._mistakes.truncates_to_high_watermark:
                        log.truncate_to(log.high_watermark)
                    life.fetchers.start(at, log, state.leader, state.leader_epoch)
        return M.LeaderAndIsrResponse()

    def update_metadata(self, request: Any) -> Any:
        self._life.metadata.update(request)
        for topic in request.topic_states:
            for state in topic.partition_states:
                at = TopicPartition(topic.topic_name, state.partition_index)
                if at in self.isrs:
                    told = in_sync.Committed(state.leader_epoch, state.zk_version, tuple(state.isr))
                    self._set(at, in_sync.learned(self.isrs[at], told))
        return M.UpdateMetadataResponse()

    def stop_replicas(self, request: Any) -> Any:
        return M.StopReplicaResponse()

    def _set(self, at: TopicPartition, isr: in_sync.InSync) -> None:
        self.isrs[at] = isr
        log = self._life.logs.get(at)
        log.committed = isr.committed
        log.maximal = frozenset(isr.committed) if self._mistakes.forgets_pending else isr.maximal
        log.advance()

    def tick(self) -> int:
        life = self._life
        now_ms = life.clock.monotonic_ms()
        for at, isr in list(self.isrs.items()):
            log = life.logs.get(at)
            out = in_sync.out_of_sync(isr, log.by_node.values(), log.log_end_offset, now_ms, MAX_LAG_MS)
            if out:
                self._propose(at, in_sync.shrink(isr, out))
                continue
            joins = in_sync.next_to_join(
                isr, log.by_node.values(), log.high_watermark, log.epoch_start, life.metadata.image.brokers
            )
            if joins >= 0:
                self._propose(at, in_sync.expand(isr, joins))
        return 300

    def _propose(self, at: TopicPartition, isr: in_sync.InSync) -> None:
        self._set(at, isr)
        self._ask(at, isr.proposal)

    def _ask(self, at: TopicPartition, asked: in_sync.Proposal | None) -> None:
        life = self._life
        P = M.AlterPartitionRequest.PartitionData
        T = M.AlterPartitionRequest.TopicData
        assert asked is not None
        part = P(
            partition_index=at.partition_id, leader_epoch=asked.leader_epoch, partition_epoch=asked.partition_epoch,
            new_isr=list(asked.isr),
        )  # fmt: skip
        topic = T(topic_id=life.logs.get(at).topic_id.bytes, partitions=[part])
        request = M.AlterPartitionRequest(
            broker_id=life.node_id, broker_epoch=life.metadata.broker_epoch, topics=[topic]
        )

        def answered(response: Any, version: int) -> None:
            if at not in self.isrs:
                return
            answer: in_sync.Committed | ErrorCode = ErrorCode.NOT_CONTROLLER
            if response is not None and response.topics:
                told = response.topics[0].partitions[0]
                answer = ErrorCode(told.error_code) or in_sync.Committed(
                    told.leader_epoch, told.partition_epoch, tuple(told.isr)
                )
            isr, then = in_sync.answered(self.isrs[at], asked, answer)
            self._set(at, isr)
            if then is in_sync.Next.ASK_AGAIN:
                life.after(
                    50 * MS,
                    lambda: self._ask(at, asked) if at in self.isrs and self.isrs[at].proposal == asked else None,
                )

        life.ask_controller(lambda version: request, 56, 2, answered)


class StandInController:
    """Elects, and commits ISRs. Every broker that has a session runs for it."""

    def __init__(self, life: Life, mistakes: Mistakes):
        self._life, self._mistakes = life, mistakes
        self.events: deque[Callable[[], None]] = deque()
        self.store: Any = None
        self.is_active = False
        self.epoch = 0
        self.epoch_version = 0
        self.live: dict[int, int] = {}
        self.queues: dict[int, deque[Any]] = {}
        self.tells_all = False

    def post(self, event: Callable[[], None]) -> None:
        self.events.append(event)
        self._life.touched()

    def step(self) -> bool:
        if not self.events:
            return False
        event = self.events.popleft()
        try:
            event()
        except StoreUnavailable:
            # What was written before the answer got lost is told with the next look.
            self.tells_all = True
            self._life.after(100 * MS, lambda: self.post(event))
        except StoreError as error:
            self._life.note(f"resigns: {error}")
            self.is_active = False
            if not isinstance(error, BadVersion | NoNode | NodeExists):
                return True
            self.post(self.elect)
        return True

    def elect(self) -> None:
        self.is_active = False
        if self.store.exists(paths.CONTROLLER, lambda event: self.post(self.elect)) is not None:
            data, stat = self.store.get(paths.CONTROLLER)
            if stat.owner != self.store.session_id:
                return
            self.epoch = self.epoch_version = 0
        data, stat = self.store.get(paths.CONTROLLER_EPOCH)
        if self.store.exists(paths.CONTROLLER) is None:
            self.store.multi([
                Create(paths.CONTROLLER, paths.encode_controller(self._life.node_id, 0), ephemeral=True),
                SetData(paths.CONTROLLER_EPOCH, str(int(data) + 1).encode(), stat.version),
            ])  # fmt: skip
            self.epoch, self.epoch_version = int(data) + 1, stat.version + 1
        else:
            self.epoch, self.epoch_version = int(data), stat.version
        self.is_active = True
        self.live, self.queues = {}, {}
        self._life.note(f"is the controller, epoch {self.epoch}")
        self.brokers()

    def brokers(self) -> None:
        if not self.is_active:
            return
        names = self.store.children(paths.BROKER_IDS, lambda event: self.post(self.brokers))
        found = self.store.get_many([f"{paths.BROKER_IDS}/{name}" for name in names])
        before = self.live
        self.live = {
            int(name): each[1].creation_id for name, each in zip(names, found, strict=True) if each is not None
        }
        for node_id in before:
            if self.live.get(node_id) != before[node_id]:
                self.queues.pop(node_id, None)
        self.rule(everything={node_id for node_id in self.live if before.get(node_id) != self.live[node_id]},
                  gone={node_id for node_id in before if self.live.get(node_id) != before[node_id]})  # fmt: skip

    def _write(self, path: str, operation: Any) -> Any:
        return self.store.multi([Check(paths.CONTROLLER_EPOCH, self.epoch_version), operation])[1]

    def rule(self, everything: set[int] = frozenset(), gone: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Elect where it is needed, and tell everybody."""
        told: list[Any] = []
        if self.tells_all:
            everything = set(self.live)
        changed = set()
        for topic in self.store.children(paths.TOPICS):
            assignment = paths.decode_topic(topic, self.store.get(paths.topic_path(topic))[0])
            for partition_id, replicas in assignment.replicas.items():
                path = paths.partition_state_path(topic, partition_id)
                live = [each for each in replicas if each in self.live]
                if self.store.exists(path) is None:
                    if not live:
                        continue
                    for above in (paths.partitions_path(topic), paths.partition_path(topic, partition_id)):
                        if self.store.exists(above) is None:
                            self._write(above, Create(above))
                    state = paths.PartitionRegistration(live[0], 0, tuple(live), self.epoch)
                    self._write(path, Create(path, paths.encode_partition_state(state)))
                    version = 0
                    changed.add((topic, partition_id))
                else:
                    data, stat = self.store.get(path)
                    state, version = paths.decode_partition_state(path, data), stat.version
                    isr = tuple(each for each in state.isr if each in self.live and each not in gone) or state.isr[:1]
                    out = state.leader not in self.live or state.leader in gone
                    if out or isr != state.isr:
                        pool = live if self._mistakes.elects_outside_isr else [each for each in live if each in isr]
                        leader = next(iter(pool), -1) if out else state.leader
                        if self._mistakes.elects_outside_isr and leader >= 0 and leader not in isr:
                            isr = (leader,)
                        if (leader, isr) != (state.leader, state.isr):
                            state = paths.PartitionRegistration(leader, state.leader_epoch + 1, isr, self.epoch)
                            version = self._write(
                                path, SetData(path, paths.encode_partition_state(state), version)
                            ).version
                            changed.add((topic, partition_id))
                told.append((topic, partition_id, assignment.topic_id, replicas, state, version))
        self.tells_all = False
        for node_id in self.live:
            mine = [
                each for each in told if node_id in each[3] and (node_id in everything or (each[0], each[1]) in changed)
            ]
            if mine:
                self._send(node_id, self._leader_and_isr(node_id, mine))
            self._send(node_id, self._metadata(node_id, told))

    def _leader_and_isr(self, node_id: int, told: list[Any]) -> Any:
        S, T = M.LeaderAndIsrRequest.LeaderAndIsrPartitionState, M.LeaderAndIsrRequest.LeaderAndIsrTopicState
        topics = [
            T(topic_name=topic, topic_id=topic_id.bytes, partition_states=[
                S(partition_index=partition_id, controller_epoch=self.epoch, leader=state.leader,
                  leader_epoch=state.leader_epoch, isr=list(state.isr), partition_epoch=version,
                  replicas=list(replicas))
            ]) for topic, partition_id, topic_id, replicas, state, version in told
        ]  # fmt: skip
        return M.LeaderAndIsrRequest(
            controller_id=self._life.node_id, controller_epoch=self.epoch, broker_epoch=self.live[node_id],
            topic_states=topics, live_leaders=[],
        )  # fmt: skip

    def _metadata(self, node_id: int, told: list[Any]) -> Any:
        R = M.UpdateMetadataRequest
        topics = [
            R.UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id.bytes, partition_states=[
                R.UpdateMetadataPartitionState(partition_index=partition_id, controller_epoch=self.epoch,
                  leader=state.leader, leader_epoch=state.leader_epoch, isr=list(state.isr), zk_version=version,
                  replicas=list(replicas), offline_replicas=[])
            ]) for topic, partition_id, topic_id, replicas, state, version in told
        ]  # fmt: skip
        return R(
            controller_id=self._life.node_id, controller_epoch=self.epoch, broker_epoch=self.live[node_id],
            topic_states=topics,
            live_brokers=[R.UpdateMetadataBroker(id=each, endpoints=[], rack=None) for each in self.live],
        )  # fmt: skip

    def _send(self, node_id: int, request: Any) -> None:
        queue = self.queues.setdefault(node_id, deque())
        queue.append(request)
        if len(queue) == 1:
            self._next(node_id, queue)

    def _next(self, node_id: int, queue: deque[Any]) -> None:
        if self.queues.get(node_id) is not queue or not queue or not self.is_active:
            return

        def answered(answer: Any) -> None:
            if isinstance(answer, M.Message):
                queue.popleft()
                self._next(node_id, queue)
            else:
                self._life.after(100 * MS, lambda: self._next(node_id, queue))

        version = 7 if isinstance(queue[0], M.LeaderAndIsrRequest) else 8
        self._life.peers.send(node_id, queue[0], version, answered, timeout_ms=10_000)

    def alter(self, request: Any, answer: Callable[[Any], None]) -> None:
        R = M.AlterPartitionResponse
        if not self.is_active:
            answer(R(error_code=41))
            return
        asked = request.topics[0].partitions[0]
        topic = next(
            name for name in self.store.children(paths.TOPICS)
            if paths.decode_topic(name, self.store.get(paths.topic_path(name))[0]).topic_id.bytes
            == request.topics[0].topic_id
        )  # fmt: skip
        path = paths.partition_state_path(topic, asked.partition_index)
        data, stat = self.store.get(path)
        state = paths.decode_partition_state(path, data)
        code, version = 0, stat.version
        isr = tuple(asked.new_isr) or tuple(each.broker_id for each in asked.new_isr_with_epochs)
        if asked.leader_epoch < state.leader_epoch:
            code = 74
        elif isr == state.isr:
            pass
        elif asked.partition_epoch < stat.version:
            code = 95
        elif not set(isr) <= set(self.live):
            code = 107
        else:
            state = state._replace(isr=isr, controller_epoch=self.epoch)
            version = self._write(path, SetData(path, paths.encode_partition_state(state), stat.version)).version
        part = R.PartitionData(
            partition_index=asked.partition_index, error_code=code, leader_id=state.leader,
            leader_epoch=state.leader_epoch, isr=list(state.isr), partition_epoch=version,
        )  # fmt: skip
        answer(R(topics=[R.TopicData(topic_id=request.topics[0].topic_id, partitions=[part])]))


class StandInKit:
    """Makes the parts of the stand-in."""

    def __init__(self, mistakes: Mistakes = Mistakes()):  # noqa: B008
        self._mistakes = mistakes

    def logs(self, life: Life) -> ModelLogs:
        return ModelLogs(life)

    def reader(self, log: ModelLog) -> ModelReader:
        return ModelReader(log)

    def fetchers(self, life: Life) -> FetchLoops:
        return FetchLoops(life)

    def partitions(self, life: Life) -> StandInPartitions:
        return StandInPartitions(life, self._mistakes)

    def controller(self, life: Life) -> StandInController:
        return StandInController(life, self._mistakes)

    def served(self, api_key: int) -> int:
        return 2

    def join(self, life: Life) -> None:
        """Be in the tree: with the node of this session, once that of an earlier one is gone."""
        if life.logs is None:
            life.listen()
            life.serve()
        session = life.open_session()
        session.on_end(lambda: self._ended(life))
        while not session.session_id:
            life.sleep(50 * MS)
        path = paths.broker_path(life.node_id)
        endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", life.process.name, 9092)
        data = paths.encode_broker(paths.BrokerRegistration((endpoint,), None, 0))
        while True:
            try:
                with contextlib.suppress(NodeExists):
                    session.create(path, data, ephemeral=True)
                _, stat = session.get(path)
                if stat.owner == session.session_id:
                    break
            except (StoreUnavailable, NoNode):
                pass
            except SessionExpired:
                return
            life.sleep(500 * MS)
        life.note(f"is registered, epoch {stat.creation_id}")
        life.metadata.broker_epoch = stat.creation_id
        life.controller.store = session
        life.controller.post(life.controller.elect)

    def _ended(self, life: Life) -> None:
        life.note("the session has expired")
        life.controller.events.clear()
        life.controller.is_active = False
        life.after(0, lambda: life.task(lambda: self.join(life), "membership"))

    def controller_idle_ms(self, life: Life) -> int:
        return 0 if life.controller.events else 10_000

    def control(self, life: Life) -> bool:
        return life.controller.step()

    def ask(self, life: Life, request: Any, version: int, answer: Callable[[Any], None]) -> None:
        life.controller.post(lambda: life.controller.alter(request, answer))

    def append(self, log: ModelLog, batch: bytes, acks: int) -> AppendResult:
        return log.append(batch, acks)

    def append_marker(self, log: ModelLog, producer_id: int, epoch: int, commit: bool, bumped: bool) -> AppendResult:
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        return log.append(
            encode_control_batch(kind, 0, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0), -1
        )

    def ack_code(self, log: ModelLog) -> int:
        return 0 if len(log.committed) >= MIN_IN_SYNC else int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def check_readable(self, log: ModelLog) -> None:
        pass

    def check_epoch(self, log: ModelLog, leader_epoch: int) -> None:
        if log.role != "leader":
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader_epoch != log.leader_epoch:
            older = leader_epoch < log.leader_epoch
            raise ProtocolError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)

    def replica_read(self, log: ModelLog, wanted: Any) -> tuple[int, Any, bytes, int, int]:
        self.check_epoch(log, wanted.leader_epoch)
        if wanted.last_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(wanted.last_epoch)
            if epoch < wanted.last_epoch or end < wanted.offset:
                return 0, (epoch, end), b"", log.high_watermark, 0
        if wanted.offset > log.log_end_offset:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        now_ms = log.life.clock.monotonic_ms()
        before = log.by_node[wanted.node_id]
        caught_up = before.last_caught_up_ms
        if wanted.offset >= log.log_end_offset:
            caught_up = now_ms
        elif wanted.offset >= before.last_leader_end:
            caught_up = max(caught_up, before.last_fetch_ms)
        log.by_node[wanted.node_id] = ModelFollower(
            wanted.node_id, wanted.offset, caught_up, log.log_end_offset, now_ms
        )
        log.advance()
        return 0, None, log.read(wanted.offset, 2000, until=log.log_end_offset), log.high_watermark, 0

    def fetched(self, life: Life, loop: Any, followed: Any, answer: Any) -> None:
        log = followed.log
        code, diverging, records, high_watermark, _ = answer
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            followed.is_stuck = True
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            log.truncate_to(log.high_watermark)
        elif code:
            loop.pause(followed)
        elif diverging is not None:
            epoch, end = diverging
            own_epoch, own_end = log.end_offset_for_epoch(epoch)
            log.truncate_to(min(end, own_end, log.log_end_offset) if own_epoch == epoch else own_end)
        else:
            for batch in batches_in(records):
                if batch.base_offset == log.log_end_offset:
                    log.file.batches.append(_cut(records, batch))
                    if not log.file.epochs or log.file.epochs[-1][0] < batch.leader_epoch:
                        log.file.epochs.append((batch.leader_epoch, batch.base_offset))
            log.high_watermark = max(log.high_watermark, min(high_watermark, log.log_end_offset))
            if life.simulation.plan.flushes:
                log.flush()

    def may_begin(self, simulation: Simulation) -> bool:
        return any(b.life is not None and b.life.controller.is_active for b in simulation.brokers.values()) and len(
            simulation.tree.tree.children.get(paths.BROKER_IDS, ())
        ) == len(simulation.brokers)

    def create_topics(self, simulation: Simulation) -> None:
        for name, count, replicas in simulation.plan.topics:
            topic_id = UUID(int=simulation.scheduler.chance.getrandbits(128))
            ids = sorted(simulation.brokers)
            assignment = {p: tuple(ids[(p + r) % len(ids)] for r in range(replicas)) for p in range(count)}
            simulation.tree.apply(
                0,
                [
                    Create(
                        paths.topic_path(name), paths.encode_topic(paths.TopicAssignment(topic_id, assignment, {}, {}))
                    )
                ],
            )
        for broker in simulation.brokers.values():
            if broker.life is not None and broker.life.controller.is_active:
                broker.life.controller.post(broker.life.controller.rule)

    def is_settled(self, simulation: Simulation) -> bool:
        return True

    def administrate(self, simulation: Simulation) -> None:
        pass


def _cut(records: bytes, batch: Stored) -> bytes:
    at = 0
    while struct.unpack_from(">q", records, at)[0] != batch.base_offset:
        at += struct.unpack_from(">i", records, at + 8)[0] + 12
    return records[at : at + struct.unpack_from(">i", records, at + 8)[0] + 12]
