"""The real parts in a virtual world: logs, partitions, controller and membership, as a member of a cluster has them."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kbroker.cluster import controller_requests as ask
from kbroker.cluster import topic_requests as topics
from kbroker.cluster.controller import Controller, ControllerConfig
from kbroker.cluster.joining import CannotJoin, InterBrokerListeners
from kbroker.cluster.membership import Membership, MembershipOptions
from kbroker.coordination import paths
from kbroker.coordination.store import Store, StoreUnavailable
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import Endpoint, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.replication.fetchers import FetcherOptions, Fetchers
from kbroker.replication.partitions import ReplicatedPartitions
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.simulation.broker import CLUSTER_ID, SESSION_TIMEOUT
from tests.simulation.fetchers import FetchLoop, Followed, VirtualEngine
from tests.simulation.scheduler import MS, SECOND
from tests.simulation.stored import LogFiles

if TYPE_CHECKING:
    from tests.simulation.broker import Life
    from tests.simulation.simulation import Simulation
    from tests.simulation.tree import Session

MIN_IN_SYNC = 2
MAX_LAG_MS = 4000
REPLICA_BYTES = 2000
FETCH_BACKOFF_MS = 200
LISTENER = "PLAINTEXT"


class RealLogs:
    """The logs of one life: `surroundings.LogHost` on a real log manager, without its threads."""

    def __init__(self, life: Life):
        self._life = weakref.proxy(life)
        self._manager = LogManager(
            StorageOptions((life.broker.disk.path,), flusher_threads=0),
            fs=life.broker.disk.fs,
            clock=life.clock,
            randomness=random.Random(f"{life.simulation.plan.seed} {life.node_id} {life.broker.life_count}"),
            is_member=True,
        )
        self._manager.start(self._resolve, life.node_id, CLUSTER_ID, background=False)
        self._logs = {log.topic_partition: log for log in self._manager.logs()}

    def _resolve(self, at: TopicPartition) -> tuple[UUID, LogOptions] | None:
        """The topic that a log found on disk belongs to, by the tree; see `SharedTopics.owner_of`."""
        found = self._life.simulation.tree.get(paths.topic_path(at.topic))
        if found is None:
            return None
        assignment = paths.decode_topic(at.topic, found[0])
        if self._life.node_id not in assignment.replicas.get(at.partition_id, ()):
            return None
        return assignment.topic_id, self._life.simulation.options

    def get(self, at: TopicPartition) -> Any:
        return self._logs.get(at)

    def all(self) -> list[Any]:
        return list(self._logs.values())

    def open_or_create(self, topic: str, topic_id: UUID, partition_id: int, *, is_new: bool) -> Any:
        log = self._manager.create(topic, topic_id, partition_id, self._life.simulation.options, is_new=is_new)
        self._logs[log.topic_partition] = log
        return log

    def delete(self, at: TopicPartition) -> None:
        if self._logs.pop(at, None) is not None:
            self._manager.delete(at)

    def is_offline(self, at: TopicPartition) -> bool:
        log = self._logs.get(at)
        return log is not None and log.directory.is_offline

    def take_news(self) -> list[TopicPartition]:
        news = self._manager.partition_table.news
        return [] if news is None else [TopicPartition(*each) for each in news.take()]

    def set_clock_ms(self, now_ms: int) -> None:
        for log in self._logs.values():
            log.directory.set_clock_ms(now_ms)
            break

    def write_checkpoints(self, *, everything: bool) -> None:
        """High watermarks only, or recovery points and starts too, which are written less often."""
        if everything:
            self._manager.write_checkpoints()
        else:
            self._manager.write_high_watermarks()

    def abandon(self) -> None:
        self._manager.abandon()
        self._logs.clear()


class NoListeners:
    """`surroundings.RoleListeners`: there are no coordinators here."""

    def leads(self, topic_partition: TopicPartition, leader_epoch: int) -> None: ...
    def follows(self, topic_partition: TopicPartition, leader_epoch: int) -> None: ...
    def gone(self, topic_partition: TopicPartition) -> None: ...


class LateLogs:
    """The logs of a life that may not have been opened yet."""

    def __init__(self, life: Life):
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._life.logs, name)


class Wakeup:
    """What `threading.Event` is for `Membership.woken`, for a task."""

    def __init__(self, life: Life):
        self._life = life
        self._is_set = False
        self._task: Any = None

    def set(self) -> None:
        self._is_set = True
        task, self._task = self._task, None
        if task is not None:
            self._life.scheduler.after(0, lambda: task.answer(None) if task.is_waiting else None, self._life.process)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        if not self._is_set:
            task = next(task for task in self._life.process.tasks if task.is_current)
            self._task = task
            timer = self._life.scheduler.after(seconds * SECOND, self._time_out, self._life.process)
            task.wait()
            timer.cancel()
        return self._is_set

    def _time_out(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.answer(None)


class Member:
    """`membership.Member`: tells the controller of sessions."""

    def __init__(self, life: Life):
        self._life = life

    def session_ended(self) -> None:
        self._life.note("is not registered any more")
        self._life.controller.resign()
        self._life.touched()

    def registered(self, store: Store, broker_epoch: int) -> None:
        self._life.note(f"is registered, epoch {broker_epoch}")
        self._life.metadata.broker_epoch = broker_epoch
        self._life.controller.session_is(store, broker_epoch)
        self._life.touched()

    def configs_changed(self, entity_paths: Any) -> None: ...
    def group_configs_changed(self) -> None: ...
    def brokers_changed(self, kbroker_versions: Any) -> None: ...

    def must_stop(self, reason: str) -> None:
        raise AssertionError(reason)


class RealKit:
    """Makes the real parts and asks them."""

    def logs(self, life: Life) -> RealLogs:
        return RealLogs(life)

    def reader(self, log: Any) -> LogFiles:
        return LogFiles(log.path)

    def fetchers(self, life: Life) -> Fetchers:
        life.engine = VirtualEngine(life)
        return Fetchers(life.node_id, lambda *_: life.engine, life.new_peers(), FetcherOptions(FETCH_BACKOFF_MS))

    def partitions(self, life: Life) -> ReplicatedPartitions:
        return ReplicatedPartitions(
            life.node_id, LateLogs(life), life.fetchers, life.ask_controller, life.metadata, life.clock, NoListeners(),
            max_lag_ms=MAX_LAG_MS,
        )  # fmt: skip

    def controller(self, life: Life) -> Controller:
        config = ControllerConfig(leader_imbalance_check_interval_s=5)
        return Controller(
            life.node_id, life.new_peers(), life.clock, config, lambda topic: False, wake=life.touched
        )  # fmt: skip

    def served(self, api_key: int) -> int:
        return SERVED[ApiKey(api_key)].max

    # --- membership

    def join(self, life: Life) -> None:
        """What the main thread of a broker does: it joins, serves, and comes back after a lost session."""
        endpoint = Endpoint(LISTENER, "PLAINTEXT", life.process.name, 9092)
        options = MembershipOptions("zk", SESSION_TIMEOUT / SECOND, InterBrokerListeners(LISTENER), "0")
        membership = Membership(options, lambda: self._session(life), life.clock, Member(life))
        woken = membership.woken = Wakeup(life)  # type: ignore[assignment]
        life.membership = membership
        try:
            membership.connect(life.node_id, CLUSTER_ID)
            life.listen()
            membership.register([endpoint], None)
            life.serve()
        except (CannotJoin, KbrokerError) as error:
            life.note(f"cannot join: {error}")
            life.give_up()
            return
        while True:
            delay = membership.step()
            life.touched()
            woken.wait(delay)

    def _session(self, life: Life) -> Session:
        session = life.open_session()
        deadline = life.scheduler.now + SESSION_TIMEOUT
        while not session.session_id:
            if life.scheduler.now > deadline:
                session.close()
                raise StoreUnavailable("no connection")
            life.sleep(20 * MS)
        return session

    # --- the controller

    def control(self, life: Life) -> bool:
        return life.controller.step()

    def controller_idle_ms(self, life: Life) -> int:
        return life.controller.idle_ms()

    def ask(self, life: Life, request: Any, version: int, answer: Callable[[Any], None]) -> None:
        if isinstance(request, M.AlterPartitionRequest):
            value: Any = ask.AlterPartition(request, version)
        elif isinstance(request, M.ControlledShutdownRequest):
            value = ask.ControlledShutdown(request)
        else:
            value = ask.AllocateProducerIds(request)
        life.controller.ask(value, answer)

    def administer(self, life: Life, value: Any, respond: Callable[[Any], None]) -> None:
        life.controller.ask(value, lambda answer: respond((0, answer)))

    # --- logs

    def append(self, log: Any, batch: bytes, acks: int) -> Any:
        return log.append(batch, wait=False, acks=acks)

    def append_marker(self, log: Any, producer_id: int, epoch: int, commit: bool, bumped: bool) -> Any:
        return log.append_marker(producer_id, epoch, 0, commit=commit, bumped=bumped, wait=False)

    def ack_code(self, log: Any) -> int:
        state = log.state
        in_sync = 1 + sum(each.in_sync for each in state.followers())
        return int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND) if in_sync < MIN_IN_SYNC else 0

    def check_readable(self, log: Any) -> None:
        if log.state.role not in ("leader", "follower"):
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_epoch(self, log: Any, leader_epoch: int) -> None:
        state = log.state
        if state.role != "leader":
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader_epoch < state.leader_epoch:
            raise ProtocolError(ErrorCode.FENCED_LEADER_EPOCH)
        if leader_epoch > state.leader_epoch:
            raise ProtocolError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def replica_read(self, log: Any, wanted: Any) -> tuple[int, Any, bytes, int, int]:
        """What a leader answers to a follower's fetch; see facts of KIP-595 in `_core/server/fetch`."""
        self.check_epoch(log, wanted.leader_epoch)
        state = log.state
        if wanted.last_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(wanted.last_epoch)
            if end < 0:
                raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < wanted.last_epoch or end < wanted.offset:
                return 0, (epoch, end), b"", state.high_watermark, state.log_start_offset
        if not state.log_start_offset <= wanted.offset <= state.log_end_offset:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        data = log.read(wanted.offset, REPLICA_BYTES, to_log_end=True)
        code = state.follower_fetched(wanted.node_id, wanted.broker_epoch, wanted.offset, wanted.log_start, 0)
        if code:
            raise ProtocolError(ErrorCode(code))
        return 0, None, data, state.high_watermark, state.log_start_offset

    def fetched(self, life: Life, loop: FetchLoop, followed: Followed, answer: Any) -> None:
        """Do with an answer what the fetch engine and the driver of its news do."""
        code, diverging, records, high_watermark, log_start = answer
        if code:
            life.engine.tell(followed, "error", code)
            return
        if diverging is not None:
            life.engine.tell(followed, "diverging", 0, diverging)
            return
        state = followed.log.state
        code = state.append_as_follower(records, followed.leader_epoch, high_watermark, log_start)
        if code:
            life.engine.tell(followed, "append", code)
        elif state.flush_due:
            followed.is_busy = True
            life.requests.flush(followed.log, lambda: self._flushed(loop, followed))

    def _flushed(self, loop: FetchLoop, followed: Followed) -> None:
        followed.is_busy = False
        loop.wake()

    # --- the whole

    def may_begin(self, simulation: Simulation) -> bool:
        registered = simulation.tree.tree.children.get(paths.BROKER_IDS, ())
        return len(registered) == len(simulation.brokers) and self._active(simulation) is not None

    def _active(self, simulation: Simulation) -> Life | None:
        lives = [broker.life for broker in simulation.brokers.values()]
        return next((life for life in lives if life is not None and life.controller.is_active), None)

    def create_topics(self, simulation: Simulation) -> None:
        ids = sorted(simulation.brokers)
        planned = {}
        for name, count, replicas in simulation.plan.topics:
            topic_id = UUID(int=simulation.scheduler.chance.getrandbits(128))
            assignment = {at: tuple(ids[(at + each) % len(ids)] for each in range(replicas)) for at in range(count)}
            planned[name] = topics.PlannedTopic(paths.TopicAssignment(topic_id, assignment, {}, {}), {})
        life = self._active(simulation)
        assert life is not None
        life.controller.ask(topics.CreateTopics(planned), lambda codes: life.note(f"topics are created: {codes}"))
        life.touched()

    def is_settled(self, simulation: Simulation) -> bool:
        return True

    def administrate(self, simulation: Simulation) -> None:
        pass
