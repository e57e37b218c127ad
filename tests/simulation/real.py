"""The real parts in a virtual world: logs, partitions, controller and membership, as a member of a cluster has them."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kbroker.cluster import controller_requests as ask
from kbroker.cluster import topic_requests
from kbroker.cluster.cluster import MorePartitions
from kbroker.cluster.controller import Controller, ControllerConfig
from kbroker.cluster.controller_flows import UncleanElectionEnabled
from kbroker.cluster.joining import CannotJoin, InterBrokerListeners
from kbroker.cluster.membership import Membership, MembershipOptions
from kbroker.cluster.new_topics import TopicDefaults
from kbroker.cluster.producer_ids import AllocatedProducerIds
from kbroker.cluster.shared_topics import SharedTopics
from kbroker.config.broker_config import BrokerConfig, Given, config_of
from kbroker.coordination import paths
from kbroker.coordination.store import Store, StoreUnavailable
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import Endpoint, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.replication.fetchers import FetcherOptions, Fetchers
from kbroker.replication.partitions import ReplicatedPartitions
from kbroker.server.local_partitions import LocalPartitions
from kbroker.server.member_partitions import UNCLEAN_ELECTION, MemberPartitions
from kbroker.server.on_demand import OnDemand
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import StorageOptions
from tests.simulation.admin import AGAIN
from tests.simulation.broker import CLUSTER_ID, SESSION_TIMEOUT
from tests.simulation.fetchers import Followed, VirtualEngine
from tests.simulation.scheduler import MS, SECOND, TaskLock
from tests.simulation.stored import LogFiles

if TYPE_CHECKING:
    from tests.simulation.broker import Life
    from tests.simulation.simulation import Simulation
    from tests.simulation.tree import Session

MAX_LAG_MS = 4000
REPLICA_BYTES = 2000
FETCH_BACKOFF_MS = 200
LISTENER = "PLAINTEXT"
HAND_OVER_ATTEMPTS = 3
HAND_OVER_PAUSE = 500 * MS
ADMIN_TIMEOUT_MS = 2000


@lru_cache(maxsize=16)
def settings(segment_bytes: int, *, flushes: bool) -> BrokerConfig:
    """The settings that every broker is started with."""
    given = {
        "log.segment.bytes": segment_bytes,
        "log.index.interval.bytes": 100,
        "log.retention.ms": -1,
        "min.insync.replicas": 2,
        "replica.lag.time.max.ms": MAX_LAG_MS,
        "transaction.partition.verification.enable": "false",
        "kbroker.stop.timeout.ms": 60_000,
    }
    if flushes:
        given["log.flush.interval.messages"] = 1
    return config_of([Given(name, str(value), "the simulation") for name, value in given.items()])


class RealLogs:
    """The logs of one life, as `server/broker.py` and `server/member.py` compose them, without threads."""

    def __init__(self, life: Life, topics: SharedTopics):
        plan = life.simulation.plan
        self._life: Life = weakref.proxy(life)
        self._config = settings(plan.segment_bytes, flushes=plan.flushes)
        self._manager = LogManager(
            StorageOptions((life.broker.disk.path,), flusher_threads=0),
            fs=life.broker.disk.fs,
            clock=life.clock,
            randomness=random.Random(f"{plan.seed} {life.node_id} {life.broker.life_count}"),
            is_member=True,
        )
        local = LocalPartitions(self._manager, self._config, life.node_id, self._take_config)
        dynamic = topics.dynamic_broker_configs()
        if dynamic:
            local.update_broker_configs(dynamic)
        self._manager.start(local.resolver(topics), life.node_id, CLUSTER_ID, background=False)
        local.serve(topics, OnDemand(_no_coordinator), OnDemand(_no_coordinator))
        self.host = MemberPartitions(self._manager, local, topics, self._tell_unclean)
        topics.serve(self.host)
        self._is_closed = False

    @property
    def allows_unclean(self) -> bool:
        return bool(self._config[UNCLEAN_ELECTION])

    def _take_config(self, config: BrokerConfig) -> None:
        """Do as `Member.take_config`."""
        before, self._config = self._config, config
        if config[UNCLEAN_ELECTION] and not before[UNCLEAN_ELECTION]:
            self._life.controller.post(UncleanElectionEnabled())

    def _tell_unclean(self, topic: str) -> None:
        self._life.controller.post(UncleanElectionEnabled(topic))

    def get(self, at: TopicPartition) -> Any:
        return self.host.get(at)

    def all(self) -> list[Any]:
        return self._manager.logs()

    def take_news(self) -> list[TopicPartition]:
        news = self._manager.partition_table.news
        return [] if news is None else [TopicPartition(*each) for each in news.take()]

    def set_clock_ms(self, now_ms: int) -> None:
        for log in self._manager.logs():
            log.directory.set_clock_ms(now_ms)
            break

    def write_checkpoints(self, *, everything: bool) -> None:
        """High watermarks only, or recovery points and starts too, which are written less often, before retention."""
        if everything:
            self._manager.check_retention()
        else:
            self._manager.write_high_watermarks()

    def stop(self) -> None:
        """Flush and close all, as a clean stop does."""
        self._is_closed = True
        self._manager.stop()

    def abandon(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._manager.abandon()


def _no_coordinator() -> Any:
    raise AssertionError("there are no coordinators here")


class NoListeners:
    """`surroundings.RoleListeners`: there are no coordinators here."""

    def leads(self, topic_partition: TopicPartition, leader_epoch: int) -> None: ...
    def follows(self, topic_partition: TopicPartition, leader_epoch: int) -> None: ...
    def gone(self, topic_partition: TopicPartition) -> None: ...


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
            timer = self._life.scheduler.after(max(MS, seconds * SECOND), self._time_out, self._life.process)
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
        self._life.metadata.registered(store, broker_epoch)
        self._life.controller.session_is(store, broker_epoch)
        self._life.touched()

    def configs_changed(self, entity_paths: Sequence[str]) -> None:
        self._life.metadata.configs_changed(entity_paths)
        self._life.touched()

    def group_configs_changed(self) -> None:
        self._life.metadata.group_configs_changed()

    def brokers_changed(self, kbroker_versions: Mapping[int, str | None]) -> None:
        self._life.metadata.brokers_changed(kbroker_versions)

    def must_stop(self, reason: str) -> None:
        raise AssertionError(reason)


class RealKit:
    """Makes the real parts and asks them."""

    def reader(self, log: Any) -> LogFiles:
        return LogFiles(log.path)

    def fetchers(self, life: Life) -> Fetchers:
        return Fetchers(
            life.node_id,
            lambda leader_id, _: VirtualEngine(life, leader_id),
            life.new_peers(),
            FetcherOptions(FETCH_BACKOFF_MS),
        )

    def open(self, life: Life, session: Store) -> None:
        """Make the parts that need the tree, and open the logs."""
        chance = random.Random(f"topics {life.simulation.plan.seed} {life.node_id} {life.broker.life_count}")
        life.metadata = SharedTopics(
            session, life.node_id, CLUSTER_ID,
            defaults=TopicDefaults(1, 3), internal_topics={}, exact_internal_topics=(),
            ask=life.controller.ask, is_controller=lambda: life.controller.is_active,
            is_deleting=life.controller.is_deleting, is_moving=life.controller.is_moving, clock=life.clock,
            randomness=chance, draw_uuid=lambda: UUID(int=chance.getrandbits(128), version=4),
        )  # fmt: skip
        life.metadata._reading = TaskLock(life.simulation.scheduler, life.process)  # type: ignore[assignment]
        life.metadata.on_due = life.membership.woken.set
        life.logs = RealLogs(life, life.metadata)
        life.partitions = ReplicatedPartitions(
            life.node_id, life.logs.host, life.fetchers, life.ask_controller, life.metadata, life.clock, NoListeners(),
            max_lag_ms=MAX_LAG_MS,
        )  # fmt: skip
        life.producer_ids = AllocatedProducerIds(life.node_id, lambda: life.metadata.broker_epoch, life.ask_controller)
        life.partitions.on_usable = life.membership.ask_for_roles
        life.metadata.on_deleted = life.partitions.topics_deleted

    def controller(self, life: Life) -> Controller:
        config = ControllerConfig(leader_imbalance_check_interval_s=5)
        return Controller(
            life.node_id, life.new_peers(), life.clock, config, lambda topic: life.logs.allows_unclean,
            wake=life.touched,
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
            self.open(life, membership.connect(life.node_id, CLUSTER_ID))
            life.listen()
            membership.register([endpoint], None)
            life.serve()
        except (CannotJoin, KbrokerError) as error:
            life.note(f"cannot join: {error}")
            life.give_up()
            return
        while not life.has_left:
            delay, left = membership.step(), life.metadata.step()
            life.touched()
            woken.wait(delay if left is None else min(delay, left))

    def leave(self, life: Life) -> None:
        """What a broker does that stops: it hands over what it leads (`server/controlled_shutdown.py`), and closes."""
        for _ in range(HAND_OVER_ATTEMPTS):
            answer = self._handed_over(life)
            if answer is not None and not answer.error_code and not answer.remaining_partitions:
                break
            life.sleep(HAND_OVER_PAUSE)
        life.note("stops")
        life.controller.resign()
        life.partitions.stop()
        life.has_left = True
        life.membership.leave()
        life.logs.stop()

    def _handed_over(self, life: Life) -> M.ControlledShutdownResponse | None:
        task = next(task for task in life.process.tasks if task.is_current)
        life.ask_controller(
            lambda _: M.ControlledShutdownRequest(broker_id=life.node_id, broker_epoch=life.metadata.broker_epoch),
            ApiKey.CONTROLLED_SHUTDOWN, 3, lambda answer, _: task.answer(answer),
        )  # fmt: skip
        answer = task.wait()
        assert answer is None or isinstance(answer, M.ControlledShutdownResponse)
        return answer

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
        """Do as the handlers of an administrator's requests. The answer is (error code, all codes)."""
        kind, *fields = value
        topics = life.metadata

        def done(results: Iterable[Any]) -> None:
            codes = [code_of(each) for each in results]
            respond((next((code for code in AGAIN if code in codes), 0), codes))

        def asked(outcome: Any) -> None:
            done([outcome] if isinstance(outcome, ErrorCode) else [each.error for each in outcome.values()])

        if kind == "create":
            topics.create_topics(fields, ADMIN_TIMEOUT_MS, done)
        elif kind == "grow":
            topics.create_partitions([MorePartitions(*fields)], ADMIN_TIMEOUT_MS, done)
        elif kind == "delete":
            topics.delete_topics(fields, ADMIN_TIMEOUT_MS, done)
        elif kind == "reassign":
            life.controller.ask(ask.AlterReassignments(fields[0]), asked)
        elif kind == "elect":
            life.controller.ask(ask.ElectLeaders(ask.PREFERRED, fields[0]), asked)
        else:
            life.task(lambda: done([self._configured(topics, kind, *fields)]), kind)

    def _configured(self, topics: SharedTopics, kind: str, *fields: str) -> ErrorCode:
        *entity, name, value = fields
        try:
            if kind == "configure":
                topics.set_topic_configs(entity[0], lambda topic: {**topic.configs, name: value})
            else:
                topics.set_broker_configs(paths.DEFAULT_ENTITY, lambda configs: {**configs, name: value})
        except KbrokerError as error:
            return error.code
        return ErrorCode.NONE

    # --- logs

    def append(self, log: Any, batch: bytes, acks: int) -> Any:
        return log.append(batch, wait=False, acks=acks)

    def append_marker(self, log: Any, producer_id: int, epoch: int, commit: bool, bumped: bool) -> Any:
        return log.append_marker(producer_id, epoch, 0, commit=commit, bumped=bumped, wait=False)

    def ack_code(self, log: Any) -> int:
        state = log.state
        in_sync = 1 + sum(each.in_sync for each in state.followers())
        return int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND) if in_sync < log.options.min_in_sync else 0

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
        """What a leader answers to a follower's fetch, as `_core/server/fetch` does."""
        self.check_epoch(log, wanted.leader_epoch)
        state = log.state
        code, (epoch, end) = state.serve_follower(
            wanted.node_id, wanted.broker_epoch, wanted.offset, wanted.last_epoch, wanted.log_start, 0
        )
        if code:
            raise ProtocolError(ErrorCode(code))
        if epoch >= 0 or end >= 0:
            return 0, (epoch, end), b"", state.high_watermark, state.log_start_offset
        data = log.read(wanted.offset, REPLICA_BYTES, to_log_end=True)
        return 0, None, data, state.high_watermark, state.log_start_offset

    def fetched(self, life: Life, engine: VirtualEngine, followed: Followed, answer: Any) -> None:
        """Do with an answer what the fetch engine and the driver of its news do."""
        code, diverging, records, high_watermark, log_start = answer
        if code:
            engine.tell(followed, "error", code)
            return
        if diverging is not None:
            engine.tell(followed, "diverging", 0, diverging)
            return
        state = followed.log.state
        code = state.append_as_follower(records, followed.leader_epoch, high_watermark, log_start)
        if state.flush_due and state.log_end_offset < high_watermark:
            life.requests.flush(followed.log)
        elif state.flush_due:
            followed.is_busy = True
            life.requests.flush(followed.log, lambda code: self._flushed(engine, followed, code))
        if code:
            engine.tell(followed, "append", code)

    def _flushed(self, engine: VirtualEngine, followed: Followed, code: int) -> None:
        followed.is_busy = False
        if code:
            engine.tell(followed, "append", code)
        else:
            engine.wake()

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
            planned[name] = topic_requests.PlannedTopic(paths.TopicAssignment(topic_id, assignment, {}, {}), {})
        life = self._active(simulation)
        assert life is not None
        life.controller.ask(
            topic_requests.CreateTopics(planned), lambda codes: life.note(f"topics are created: {codes}")
        )
        life.touched()


def code_of(result: Any) -> ErrorCode:
    """The error code in what a change of a topic came to."""
    if isinstance(result, ErrorCode):
        return result
    return result.code if isinstance(result, ProtocolError) else ErrorCode.NONE
