"""What clients do: producers of several kinds, transactions, consumers, and an administrator.

A client knows what it was told and nothing else. It tells the checker what it was promised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol.records import encode_batch
from tests.simulation.network import Caller, Failure
from tests.simulation.scheduler import MS, SECOND, Process
from tests.simulation.stored import Stored, batches_in

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

REQUEST_TIMEOUT = 3 * SECOND
NOWHERE = TopicPartition("", 0)
NOTHING = UUID(int=0)
BACKOFF = 50 * MS
FETCH_BYTES = 700
PRODUCERS = 400
"""How many begin at a time: a broker takes the next block of ids (1,000) soon."""


@dataclass
class Client:
    """A process of its own, with a view of the cluster that may be old."""

    simulation: Simulation
    name: str
    process: Process = field(init=False)
    callers: dict[int, Caller] = field(default_factory=dict)
    view: dict[TopicPartition, Any] = field(default_factory=dict)
    controller_id: int = -1
    stops: bool = False
    _is_asking: bool = False

    def __post_init__(self) -> None:
        self.process = Process(self.name)

    @property
    def chance(self) -> Any:
        return self.simulation.scheduler.chance

    def start(self) -> None:
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        """Whether it wants nothing any more."""
        raise NotImplementedError

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.simulation.scheduler.after(delay, action, self.process)

    def note(self, text: str) -> None:
        self.simulation.note(self.name, text)

    def call(self, node_id: int, request: Any, answered: Callable[[Any], None]) -> None:
        caller = self.callers.get(node_id)
        if caller is None:
            caller = self.callers[node_id] = Caller(self.simulation.network, self.process, f"b{node_id}")
        caller.call(request, answered, REQUEST_TIMEOUT)

    def refresh(self) -> None:
        """Ask some broker for the metadata."""
        if self._is_asking:
            return
        self._is_asking = True
        node_id = self.chance.choice(sorted(self.simulation.brokers))

        def answered(answer: Any) -> None:
            self._is_asking = False
            if not isinstance(answer, Failure):
                _, controller_id, view = answer
                if view:
                    self.controller_id, self.view = controller_id, view

        self.call(node_id, ("metadata",), answered)

    def leader(self, at: TopicPartition, topic_id: UUID) -> int:
        """The leader of a partition, as far as this client knows it; -1 if it does not, and then it asks."""
        known = self.view.get(at)
        if known is None or known[1] < 0 or known[0] != topic_id:
            self.refresh()
            return -1
        return int(known[1])

    def is_gone(self, topic_id: UUID) -> bool:
        return topic_id in self.simulation.gone


class _Batch:
    """A batch on its way."""

    __slots__ = ("attempt", "base_sequence", "is_sent", "values")

    def __init__(self, values: list[bytes], base_sequence: int):
        self.values, self.base_sequence = values, base_sequence
        self.is_sent = False
        self.attempt = 0


@dataclass
class Producer(Client):
    """Sends to one partition: with `producer_id` idempotently. With acks=all it tells the checker what was promised."""

    at: TopicPartition = NOWHERE
    topic_id: UUID = NOTHING
    acks: int = -1
    producer_id: int = -1
    in_flight: int = 1
    total: int = 20
    pace: int = 300 * MS
    queue: list[_Batch] = field(default_factory=list)
    made: int = 0
    acknowledged: int = 0
    sequence: int = 0
    producer_epoch: int = 0
    _resend_at: int = 0

    def start(self) -> None:
        self.after(self.chance.randrange(1, self.pace), self._make)

    @property
    def is_done(self) -> bool:
        return ((self.stops or self.made >= self.total) and not self.queue) or self.is_gone(self.topic_id)

    def _make(self) -> None:
        if self.stops or self.made >= self.total:
            return
        count = self.chance.choice((1, 1, 1, 2, 3))
        values = [b"%s-%d-%d" % (self.name.encode(), self.made, at) for at in range(count)]
        self.queue.append(_Batch(values, self.sequence if self.producer_id >= 0 else -1))
        self.sequence += count
        self.made += 1
        self._send()
        self.after(self.chance.randrange(1, 2 * self.pace), self._make)

    def _send(self) -> None:
        if self.simulation.scheduler.now < self._resend_at or self.is_gone(self.topic_id):
            return
        leader = self.leader(self.at, self.topic_id)
        if leader < 0:
            self._later()
            return
        # A broker that knows nothing of a producer takes any sequence number first, as in Kafka.
        for batch in self.queue[: self.in_flight if self.acknowledged else 1]:
            if not batch.is_sent:
                batch.is_sent = True
                batch.attempt += 1
                data = encode_batch(
                    [(self.simulation.wall_ms, None, value) for value in batch.values], producer_id=self.producer_id,
                    producer_epoch=self.producer_epoch if self.producer_id >= 0 else -1,
                    base_sequence=batch.base_sequence, is_transactional=self.is_transactional,
                )  # fmt: skip
                request = ("produce", self.at, self.topic_id, data, self.acks, REQUEST_TIMEOUT * 2 // 3)
                attempt = batch.attempt
                self.call(leader, request, lambda a, b=batch, n=attempt: self._answered(b, n, leader, a))

    is_transactional = False

    def _later(self) -> None:
        """Send everything again, in order, in a moment."""
        self._resend_at = self.simulation.scheduler.now + BACKOFF
        for batch in self.queue:
            batch.is_sent = False
        self.after(BACKOFF + 1, self._send)

    def _answered(self, batch: _Batch, attempt: int, leader: int, answer: Any) -> None:
        if batch not in self.queue or not batch.is_sent or attempt != batch.attempt:
            if not isinstance(answer, Failure) and answer[0] == 0 and batch in self.queue:
                self._acknowledged(batch, leader, answer[1])
                self._send()
            return
        if isinstance(answer, Failure):
            self.refresh()
            self._later()
            return
        code, offset = answer
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._acknowledged(batch, leader, offset if code == 0 else -1)
            self._send()
            return
        lacks_one = False
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID) and batch is self.queue[0]:
            lacks_one = self.simulation.out_of_order(self.at, self.topic_id, leader, batch.values[0])
        if lacks_one or code == ErrorCode.INVALID_PRODUCER_EPOCH:
            self.queue.clear()
            self.stops = True
            return
        self.refresh()
        self._later()

    def _acknowledged(self, batch: _Batch, leader: int, offset: int) -> None:
        self.queue.remove(batch)
        self.acknowledged += 1
        if self.acks == -1 and offset >= 0:
            self.simulation.acknowledged(self.at, self.topic_id, offset, batch.values)


@dataclass
class Transactions(Client):
    """Transactions over several partitions, one after the other. The client is its own coordinator."""

    partitions: dict[TopicPartition, UUID] = field(default_factory=dict)
    """Topic ids by partition."""
    producer_id: int = -1
    total: int = 5
    pace: int = 500 * MS
    producer_epoch: int = 0
    made: int = 0
    is_open: bool = False
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    def start(self) -> None:
        self.after(self.chance.randrange(1, self.pace), self._begin)

    @property
    def is_done(self) -> bool:
        return not self.is_open and (self.stops or self.made >= self.total)

    def _begin(self) -> None:
        if self.stops or self.made >= self.total:
            return
        self.made += 1
        self.is_open = True
        number = self.made
        touched = self.chance.sample(list(self.partitions), self.chance.randint(1, min(2, len(self.partitions))))
        wants_commit = self.chance.random() < 0.6
        waiting = set(touched)
        gives_up_at = self.simulation.scheduler.now + 8 * SECOND

        def written(at: TopicPartition, is_good: bool) -> None:
            waiting.discard(at)
            if not is_good:
                failed.append(at)
            if not waiting:
                self._end(number, touched, commit=wants_commit and not failed, bumped=bool(failed))

        failed: list[TopicPartition] = []
        for at in touched:
            self._write(number, at, gives_up_at, lambda good, at=at: written(at, good))

    def _write(self, number: int, at: TopicPartition, until: int, done: Callable[[bool], None]) -> None:
        values = [b"%s-%d-%d" % (self.name.encode(), number, n) for n in range(self.chance.choice((1, 2)))]
        sequence = self.sequences.get(at, 0)
        data = encode_batch(
            [(self.simulation.wall_ms, None, value) for value in values], producer_id=self.producer_id,
            producer_epoch=self.producer_epoch, base_sequence=sequence, is_transactional=True,
        )  # fmt: skip

        topic_id = self.partitions[at]

        def send() -> None:
            if self.simulation.scheduler.now > until or self.is_gone(topic_id):
                done(False)
                return
            leader = self.leader(at, topic_id)
            if leader < 0:
                self.after(BACKOFF, send)
                return
            request = ("produce", at, topic_id, data, -1, REQUEST_TIMEOUT * 2 // 3)
            self.call(leader, request, lambda answer: answered(leader, answer))

        def answered(leader: int, answer: Any) -> None:
            code = None if isinstance(answer, Failure) else answer[0]
            if code == ErrorCode.UNKNOWN_PRODUCER_ID:
                self.simulation.producer_unknown(at, topic_id, leader, values[0])
                done(False)
                return
            if code not in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    self.simulation.out_of_order(at, topic_id, leader, values[0])
                self.refresh()
                self.after(BACKOFF, send)
                return
            self.sequences[at] = sequence + len(values)
            if answer[1] >= 0:
                self.simulation.acknowledged(at, topic_id, answer[1], values)
            done(True)

        send()

    def _end(self, number: int, touched: list[TopicPartition], *, commit: bool, bumped: bool) -> None:
        """Write the markers. `bumped`: something may still be on its way, so the marker's epoch fences it."""
        self.note(f"transaction {number} {'commits' if commit else 'aborts'}")
        if bumped:
            self.producer_epoch += 1
            self.sequences.clear()
        epoch = self.producer_epoch
        waiting = set(touched)

        def mark(at: TopicPartition) -> None:
            if self.is_gone(self.partitions[at]):
                marked(at)
                return
            leader = self.leader(at, self.partitions[at])
            if leader < 0:
                self.after(BACKOFF, lambda: mark(at))
                return
            request = (
                "marker",
                at,
                self.partitions[at],
                self.producer_id,
                epoch,
                commit,
                bumped,
                REQUEST_TIMEOUT * 2 // 3,
            )
            self.call(leader, request, lambda answer: answered(at, answer))

        def answered(at: TopicPartition, answer: Any) -> None:
            if isinstance(answer, Failure) or answer[0] != 0:
                self.refresh()
                self.after(BACKOFF, lambda: mark(at))
                return
            marked(at)

        def marked(at: TopicPartition) -> None:
            waiting.discard(at)
            if not waiting and self.is_open:
                self.is_open = False
                self.after(self.chance.randrange(1, 2 * self.pace), self._begin)

        for at in touched:
            mark(at)


