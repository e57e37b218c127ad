"""The driver of a follower's fetch engines: which engine fetches what, and what is done about trouble.

`rules/follower.py` decides, this does it: truncates logs, asks leaders for offsets, lets logs begin anew. The engines
and the peers call in from their threads, and leave work behind; a thread of the broker does it (`step`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, cast
from uuid import UUID

from kbroker._core.log.partition_state import PartitionState
from kbroker._core.replica.followed import FollowedLag, ReplicaTrouble
from kbroker.cluster.peers import PeerError, Peers
from kbroker.errors import DiskDamaged, ErrorCode, KbrokerError
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from kbroker.replication.surroundings import ReplicaLog
from kbroker.rules import follower
from kbroker.rules.java_hash import java_string_hash
from kbroker.rules.partition_notes import PartitionNotes

log = logging.getLogger("kbroker.replication")

LATEST, EARLIEST = -1, -2
LIST_OFFSETS_VERSION = 9


class FetchEngine(Protocol):
    """The part of `ReplicaFetcher` that is driven. It fetches from one leader."""

    on_told: Callable[[], object] | None

    def follow(self, state: PartitionState, topic_id: bytes, leader_epoch: int) -> None: ...
    def forget(self, state: PartitionState) -> None: ...
    def resume(self, state: PartitionState, leader_epoch: int, after_ms: int = 0) -> None: ...
    def take_news(self) -> list[ReplicaTrouble]: ...
    def lag(self) -> list[FollowedLag]: ...


class FollowerLog(Protocol):
    """The part of `storage.Log` that a follower changes."""

    @property
    def topic_id(self) -> UUID: ...
    @property
    def state(self) -> PartitionState: ...
    @property
    def epochs(self) -> Sequence[tuple[int, int]]: ...
    def truncate_to(self, offset: int) -> None: ...
    def begin_at(self, offset: int) -> None: ...
    def follow_start(self, offset: int) -> None: ...


FIRST_PAUSE_MS = 10
"""The pause after trouble that may pass by itself: the leader hears of its role within milliseconds, as a rule. It is
doubled each time, up to `backoff_ms`."""
MOST_DOUBLED = 16


class FetcherOptions(NamedTuple):
    """Settings of all fetchers together. Defaults are Kafka 3.9's."""

    backoff_ms: int = 1000
    """replica.fetch.backoff.ms: the pause after an error."""
    request_timeout_ms: int = 30_000
    per_leader: int = 1
    """num.replica.fetchers: the partitions that have one leader are spread over so many engines."""


class _Followed:
    """A partition that is followed. The lock is held while its log is changed, and guards the rest."""

    def __init__(self, topic_partition: TopicPartition):
        self.topic_partition = topic_partition
        self.lock = threading.Lock()
        self.log: FollowerLog | None = None
        """None: it is not followed yet, or not any more."""
        self.engine: FetchEngine
        """What fetches it; known once there is a log."""
        self.leader_id = -1
        self.leader_epoch = -1
        self.reported = ""
        """The last trouble that was logged, and the offset it was at: it is not logged again."""
        self.reported_at = -1
        self.passing = 0
        """How often in a row the trouble at this offset was one that may pass by itself."""


