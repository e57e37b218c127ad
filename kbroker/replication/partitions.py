"""The partitions of a member of a cluster: their roles, as the controller gives them, and their ISRs.

Control requests come one at a time. What they change is told to the log (its role), the fetchers and the listeners.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError, StorageFailed
from kbroker.model import TopicPartition, topic_ids_differ
from kbroker.protocol import messages as M
from kbroker.replication.control_requests import (
    DURING_DELETE,
    NO_EPOCH,
    ToldRole,
    ToldStop,
    leader_and_isr_answer,
    stop_replica_answer,
    told_roles,
    told_stops,
)
from kbroker.replication.hosted import Hosted, Role
from kbroker.replication.in_sync_requests import Change, InSyncRequests
from kbroker.replication.surroundings import (
    AskController,
    Fetchers,
    FollowerState,
    LogHost,
    Metadata,
    ReplicaLog,
    ReplicaState,
    RoleListeners,
)
from kbroker.rules import in_sync as rules
from kbroker.rules import incomplete_replica
from kbroker.rules.in_sync import NOBODY, Committed, InSync, Next, Proposal
from kbroker.rules.incomplete_replica import Declined, Verdict
from kbroker.rules.partition_notes import PartitionNotes
from kbroker.rules.topic_names import topic_name_problem

LOG = logging.getLogger(__name__)

UNKNOWN_BROKER_EPOCH = -1
UNKNOWN_REPLICA_EPOCH = -1

RETRY_REFUSED_MS = 500
"""How long a leader waits before it asks again to let a replica in, after the controller has refused to."""

RETRY_MISSED_S = 2.0
MOST_RETRY_MISSED_S = 30.0
"""How long after a role was missed it is looked whether it can be taken now; each time twice as long, up to this."""


class ReplicaCounts(NamedTuple):
    """What has happened to replicas here since the start, for metrics; the first three are changes of ISRs."""

    expands: int = 0
    shrinks: int = 0
    failed: int = 0
    damaged: int = 0
    """How often damage was found in a log."""


class _Replica:
    """A partition here, until its role changes. `ReplicatedPartitions._lock` guards the attributes."""

    __slots__ = ("checked", "ends", "hosted", "in_sync", "is_waiting", "log", "missed", "retry_at")

    def __init__(self, hosted: Hosted, log: ReplicaLog | None = None):
        self.hosted = hosted
        self.log = log
        """None if it is offline."""
        self.in_sync: InSync | None = None
        """The ISR, if this broker leads and there are other replicas."""
        self.is_waiting = False
        """Whether it follows a leader that the metadata does not know as alive: it does not fetch yet."""
        self.missed: ToldRole | None = None
        """The role that it could not take, although its directory has not failed: the disk may be full."""
        self.ends: dict[int, int] = {}
        """Of a leader: the ends of the logs of followers that had less at the last look."""
        self.checked: set[int] = set()
        """Of a leader: offsets at which a follower has not come on, and where the own log is good."""
        self.retry_at = 0.0
        """Until then, in seconds of the clock, no replica is let in: the controller has just refused one."""


class ReplicatedPartitions:
    """The partitions of which this broker has a replica. Thread-safe; it has no thread of its own.

    `leader_and_isr`, `stop_replicas`, `update_metadata` and `directory_failed` wait for disks and for each other: they
    are carried out one at a time (`_control_lock`). The others, and what answers of the controller do, wait for neither
    (`_lock`, which is taken after `_control_lock`), but for `tick` while it opens a log that a disk has refused.
    """

    def __init__(
        self,
        node_id: int,
        logs: LogHost,
        fetchers: Fetchers,
        ask_controller: AskController,
        metadata: Metadata,
        clock: Clock,
        listeners: RoleListeners,
        *,
        max_lag_ms: int = 30_000,
    ):
        """`max_lag_ms` is replica.lag.time.max.ms."""
        self._node_id = node_id
        self._logs = logs
        self._fetchers = fetchers
        self._metadata = metadata
        self._clock = clock
        self._listeners = listeners
        self._max_lag_ms = max_lag_ms
        self.on_due: Callable[[], None] = _nobody_is_told
        """Called by any thread when `tick` is due sooner than it said. It must not wait."""
        self.on_usable: Callable[[], None] = _nobody_is_told
        """Called when roles that were missed can be taken, or a replica was given up: it asks for all roles."""
        self._requests = InSyncRequests(
            node_id, ask_controller, lambda: metadata.broker_epoch, self._settle, self._tell_notes, clock,
            lambda: self.on_due(),
        )  # fmt: skip
        self._control_lock = threading.Lock()
        self._controller_epoch = 0
        self._is_stopping = False
        self._lock = threading.Lock()
        self._replicas: dict[TopicPartition, _Replica] = {}
        self._left: set[TopicPartition] = set()
        """Partitions with a log here, of which the metadata has said that this broker is no replica any more."""
        self._live: frozenset[int] = frozenset()
        self._counts = ReplicaCounts()
        self._notes = PartitionNotes()
        """What the log is to say of partitions; guarded by `_lock`."""
        self._next_look = clock.monotonic() + self._look_interval_s
        self._next_try: float | None = None
        """When it is looked for roles that were missed; None if there are none."""
        self._retry_missed_s = RETRY_MISSED_S
        self._has_deleted_missed = False
        """Whether a replica was deleted that had missed its role: the controller still takes it for a failed one."""
        self._declined: dict[TopicPartition, Declined] = {}
        """What was declined of replicas that lack committed records; guarded by `_control_lock`."""

    # --- questions

    def get(self, topic_partition: TopicPartition) -> Hosted | None:
        """Return the partition as it is now; None if this broker has no replica of it, by what the controller said."""
        replica = self._replicas.get(topic_partition)
        return None if replica is None else replica.hosted

    def all(self) -> dict[TopicPartition, Hosted]:
        """Return every partition that this broker has a replica of."""
        with self._lock:
            return {topic_partition: replica.hosted for topic_partition, replica in self._replicas.items()}

    @property
    def counts(self) -> ReplicaCounts:
        return self._counts

    @property
    def controller_epoch(self) -> int:
        """The highest controller epoch that this broker has obeyed; 0 before the first request."""
        return self._controller_epoch

    # --- control requests

    def leader_and_isr(self, request: M.LeaderAndIsrRequest, version: int) -> M.LeaderAndIsrResponse:
        """Carry out LeaderAndIsr and return its answer. A partition that fails does not keep the others from theirs."""
        told = told_roles(request)
        with self._control_lock:
            if error := self._fence(request):
                return leader_and_isr_answer(request, version, dict.fromkeys(told, error), error)
            results = {topic_partition: self._refusal(role) for topic_partition, role in told.items()}
            accepted = [role for role in told.values() if not results[role.topic_partition] and not self._is_late(role)]
            self._fetchers.stop([role.topic_partition for role in accepted])
            self._logs.expect([role.topic_partition for role in accepted if not role.is_new])
            leads = [role for role in accepted if role.leader == self._node_id]
            follows = [role for role in accepted if role.leader != self._node_id]
            results |= {role.topic_partition: self._lead(role) for role in leads}
            results |= {role.topic_partition: self._follow(role) for role in follows}
            self._start_fetchers(role.topic_partition for role in follows)
            for role in leads:
                if not results[role.topic_partition]:
                    self._listeners.leads(role.topic_partition, role.leader_epoch)
            for role in follows:
                if not results[role.topic_partition]:
                    self._listeners.follows(role.topic_partition, role.leader_epoch)
            for role in accepted:
                if results[role.topic_partition] == ErrorCode.KAFKA_STORAGE_ERROR:
                    self._listeners.gone(role.topic_partition)
            return leader_and_isr_answer(request, version, results)

    def stop_replicas(self, request: M.StopReplicaRequest) -> M.StopReplicaResponse:
        """Carry out StopReplica and return its answer."""
        with self._control_lock:
            if error := self._fence(request):
                return stop_replica_answer({}, error)
            told = told_stops(request)
            results = {topic_partition: self._stop_refusal(stop) for topic_partition, stop in told.items()}
            accepted = [stop for topic_partition, stop in told.items() if not results[topic_partition]]
            self._fetchers.stop([stop.topic_partition for stop in accepted])
            for topic_partition, _, deletes in accepted:
                if deletes:
                    results[topic_partition] = self._delete(topic_partition)
                    self._listeners.gone(topic_partition)
                elif (replica := self._replicas.get(topic_partition)) is not None:
                    replica.is_waiting = False
            return stop_replica_answer(results)

    def update_metadata(self, request: M.UpdateMetadataRequest) -> M.UpdateMetadataResponse:
        """Carry out UpdateMetadata and return its answer.

        Beside the metadata, it starts to fetch from leaders that had been told of before their brokers were, and
        settles changes of ISRs whose answers were lost. Raises ProtocolError, and changes nothing, if the request names
        something that cannot be.
        """
        with self._control_lock:
            if error := self._fence(request):
                return M.UpdateMetadataResponse(error_code=error)
            live = frozenset(self._metadata.update(request))
            self._leave_what_is_gone(request)
            self._learn(request)
            if live != self._live:
                self._set_live(live)
            return M.UpdateMetadataResponse()

    def _fence(self, request: M.LeaderAndIsrRequest | M.StopReplicaRequest | M.UpdateMetadataRequest) -> ErrorCode:
        """Return why the request must not be obeyed; NONE if it may. From then on older controllers are not obeyed.

        A request for a former life of this broker is refused. One for a later registration than this broker knows of
        is obeyed: the controller may know of a registration before the broker does.
        """
        if UNKNOWN_BROKER_EPOCH != request.broker_epoch < self._metadata.broker_epoch:
            LOG.info(
                "%s of controller %d is for this broker's epoch %d, and now it has %d: refused",
                type(request).__name__, request.controller_id, request.broker_epoch, self._metadata.broker_epoch,
            )  # fmt: skip
            return ErrorCode.STALE_BROKER_EPOCH
        if request.controller_epoch < self._controller_epoch:
            LOG.warning(
                "%s of controller %d is of controller epoch %d, and there has been %d: refused",
                type(request).__name__, request.controller_id, request.controller_epoch, self._controller_epoch,
            )  # fmt: skip
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self._controller_epoch = request.controller_epoch
        return ErrorCode.NONE

    # --- roles

    def _refusal(self, told: ToldRole) -> ErrorCode:
        """Return why a role is not taken; NONE if it is."""
        topic_partition = told.topic_partition
        if topic_partition.partition_id < 0 or topic_name_problem(topic_partition.topic) is not None:
            LOG.error("the controller gives a role in a partition that cannot be: %.300r", topic_partition)
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        replica = self._replicas.get(topic_partition)
        if self._logs.is_offline(topic_partition):
            return ErrorCode.KAFKA_STORAGE_ERROR
        log = self._logs.get(topic_partition)
        is_left = topic_partition in self._left
        if log is not None and topic_ids_differ(log.topic_id, told.topic_id) and not is_left:
            LOG.error("%s is of topic id %s, and the controller says %s", topic_partition, log.topic_id, told.topic_id)
            return ErrorCode.INCONSISTENT_TOPIC_ID
        epoch = NO_EPOCH if replica is None else replica.hosted.leader_epoch
        may_be_told_again = replica is not None and (replica.is_waiting or replica.missed is not None)
        if told.leader_epoch < epoch or (told.leader_epoch == epoch and not may_be_told_again):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._node_id not in told.replicas:
            LOG.warning(
                "%s: the controller gives a role to broker %d, not one of %s",
                topic_partition,
                self._node_id,
                told.replicas,
            )
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _lead(self, told: ToldRole) -> ErrorCode:
        """Lead a partition. Returns the error that keeps this broker from it."""
        others = [node_id for node_id in told.replicas if node_id != self._node_id]

        def take_role(log: ReplicaLog, replica: _Replica) -> None:
            if others:
                log.lead(told.leader_epoch, dict.fromkeys(others, UNKNOWN_REPLICA_EPOCH), told.isr)
                log.state.set_live(self._live)
                replica.in_sync = rules.led(told.leader_epoch, told.partition_epoch, told.isr)
            else:
                log.be_alone(told.leader_epoch)

        return self._take_role(told, Role.LEADER, take_role)

    def _follow(self, told: ToldRole) -> ErrorCode:
        """Follow the partition's leader. Returns the error that keeps this broker from it.

        A leader that the metadata does not know as alive is not fetched from, until UpdateMetadata tells of it.
        """

        def take_role(log: ReplicaLog, replica: _Replica) -> None:
            log.follow(told.leader_epoch)
            replica.is_waiting = told.leader not in self._live

        return self._take_role(told, Role.FOLLOWER, take_role)

    def _take_role(self, told: ToldRole, role: Role, take_role: Callable[[ReplicaLog, _Replica], None]) -> ErrorCode:
        """Give the log its role, then note it. The epoch is noted last: a role that was not taken may be told again."""
        topic_partition = told.topic_partition
        self._forget_in_sync(topic_partition)
        hosted = Hosted(
            role, told.topic_id, told.leader, told.leader_epoch, told.partition_epoch, told.replicas, told.isr,
            told.adding, told.removing,
        )  # fmt: skip
        try:
            self._make_way(told)
            log = self._logs.open_or_create(
                topic_partition.topic, told.topic_id, topic_partition.partition_id, is_new=told.is_new
            )
            self._check_complete(log, told)
            replica = _Replica(hosted, log)
            take_role(log, replica)
        except ProtocolError as error:
            LOG.error("%s: %s", topic_partition, error)
            return error.code
        except KbrokerError as error:
            LOG.error("%s cannot be %s in leader epoch %d: %s", topic_partition, role.value, told.leader_epoch, error)
            before = self._replicas.get(topic_partition)
            epoch = NO_EPOCH if before is None else before.hosted.leader_epoch
            self._go_offline(topic_partition, hosted._replace(leader_epoch=epoch), told)
            return ErrorCode.KAFKA_STORAGE_ERROR
        with self._lock:
            self._replicas[topic_partition] = replica
        self._left.discard(topic_partition)
        return ErrorCode.NONE

    def _make_way(self, told: ToldRole) -> None:
        """Delete a log that was left here by an older topic of the same name. Raises StorageFailed."""
        log = self._logs.get(told.topic_partition)
        if log is not None and told.topic_partition in self._left and topic_ids_differ(log.topic_id, told.topic_id):
            LOG.info("%s: the log of topic id %s is deleted, as that topic was", told.topic_partition, log.topic_id)
            self._logs.delete(told.topic_partition)

    def _check_complete(self, log: ReplicaLog, told: ToldRole) -> None:
        """Open the log. Raises StorageFailed if the role is declined because committed records are missing."""
        topic_partition = told.topic_partition
        try:
            log.open()
        except KbrokerError:
            if log.is_complete:
                raise
        if log.is_complete:
            self._declined.pop(topic_partition, None)
            return
        verdict = incomplete_replica.verdict(
            self._node_id, told.leader, told.leader_epoch, told.isr, told.replicas,
            self._declined.get(topic_partition, Declined()),
        )  # fmt: skip
        if verdict is Verdict.DECLINE:
            if told.leader == self._node_id and told.isr == (self._node_id,):
                self._declined[topic_partition] = Declined(told.leader_epoch)
            raise StorageFailed("it lacks committed records, so others are to be asked first")
        if verdict is Verdict.TAKE_ANEW:
            LOG.warning("%s: what this replica lacks is fetched from leader %d", topic_partition, told.leader)
            log.mend()
        elif told.leader == self._node_id:
            log.accept()
            LOG.error("%s: this replica lacks committed records, and leads: it is alone in the ISR", topic_partition)
        else:
            log.open()

    def _is_late(self, told: ToldRole) -> bool:
        """Return whether this broker knows a later state of the partition. Such a role is answered like one taken."""
        replica = self._replicas.get(told.topic_partition)
        if replica is None or told.partition_epoch >= replica.hosted.partition_epoch:
            return False
        LOG.info("%s: a role of partition epoch %d comes late", told.topic_partition, told.partition_epoch)
        return True

    def _forget_in_sync(self, topic_partition: TopicPartition) -> None:
        """End the leader's part for the partition: no answer of the controller reaches its log any more."""
        with self._lock:
            replica = self._replicas.get(topic_partition)
            if replica is not None:
                replica.in_sync = None
        self._requests.withdraw(topic_partition)

    def _go_offline(self, topic_partition: TopicPartition, hosted: Hosted, missed: ToldRole | None = None) -> None:
        """Note that the partition's log cannot be used. What is left of it in memory serves nothing.

        A role that was `missed` is not taken later: the controller takes this replica for one in a failed directory,
        so another one may lead by then. When the disk lets the log be opened, the controller is asked for roles.
        """
        log = self._logs.get(topic_partition)
        if log is not None:
            with suppress(KbrokerError):
                log.stop_replica()
        with self._lock:
            before = self._replicas.get(topic_partition)
            replica = self._replicas[topic_partition] = _Replica(hosted._replace(role=Role.OFFLINE, proposed=None))
            replica.missed = missed
            if missed is not None and (before is None or before.missed is None):
                self._retry_missed_s = RETRY_MISSED_S
                self._next_try = self._clock.monotonic() + RETRY_MISSED_S
        if missed is not None:
            self.on_due()

    def _start_fetchers(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Fetch from the leaders of those partitions that this broker follows and whose leaders are alive."""
        if self._is_stopping:
            return
        notes = PartitionNotes()
        for topic_partition in topic_partitions:
            replica = self._replicas.get(topic_partition)
            if replica is None or replica.log is None or replica.hosted.role is not Role.FOLLOWER:
                continue
            hosted = replica.hosted
            if hosted.leader == NOBODY:
                notes.add("it has no leader now", topic_partition)
            elif replica.is_waiting:
                away = f"its leader {hosted.leader} is not among the live brokers that this one knows"
                notes.add(away, topic_partition)
            else:
                self._fetchers.start(topic_partition, replica.log, hosted.leader, hosted.leader_epoch)
        for line in notes.take():
            LOG.warning("%s", line)

    def _stop_refusal(self, stop: ToldStop) -> ErrorCode:
        """Return why a partition is not stopped; NONE if it is. One that is not here is stopped."""
        if self._logs.is_offline(stop.topic_partition):
            return ErrorCode.KAFKA_STORAGE_ERROR
        replica = self._replicas.get(stop.topic_partition)
        if replica is None or stop.leader_epoch in (DURING_DELETE, NO_EPOCH):
            return ErrorCode.NONE
        if stop.leader_epoch < replica.hosted.leader_epoch:
            LOG.warning("%s: StopReplica of leader epoch %d comes late", stop.topic_partition, stop.leader_epoch)
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def _delete(self, topic_partition: TopicPartition) -> ErrorCode:
        self._forget_in_sync(topic_partition)
        self._declined.pop(topic_partition, None)
        with self._lock:
            replica = self._replicas.pop(topic_partition, None)
        self._has_deleted_missed |= replica is not None and replica.missed is not None
        self._left.discard(topic_partition)
        try:
            self._logs.delete(topic_partition)
        except KbrokerError as error:
            LOG.error("%s cannot be deleted: %s", topic_partition, error)
            return error.code
        return ErrorCode.NONE

    def directory_failed(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Note that these partitions' logs are in a directory that has failed: they go offline."""
        with self._control_lock:
            self._fetchers.stop(topic_partitions)
            for topic_partition in topic_partitions:
                replica = self._replicas.get(topic_partition)
                if replica is not None and replica.hosted.role is not Role.OFFLINE:
                    self._forget_in_sync(topic_partition)
                    self._go_offline(topic_partition, replica.hosted)
                    self._listeners.gone(topic_partition)

    def damaged(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Give a replica up whose log is damaged at `offset`, so that another one leads; then it is made good.

        A leader that is alone in the ISR leads on: nobody has more. Returns whether the replica was given up.
        """
        with self._control_lock:
            replica = self._replicas.get(topic_partition)
            if replica is None or replica.log is None:
                return False
            self._counts = self._counts._replace(damaged=self._counts.damaged + 1)
            hosted = replica.hosted
            if hosted.is_leader and hosted.isr == (self._node_id,):
                LOG.error("%s is damaged at offset %d, and no other replica is in the ISR", topic_partition, offset)
                return False
            LOG.error("%s is damaged at offset %d: this replica begins anew there", topic_partition, offset)
            replica.log.note_damage(offset)
            self._fetchers.stop([topic_partition])
            self._forget_in_sync(topic_partition)
            told = ToldRole(
                topic_partition, hosted.topic_id, hosted.leader, hosted.leader_epoch, hosted.partition_epoch,
                hosted.isr, hosted.replicas, hosted.adding, hosted.removing, is_new=False,
            )  # fmt: skip
            self._go_offline(topic_partition, hosted, told)
            self._listeners.gone(topic_partition)
        self.on_usable()
        return True

    def stop(self) -> None:
        """Stop fetching and changing ISRs for good. Roles stay as they are."""
        with self._control_lock:
            self._is_stopping = True
            self._fetchers.stop(list(self._replicas))
            self._requests.stop()

    # --- the metadata

    def _leave_what_is_gone(self, request: M.UpdateMetadataRequest) -> None:
        """Stop replicas that this broker does not have any more.

        It was away when it should have been told. Whoever registers again is told only what there is. The log stays on
        the disk, where the next start leaves it alone.
        """
        gone = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                topic_partition = TopicPartition(topic.topic_name, state.partition_index)
                replica = self._replicas.get(topic_partition)
                if replica is not None and self._is_gone(replica.hosted, UUID(bytes=topic.topic_id), state):
                    gone.append(topic_partition)
        self._leave(gone)

    def topics_deleted(self, topics: Mapping[str, UUID]) -> None:
        """Stop replicas of topics that were deleted while nobody could tell this broker. `topics`: their ids."""
        with self._control_lock:
            self._leave(
                [
                    at
                    for at, replica in self._replicas.items()
                    if at.topic in topics and not topic_ids_differ(replica.hosted.topic_id, topics[at.topic])
                ]
            )

    def _leave(self, gone: Sequence[TopicPartition]) -> None:
        """Stop replicas that this broker does not have any more; their logs stay on the disk."""
        if not gone:
            return
        self._fetchers.stop(gone)
        for topic_partition in gone:
            self._forget_in_sync(topic_partition)
            self._declined.pop(topic_partition, None)
            with self._lock:
                self._notes.add("no replica here any more", topic_partition)
                log = self._replicas.pop(topic_partition).log
            self._left.add(topic_partition)
            if log is not None:
                with suppress(KbrokerError):
                    log.stop_replica()
            self._listeners.gone(topic_partition)
        self._tell_notes()

    def _is_gone(
        self, hosted: Hosted, topic_id: UUID, state: M.UpdateMetadataRequest.UpdateMetadataPartitionState
    ) -> bool:
        """Return whether the metadata says that the partition is another one, or has other replicas by now."""
        if topic_ids_differ(hosted.topic_id, topic_id):
            return True
        is_later = state.leader == DURING_DELETE or bool(state.replicas and state.leader_epoch > hosted.leader_epoch)
        return is_later and self._node_id not in state.replicas

    def _learn(self, request: M.UpdateMetadataRequest) -> None:
        """Take the ISRs of partitions led here from the metadata, where they are later than those known."""
        if not any(replica.in_sync is not None for replica in self._replicas.values()):
            return
        for topic in request.topic_states:
            for state in topic.partition_states:
                self._learn_state(TopicPartition(topic.topic_name, state.partition_index), state)
        for state in request.ungrouped_partition_states:
            self._learn_state(TopicPartition(state.topic_name, state.partition_index), state)
        self._tell_notes()

    def _learn_state(
        self, topic_partition: TopicPartition, state: M.UpdateMetadataRequest.UpdateMetadataPartitionState
    ) -> None:
        replica = self._replicas.get(topic_partition)
        if replica is None or replica.in_sync is None or state.leader != self._node_id:
            return
        with self._lock:
            before = replica.in_sync
            after = rules.learned(before, Committed(state.leader_epoch, state.zk_version, tuple(state.isr)))
            if after is before:
                return
            self._set_in_sync_locked(topic_partition, replica, after)
        self._requests.withdraw(topic_partition)

    def _set_live(self, live: frozenset[int]) -> None:
        came = live - self._live
        self._live = live
        waiting = []
        with self._lock:
            for topic_partition, replica in self._replicas.items():
                if replica.in_sync is not None:
                    _state_of(replica).set_live(live)
                elif replica.is_waiting and replica.hosted.leader in came:
                    replica.is_waiting = False
                    waiting.append(topic_partition)
        self._start_fetchers(waiting)

    # --- ISRs

    def on_news(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Let followers in that have caught up, in partitions whose logs say so (`ReplicaNews`)."""
        for topic_partition in topic_partitions:
            self._let_in(topic_partition)
        self._requests.send()

    def tick(self) -> int:
        """Do what is due: put replicas out that lag, ask the controller again. Returns milliseconds until the next.

        Replicas are looked at every half of replica.lag.time.max.ms, so one is put out after 1 to 1.5 times that.
        """
        if self._clock.monotonic() >= self._next_look:
            self._next_look = self._clock.monotonic() + self._look_interval_s
            with self._lock:
                led = [each for each, replica in self._replicas.items() if replica.in_sync is not None]
            for topic_partition in led:
                self._check_own(topic_partition)
                self._put_out(topic_partition)
            self._tell_notes()
        self._try_missed()
        self._requests.send()
        due_ms = [self._until_ms(self._next_look), self._until_ms(self._next_try), self._requests.due_ms]
        return min(each for each in due_ms if each is not None)

    def _until_ms(self, when: float | None) -> int | None:
        return None if when is None else max(0, math.ceil((when - self._clock.monotonic()) * 1000))

    def _try_missed(self) -> None:
        """Ask for roles if a log can be opened that could not. No-op while a control request is carried out."""
        if self._next_try is None or self._clock.monotonic() < self._next_try or self._is_stopping:
            return
        self._retry_missed_s = min(2 * self._retry_missed_s, MOST_RETRY_MISSED_S)
        self._next_try = self._clock.monotonic() + self._retry_missed_s
        if not self._control_lock.acquire(blocking=False):
            return
        try:
            missed = [replica.missed for replica in self._replicas.values() if replica.missed is not None]
            if not missed and not self._has_deleted_missed:
                self._next_try = None
            elif self._has_deleted_missed or any(self._is_usable(told) for told in missed):
                self._has_deleted_missed = False
                self._declined = {each: declined._replace(has_asked=True) for each, declined in self._declined.items()}
                self.on_usable()
        finally:
            self._control_lock.release()

    def _is_usable(self, told: ToldRole) -> bool:
        """Return whether the log of a role that was missed can be made and opened now."""
        if self._logs.is_offline(told.topic_partition):
            return False
        topic, partition_id = told.topic_partition
        log = None
        try:
            log = self._logs.open_or_create(topic, told.topic_id, partition_id, is_new=told.is_new)
            log.open()
        except KbrokerError:
            return log is not None and not log.is_complete
        return True

    @property
    def _look_interval_s(self) -> float:
        return self._max_lag_ms / 2000

    def _now_ms(self) -> int:
        """Return the time that followers' times are in."""
        return int(self._clock.monotonic() * 1000)

    def _let_in(self, topic_partition: TopicPartition) -> None:
        """Propose to let a replica into the ISR, if one is ready."""
        with self._lock:
            replica = self._replicas.get(topic_partition)
            if replica is None or replica.in_sync is None:
                return
            state = _state_of(replica)
            ready = state.take_ready()
            if self._clock.monotonic() < replica.retry_at:
                return
            followers = state.followers()
            node_id = rules.next_to_join(
                replica.in_sync,
                [each for each in followers if each.node_id in ready],
                state.high_watermark,
                state.epoch_start_offset,
                self._live,
            )
            if node_id != NOBODY:
                LOG.debug("%s: letting replica %d into the ISR %s", topic_partition, node_id, replica.in_sync.committed)
                self._propose_locked(topic_partition, replica, rules.expand(replica.in_sync, node_id), followers)

    def _put_out(self, topic_partition: TopicPartition) -> None:
        """Propose to put the replicas out of the ISR that lag behind."""
        with self._lock:
            replica = self._replicas.get(topic_partition)
            if replica is None or replica.in_sync is None:
                return
            state = _state_of(replica)
            end = state.log_end_offset
            followers = state.followers()
            late = rules.out_of_sync(replica.in_sync, followers, end, self._now_ms(), self._max_lag_ms)
            if late:
                out = ", ".join(map(str, sorted(late)))
                self._notes.add(f"putting out of the ISR {replica.in_sync.committed} who lags: {out}", topic_partition)
                LOG.debug("%s: the log ends at %d, those of followers at %s", topic_partition, end, followers)
                self._propose_locked(topic_partition, replica, rules.shrink(replica.in_sync, late), followers)

    def _tell_notes(self) -> None:
        """Log what was noted: many partitions often have the same change."""
        with self._lock:
            lines = self._notes.take()
        for line in lines:
            LOG.info("%s", line)

    def _check_own(self, topic_partition: TopicPartition) -> None:
        """Look for damage in the leader's log where a follower has not come on since the last look: it may refuse."""
        with self._lock:
            replica = self._replicas.get(topic_partition)
            if replica is None or replica.in_sync is None or replica.log is None:
                return
            log, end = replica.log, replica.log.state.log_end_offset
            ends = {
                each.node_id: each.log_end_offset
                for each in log.state.followers()
                if each.node_id in self._live and 0 <= each.log_end_offset < end
            }
            stuck = {at for node_id, at in ends.items() if replica.ends.get(node_id) == at} - replica.checked
            replica.ends = ends
            replica.checked = replica.checked.intersection(ends.values()) | stuck
        for offset in sorted(stuck):
            try:
                found = log.find_damage(offset)
            except KbrokerError as error:
                LOG.warning("%s cannot be looked at: %s", topic_partition, error)
                continue
            if found is not None:
                self.damaged(topic_partition, found)
                return

    def _propose_locked(
        self, topic_partition: TopicPartition, replica: _Replica, proposed: InSync, followers: Iterable[FollowerState]
    ) -> None:
        proposal = proposed.proposal
        assert proposal is not None, proposed
        self._set_in_sync_locked(topic_partition, replica, proposed)
        epochs = {each.node_id: each.broker_epoch for each in followers}
        epochs[self._node_id] = self._metadata.broker_epoch
        self._requests.put(topic_partition, Change(replica.hosted.topic_id, proposal, epochs))

    def _settle(self, topic_partition: TopicPartition, proposal: Proposal, answer: Committed | ErrorCode) -> Next:
        """Take the controller's answer to a proposal."""
        with self._lock:
            replica = self._replicas.get(topic_partition)
            if replica is None or replica.in_sync is None:
                return Next.IGNORE
            before = replica.in_sync
            after, then = rules.answered(before, proposal, answer)
            if isinstance(answer, ErrorCode) and then is not Next.IGNORE:
                self._counts = self._counts._replace(failed=self._counts.failed + 1)
                self._notes.add(f"the controller answers {answer.name} to the ISR {proposal.isr}", topic_partition)
                replica.retry_at = self._clock.monotonic() + RETRY_REFUSED_MS / 1000
            if after is not before:
                self._set_in_sync_locked(topic_partition, replica, after)
            return then

    def _set_in_sync_locked(self, topic_partition: TopicPartition, replica: _Replica, after: InSync) -> None:
        before = replica.in_sync
        assert before is not None, topic_partition
        replica.in_sync = after
        replica.hosted = replica.hosted._replace(
            isr=after.committed, partition_epoch=after.partition_epoch, proposed=after.proposed
        )
        _state_of(replica).set_in_sync(after.committed, tuple(after.maximal))
        if after.committed != before.committed:
            self._notes.add(f"the ISR is {after.committed}, was {before.committed}", topic_partition)
            expands = self._counts.expands + bool(set(after.committed) - set(before.committed))
            shrinks = self._counts.shrinks + bool(set(before.committed) - set(after.committed))
            self._counts = self._counts._replace(expands=expands, shrinks=shrinks)


def _state_of(replica: _Replica) -> ReplicaState:
    assert replica.log is not None, replica.hosted
    return replica.log.state


def _nobody_is_told() -> None:
    """The first value of `ReplicatedPartitions.on_due`."""