@dataclass
class Consumer(Client):
    """Reads one partition from its beginning, at its leader or at any replica."""

    at: TopicPartition = NOWHERE
    committed: bool = False
    anywhere: bool = False
    """Whether it reads from followers too."""
    pace: int = 200 * MS
    position: int = 0
    topic_id: UUID = NOTHING

    def start(self) -> None:
        self.after(self.chance.randrange(1, self.pace), self._poll)

    @property
    def is_done(self) -> bool:
        """Whether it has read all that is committed. It goes on with what comes later."""
        return self.is_gone(self.topic_id) or self.position >= self.simulation.readable_end(self.at, self.topic_id)

    def _poll(self) -> None:
        if self.stops or self.is_gone(self.topic_id):
            return
        known = self.view.get(self.at)
        leader = self.leader(self.at, self.topic_id)
        if known is None or leader < 0:
            self.after(self.pace, self._poll)
            return
        node_id = self.chance.choice(known[2]) if self.anywhere else leader
        request = ("fetch", self.at, self.topic_id, self.position, self.committed, FETCH_BYTES)
        self.call(node_id, request, lambda answer: self._answered(node_id, answer))

    def _answered(self, node_id: int, answer: Any) -> None:
        self.after(self.chance.randrange(self.pace // 4, self.pace), self._poll)
        if isinstance(answer, Failure) or answer[0]:
            if not isinstance(answer, Failure) and answer[0] == ErrorCode.OFFSET_OUT_OF_RANGE:
                # A follower may not have it yet; records may have been deleted.
                self.position = max(self.position, self.simulation.start_of(self.at, self.topic_id))
            self.refresh()
            return
        _, data, aborted, _, _ = answer
        batches = batches_in(data)
        if not batches:
            return
        start, end = self.position, batches[-1].last_offset + 1
        self.position = end
        self.simulation.consumed(
            self, node_id, start, end, batches, visible(batches, aborted) if self.committed else None
        )


@dataclass
class Newcomers(Client):
    """Stands for producers that begin, many at a time: it takes producer ids of one broker or the other."""

    pace: int = 300 * MS
    was_served: bool = False
    """Whether it was given all that it wanted since the faults ended."""

    def start(self) -> None:
        self.after(self.chance.randrange(1, self.pace), self._take)

    @property
    def is_done(self) -> bool:
        return self.was_served

    def _take(self) -> None:
        node_id = self.chance.choice(sorted(self.simulation.brokers))
        self.call(node_id, ("producer_ids", PRODUCERS), self._answered)

    def _answered(self, answer: Any) -> None:
        if not isinstance(answer, Failure):
            code, ids = answer
            self.simulation.checker.ids_given(ids)
            self.was_served = self.simulation.faults.is_over and code == 0
        if not self.was_served:
            self.after(self.chance.randrange(1, 2 * self.pace), self._take)


def visible(batches: list[Stored], aborted: list[tuple[int, int]]) -> list[Stored]:
    """Leave out markers and aborted batches, as a consumer of committed records does (KIP-98)."""
    waiting = sorted(aborted, key=lambda each: each[1])
    gone: set[int] = set()
    seen = []
    for batch in batches:
        while waiting and waiting[0][1] <= batch.last_offset:
            gone.add(waiting.pop(0)[0])
        if batch.control is not None:
            gone.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in gone):
            seen.append(batch)
    return seen