class Fetchers:
    """The partitions that this broker follows. Thread-safe; it has no thread of its own.

    `step` does the work that engines and peers have left behind, and is to be called by one thread or several.
    """

    def __init__(
        self,
        node_id: int,
        make_engine: Callable[[int, int], FetchEngine],
        peers: Peers,
        options: FetcherOptions | None = None,
    ):
        """`make_engine(leader id, number)` is called when a leader's engine of this number is first needed."""
        self.node_id = node_id
        self._make_engine = make_engine
        self._engines: dict[tuple[int, int], FetchEngine] = {}
        self._peers = peers
        self._options = options or FetcherOptions()
        self._lock = threading.Lock()
        self._followed: dict[TopicPartition, _Followed] = {}
        self._work: deque[Callable[[], None]] = deque()
        self._wanted = threading.Condition()
        self._is_ended = False
        self._notes = PartitionNotes()
        self.truncations = 0
        """How often a log was cut because of its leader."""
        self.beginnings = 0
        """How often a log was emptied, to begin anew where its leader's starts."""

    # --- called by the partitions of this member

    def start(self, topic_partition: TopicPartition, log: ReplicaLog, leader_id: int, leader_epoch: int) -> None:
        """Fetch from this leader, from the log's end on, until `stop`. The log has the follower's role already."""
        engine = self._engine_of(topic_partition, leader_id)
        followed = self._of(topic_partition)
        own = cast(FollowerLog, log)  # a `storage.Log` is both
        with followed.lock:
            if followed.log is not None and (followed.log is not own or followed.engine is not engine):
                followed.engine.forget(followed.log.state)
            followed.engine = engine
            followed.log, followed.leader_id, followed.leader_epoch = own, leader_id, leader_epoch
            followed.reported, followed.passing = "", 0
            first = follower.first_step(view_of(own))
            if first is None:
                engine.follow(own.state, own.topic_id.bytes, leader_epoch)
            else:
                engine.forget(own.state)
                self._leave(lambda: self._begin_with(followed, leader_epoch, first))

    def stop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching for these, if it is done. On return nothing is appended for them, and no log is cut."""
        for topic_partition in topic_partitions:
            with self._lock:
                followed = self._followed.pop(topic_partition, None)
            if followed is None:
                continue
            with followed.lock:
                if followed.log is not None:
                    followed.engine.forget(followed.log.state)
                followed.log = None

    def lag(self) -> dict[TopicPartition, FollowedLag]:
        """Return how far each followed partition is behind its leader."""
        return {TopicPartition(at.topic, at.partition_id): at for engine in self._all_engines() for at in engine.lag()}

    # --- called by the thread that does the work

    def step(self, timeout_s: float = 0) -> bool:
        """Do one piece of work; wait for it up to `timeout_s`. Return whether there was any."""
        with self._wanted:
            if not self._work and timeout_s > 0 and not self._is_ended:
                self._wanted.wait(timeout_s)
            if not self._work:
                return False
            work = self._work.popleft()
        try:
            work()
        except Exception:
            log.exception("a follower's trouble")
        self._tell_notes()
        return True

    def run(self) -> None:
        """Work until `end`."""
        while not self._is_ended:
            self.step(60.0)

    def end(self) -> None:
        """Let `run` return. Work that is left is not done any more."""
        with self._wanted:
            self._is_ended = True
            self._wanted.notify_all()

    # --- inside

    def _tell_notes(self) -> None:
        """Log what was noted, once nothing is left to do: many partitions often have the same trouble."""
        if self._work:
            return
        with self._lock:
            lines = self._notes.take()
        for line in lines:
            log.warning("%s", line)

    def _of(self, topic_partition: TopicPartition) -> _Followed:
        with self._lock:
            followed = self._followed.get(topic_partition)
            if followed is None:
                followed = self._followed[topic_partition] = _Followed(topic_partition)
            return followed

    def _engine_of(self, topic_partition: TopicPartition, leader_id: int) -> FetchEngine:
        number = fetcher_of(topic_partition, self._options.per_leader)
        with self._lock:
            engine = self._engines.get((leader_id, number))
            if engine is None:
                engine = self._engines[leader_id, number] = self._make_engine(leader_id, number)
                engine.on_told = self._told(engine)
            return engine

    def _all_engines(self) -> list[FetchEngine]:
        with self._lock:
            return list(self._engines.values())

    def _leave(self, work: Callable[[], None]) -> None:
        with self._wanted:
            self._work.append(work)
            self._wanted.notify()

    def _told(self, engine: FetchEngine) -> Callable[[], None]:
        def told() -> None:
            for trouble in engine.take_news():
                self._leave(lambda trouble=trouble: self._handle(trouble))  # type: ignore[misc]

        return told

    def _handle(self, trouble: ReplicaTrouble) -> None:
        with self._lock:
            followed = self._followed.get(TopicPartition(trouble.topic, trouble.partition_id))
        if followed is None:
            return
        with followed.lock:
            if followed.log is None or followed.leader_epoch != trouble.leader_epoch:
                return
            if trouble.offset != followed.reported_at:
                followed.reported, followed.reported_at, followed.passing = "", trouble.offset, 0
            if trouble.kind == "start":
                self._guarded(followed, lambda at: at.follow_start(trouble.log_start_offset))
            else:
                self._step(followed, lambda log: follower.next_step(trouble, view_of(log)))

    def _begin_with(self, followed: _Followed, leader_epoch: int, first: follower.TruncateTo) -> None:
        with followed.lock:
            if followed.log is None or followed.leader_epoch != leader_epoch:
                return
            self._guarded(followed, lambda at: at.truncate_to(first.offset))
            followed.engine.follow(followed.log.state, followed.log.topic_id.bytes, leader_epoch)

    def _step(self, followed: _Followed, next_step: Callable[[FollowerLog], follower.Step]) -> None:
        """Take the step that is due by what the log has now. A log that cannot be opened is tried again later.

        The caller holds the partition's lock.
        """
        assert followed.log is not None
        try:
            step = next_step(followed.log)
        except (KbrokerError, DiskDamaged, OSError) as error:
            step = follower.Retry(str(error))
        self._carry_out(followed, step)

    def _carry_out(self, followed: _Followed, step: follower.Step) -> None:
        """Take a step; the caller holds the partition's lock."""
        assert followed.log is not None
        match step:
            case follower.TruncateTo(offset):
                self._truncate(followed, offset)
            case follower.BeginAt(offset):
                log.warning(
                    "%s: nothing from offset %d on is at leader %d any more; the log begins anew at offset %d",
                    followed.topic_partition, followed.log.state.log_end_offset, followed.leader_id, offset,
                )  # fmt: skip
                done = self._guarded(followed, lambda at: at.begin_at(offset))
                self.beginnings += done
                self._resume(followed, 0 if done else self._options.backoff_ms)
            case follower.AskLatest():
                self._ask(followed, LATEST, follower.after_latest)
            case follower.AskEarliest():
                self._ask(followed, EARLIEST, follower.after_earliest)
            case follower.Retry(why, is_passing):
                longest_ms = self._options.backoff_ms
                pause_ms = min(FIRST_PAUSE_MS << followed.passing, longest_ms) if is_passing else longest_ms
                if not is_passing or (followed.passing and pause_ms == longest_ms):
                    self._report(followed, why)
                followed.passing = min(followed.passing + 1, MOST_DOUBLED) if is_passing else 0
                self._resume(followed, pause_ms)
            case follower.Wait():
                log.debug("%s: not followed in epoch %d any more", followed.topic_partition, followed.leader_epoch)

    def _truncate(self, followed: _Followed, offset: int) -> None:
        assert followed.log is not None
        state = followed.log.state
        if offset < state.high_watermark:
            log.warning(
                "%s: leader %d of epoch %d does not have offsets %d to %d, which were committed; they are cut off",
                followed.topic_partition, followed.leader_id, followed.leader_epoch, offset, state.high_watermark - 1,
            )  # fmt: skip
        elif offset < state.log_end_offset:
            log.info(
                "%s: cut from offset %d to %d, as leader %d of epoch %d has it",
                followed.topic_partition, state.log_end_offset, offset, followed.leader_id, followed.leader_epoch,
            )  # fmt: skip
        done = self._guarded(followed, lambda at: at.truncate_to(offset))
        self.truncations += done
        self._resume(followed, 0 if done else self._options.backoff_ms)

    def _guarded(self, followed: _Followed, change: Callable[[FollowerLog], None]) -> bool:
        """Change the log. False if the disk has refused, which was logged."""
        assert followed.log is not None
        try:
            change(followed.log)
            return True
        except (KbrokerError, DiskDamaged, OSError) as error:
            self._report(followed, str(error))
            return False

    def _resume(self, followed: _Followed, after_ms: int) -> None:
        assert followed.log is not None
        followed.engine.resume(followed.log.state, followed.leader_epoch, after_ms)

    def _report(self, followed: _Followed, why: str) -> None:
        """Log trouble, once until it is another one or the partition has another leader."""
        if why and why != followed.reported:
            followed.reported = why
            text = f"cannot follow leader {followed.leader_id} of epoch {followed.leader_epoch} now: {why}"
            with self._lock:
                self._notes.add(text, followed.topic_partition)

    # --- asking the leader

    def _ask(self, followed: _Followed, timestamp: int, then: Callable[[int, follower.LogView], follower.Step]) -> None:
        """Ask the leader for an offset and take the step that follows from it. The caller holds the lock."""
        epoch, topic_partition = followed.leader_epoch, followed.topic_partition
        partition = M.ListOffsetsRequest.ListOffsetsPartition(
            partition_index=topic_partition.partition_id, current_leader_epoch=epoch, timestamp=timestamp
        )
        topic = M.ListOffsetsRequest.ListOffsetsTopic(name=topic_partition.topic, partitions=[partition])

        def made(_: int) -> Message:
            return M.ListOffsetsRequest(replica_id=self.node_id, isolation_level=0, topics=[topic])

        def answered(answer: Message | PeerError, _: int) -> None:
            self._leave(lambda: self._answered(followed, epoch, answer, then))

        self._peers.ask(
            followed.leader_id, made, ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, answered,
            timeout_ms=self._options.request_timeout_ms,
        )  # fmt: skip

    def _answered(
        self,
        followed: _Followed,
        leader_epoch: int,
        answer: Message | PeerError,
        then: Callable[[int, follower.LogView], follower.Step],
    ) -> None:
        with followed.lock:
            if followed.log is None or followed.leader_epoch != leader_epoch:
                return
            if isinstance(answer, PeerError):
                self._carry_out(followed, follower.Retry(str(answer)))
                return
            code, offset = listed(answer, followed.topic_partition)
            if code == ErrorCode.FENCED_LEADER_EPOCH:
                self._carry_out(followed, follower.Wait())
            elif code or offset < 0:
                self._carry_out(followed, follower.Retry(f"its leader answers {follower.error_name(code)}"))
            else:
                self._step(followed, lambda log: then(offset, view_of(log)))


def fetcher_of(topic_partition: TopicPartition, count: int) -> int:
    """Return which of `count` fetchers a partition belongs to, as Kafka spreads them."""
    return (31 * java_string_hash(topic_partition.topic) + topic_partition.partition_id) % count


def view_of(log: FollowerLog) -> follower.LogView:
    state = log.state
    return follower.LogView(state.log_start_offset, state.log_end_offset, state.high_watermark, log.epochs)


def listed(answer: Message, topic_partition: TopicPartition) -> tuple[int, int]:
    """Return error code and offset of a ListOffsets response; UNKNOWN_SERVER_ERROR if it is about something else."""
    for topic in getattr(answer, "topics", ()):
        for partition in topic.partitions:
            if (topic.name, partition.partition_index) == topic_partition:
                return partition.error_code, partition.offset
    return ErrorCode.UNKNOWN_SERVER_ERROR, -1
