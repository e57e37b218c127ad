"""What one log has promised and when, and the check whether a log that comes back from a crash keeps its promises."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from kbroker._core.wire.record_batch import BatchInfo
from kbroker.errors import ErrorCode
from kbroker.protocol.records import Batch, ControlType, encode_batch, read_batches
from kbroker.storage.log import Log
from tests.kit.logs.committed import judged
from tests.kit.models.stored_batches import OldMessage, StoredBatch, stored_batches

FOREVER = 1 << 62
Row = tuple[bytes | None, bytes | None]
"""Key and value."""


class BrokenPromise(AssertionError):
    """A log that came back from a crash does not keep what was promised."""


@dataclass(slots=True, eq=False)
class Sent:
    """One batch that was given to the log; its records have consecutive offsets."""

    position: int
    """Position of the journal when the append began: a cut at it or before leaves nothing of the batch."""
    base_offset: int
    rows: tuple[Row, ...]
    timestamp: int
    """Timestamp of the newest record."""
    leader_epoch: int
    producer: tuple[int, int, int] = (-1, -1, -1)
    """Producer id, producer epoch, first sequence."""
    is_control: bool = False
    """Whether it is the end of a transaction; its only row tells which end."""
    is_transactional: bool = False
    magic: int = 2
    """Below 2 the batch is one message, alone or inside of a compressed one."""
    until: int = FOREVER
    """From this position on the batch is known to be lost for good."""
    cut: int = FOREVER
    """From this position on the log is truncated before the batch.

    A power cut may bring it back where nothing was flushed.
    """
    is_doubtful: bool = False
    """Whether it was missing after an earlier crash: lost, or cleaned away before."""

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.rows)

    @property
    def commits(self) -> bool:
        return self.rows[0] == marker_row(commit=True, coordinator_epoch=coordinator_epoch_of(self.rows[0]))


def marker_row(*, commit: bool, coordinator_epoch: int) -> Row:
    return struct.pack(">hh", 0, ControlType.COMMIT if commit else ControlType.ABORT), struct.pack(
        ">hi", 0, coordinator_epoch
    )


def coordinator_epoch_of(row: Row) -> int:
    assert row[1] is not None
    return int(struct.unpack(">hi", row[1])[1])


def decisions(sent: Iterable[Sent]) -> dict[int, bool]:
    """Return a dict for the data batches of ended transactions: base offset -> whether the transaction was aborted."""
    found: dict[int, bool] = {}
    undecided: dict[int, list[int]] = {}
    for at in sorted(sent, key=lambda at: (at.base_offset, at.position)):
        if at.is_control:
            for base_offset in undecided.pop(at.producer[0], []):
                found[base_offset] = not at.commits
        elif at.is_transactional:
            undecided.setdefault(at.producer[0], []).append(at.base_offset)
    return found


@dataclass(slots=True)
class Promise:
    """A promised offset that changes: each value counts from the position in the journal at which it was promised."""

    steps: list[tuple[int, int]] = field(default_factory=list)

    def say(self, position: int, offset: int) -> None:
        if not self.steps or self.steps[-1][1] != offset:
            self.steps.append((position, offset))

    def at(self, position: int) -> int:
        for when, offset in reversed(self.steps):
            if when <= position:
                return offset
        return 0


@dataclass(slots=True)
class History:
    """The history of one log.

    Positions are those of one journal; `carried_over` returns a history for the next journal.
    """

    sent: list[Sent] = field(default_factory=list)
    acknowledged: Promise = field(default_factory=Promise)
    """Everything below this offset was acknowledged: a killed process loses none of it."""
    durable: Promise = field(default_factory=Promise)
    """Everything below this offset survives a power cut."""
    deleted: Promise = field(default_factory=Promise)
    """Log start offset that DeleteRecords has answered."""
    start_tried: list[tuple[int, int]] = field(default_factory=list)
    """(position when it began, offset): how far DeleteRecords and retention may have moved the log's start."""
    gone: dict[int, int] = field(default_factory=dict)
    """Offset that compaction has removed -> position when the compaction began."""

    sent_to: int = 0
    """The highest end offset that the log ever had before this journal."""
    was_truncated: bool = False
    """Whether the log was ever truncated: then what others have noted of it may be ahead of the log."""

    def reached(self, position: int) -> int:
        """The end offset of everything that was sent before `position`."""
        return max(self.sent_to, max((at.end_offset for at in self.sent if at.position < position), default=0))

    def by_base(self, position: int) -> dict[int, list[Sent]]:
        """Batches that may be on the disk, oldest first, by base offset."""
        found: dict[int, list[Sent]] = {}
        for sent in self.sent:
            if sent.position < position <= sent.until:
                found.setdefault(sent.base_offset, []).append(sent)
        return found

    def in_force(self, position: int) -> dict[int, Sent]:
        """Return what by_base does, without truncated batches: one batch for each base offset."""
        return {at.base_offset: at for at in self.sent if at.position < position <= min(at.until, at.cut)}

    def truncate(self, position: int, end_offset: int) -> None:
        """Note that the log begins to drop the batches that reach beyond `end_offset`."""
        self.was_truncated = True
        for sent in self.sent:
            if sent.end_offset > end_offset and sent.cut == FOREVER:
                sent.cut = position
        for promise in (self.acknowledged, self.durable):
            if promise.at(position) > end_offset:
                promise.say(position, end_offset)

    def carried_over(self, position: int) -> History:
        """Return the history for the disk that a crash at `position` has left."""
        return History(
            [
                replace(at, position=-1, until=FOREVER, cut=-1 if at.cut < position else FOREVER)
                for at in self.sent
                if at.position < position <= at.until
            ],
            Promise([(0, self.durable.at(position))]),
            Promise([(0, self.durable.at(position))]),
            Promise([(0, self.deleted.at(position))]),
            [(-1, max([offset for when, offset in self.start_tried if when < position], default=0))],
            {offset: -1 for offset, when in self.gone.items() if when < position},
            self.reached(position),
            self.was_truncated,
        )

    def settle(self, position: int, log: Log, *, has_holes: bool) -> None:
        """Note that a recovery is over: what the log does not have now is lost for good, what it has survives kills."""
        end_offset = log.log_end_offset
        candidates = self.by_base(position)
        there: dict[int, Sent | None] = {}
        offsets: set[int] = set()
        for batch in batches_of(log):
            base = batch.info.base_offset
            there[base] = sent = match(batch, candidates.get(base, []))
            if sent is not None:
                sent.cut = FOREVER
            offsets |= {record.offset for record in batch.records()}
        if log.options.compacted or has_holes:
            # What was lost in its middle stays lost.
            for offset in set(range(log.log_start_offset, end_offset)) - offsets:
                self.gone.setdefault(offset, -1)
        if log.options.compacted:
            for sent in self.in_force(position).values():
                sent.is_doubtful |= sent.base_offset not in there
        for base, of_base in candidates.items():
            for sent in of_base:
                if sent.end_offset <= log.log_start_offset:
                    continue  # hidden, but on the disk maybe
                is_other = base in there and there[base] is not sent
                if is_other or sent.end_offset > end_offset or (sent.cut <= position and there.get(base) is not sent):
                    sent.until = position
        self.acknowledged.say(position, end_offset)


@dataclass(slots=True)
class Producer:
    """The last batch of an idempotent or transactional producer."""

    epoch: int
    last_sequence: int
    last: Sent
    undecided_from: int = -1
    """The offset at which the producer's open transaction begins; -1 for none."""


def producers_of(sent: Iterable[Sent], end_offset: int) -> dict[int, Producer]:
    """Return the state of each producer after a replay of all batches below `end_offset`."""
    found: dict[int, Producer] = {}
    for at in sorted(sent, key=lambda at: (at.base_offset, at.position)):
        if at.producer[0] < 0 or at.end_offset > end_offset:
            continue
        known = found.get(at.producer[0])
        if at.is_control:
            if known is not None:
                known.last = at
                known.undecided_from = -1
                if known.epoch != at.producer[1]:
                    known.epoch, known.last_sequence = at.producer[1], -1
            else:
                found[at.producer[0]] = Producer(at.producer[1], -1, at)
        else:
            last_sequence = at.producer[2] + len(at.rows) - 1
            first = known.undecided_from if known is not None else -1
            if at.is_transactional and first < 0:
                first = at.base_offset
            found[at.producer[0]] = Producer(at.producer[1], last_sequence, at, first)
    return found


AnyBatch = Batch | OldMessage


def batches_of(log: Log) -> Iterator[AnyBatch]:
    """Yield every batch and message from the log's start to its end, as a consumer gets them."""
    offset = log.log_start_offset
    for stored in stored_in(log):
        for batch in content_of(stored):
            # The reader may have passed the first messages of a compressed set.
            if not isinstance(batch, OldMessage) or batch.base_offset >= offset:
                yield batch
        offset = stored.last_offset + 1


def content_of(stored: StoredBatch) -> tuple[AnyBatch, ...]:
    return stored.content if isinstance(stored.content, tuple) else (stored.content,)


def stored_in(log: Log, max_bytes: int = 1 << 20) -> Iterator[StoredBatch]:
    """Yield the stored batches that reads return, from the log's start to its end."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes)
        if not data:
            return
        for stored in stored_batches(data):
            yield stored
            offset = stored.last_offset + 1


def decided_by_reader(log: Log, max_bytes: int = 700) -> Iterator[tuple[BatchInfo, bool]]:
    """Yield each transactional batch that a read_committed consumer gets, and whether he takes it for aborted."""
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        data = log.read(offset, max_bytes, committed=True)
        if not data:
            return
        aborted = log.aborted_transactions(offset, max_bytes)
        batches = [batch for stored in stored_batches(data) for batch in content_of(stored)]
        for batch, is_aborted in judged(batches, aborted):
            if batch.info.is_transactional and not batch.info.is_control and batch.info.record_count:
                yield batch.info, is_aborted
            offset = batch.info.last_offset + 1


def match(batch: AnyBatch, candidates: list[Sent]) -> Sent | None:
    """Return the sent batch that a batch of the log is, or is the rest of; the newest if there are several."""
    info = batch.info
    rows = {record.offset - info.base_offset: (record.key, record.value) for record in batch.records()}
    for sent in reversed(candidates):
        if (
            info.last_offset + 1 == sent.end_offset
            and info.leader_epoch == sent.leader_epoch
            and info.is_control == sent.is_control
            and (not info.is_control or not rows or rows[0][0] == sent.rows[0][0])
            and isinstance(batch, OldMessage) == (sent.magic < 2)
            and (info.producer_id, info.producer_epoch) == sent.producer[:2]
            and (sent.is_control or all(sent.rows[at] == row for at, row in rows.items()))
        ):
            return sent
    return None


@dataclass(slots=True)
class Check:
    """The checks of one log after one crash. Each of them is a promise of docs/DURABILITY.md."""

    log: Log
    history: History
    position: int
    killed: bool
    flush_messages: int
    reorder: bool
    """Whether the names of the files in a directory may have arrived in any order."""
    oldest_producer_ms: int = -FOREVER
    checked: int = 0
    """The number of promises that were checked: each record, batch and producer counts."""
    present: dict[int, Row] = field(default_factory=dict)
    _matched: dict[int, Sent] = field(default_factory=dict)

    def run(self) -> None:
        self._offsets()
        self._records()
        self._undecided()
        self._transactions()
        self._producers()

    def _hold(self, condition: bool, text: str) -> None:
        self.checked += 1
        if not condition:
            raise BrokenPromise(f"{self.log}: {text}")

    def _offsets(self) -> None:
        log, history = self.log, self.history
        acknowledged = history.acknowledged.at(self.position)
        certain = self._certain
        deleted = history.deleted.at(self.position)
        start, end = log.log_start_offset, log.log_end_offset
        self._hold(end >= certain, f"ends at {end}, everything below {certain} was promised")
        self._hold(acknowledged - end < self.flush_messages, f"lost {acknowledged - end} records, beyond the policy")
        possible = max((at.end_offset for at in history.sent if at.position < self.position), default=0)
        self._hold(end <= max(possible, deleted), f"ends at {end}, but nothing beyond {possible} was sent")
        self._hold(start >= deleted, f"starts at {start}, deleted records up to {deleted} are back")
        tried = self._start_tried
        is_lost = self.reorder and start >= certain  # names of the first segments, when nothing of them was flushed
        self._hold(start <= tried or is_lost, f"starts at {start}, nobody asked for more than {tried}")

    def _records(self) -> None:
        log = self.log
        candidates = self.history.by_base(self.position)
        certain = self.history.durable.at(self.position)
        offset = start = log.log_start_offset
        for batch in batches_of(log):
            info = batch.info
            base = info.base_offset
            self._hold(info.last_offset >= offset, f"a batch at {base} stands behind offset {offset}")
            sent = self._match(batch, candidates.get(base, []))
            self._matched[base] = sent
            if sent.end_offset <= certain:
                newest = candidates[base][-1]
                self._hold(sent is newest or sent.rows == newest.rows, f"what was overwritten is back at {base}")
            there = {} if info.record_count == 0 else {record.offset for record in batch.records()}
            for at in range(max(offset, base), info.last_offset + 1):
                if at in there:
                    self.present[at] = sent.rows[at - base]
                else:
                    self._missing(at)
            for at in range(offset, base):
                self._missing(at)
            known = log.epoch_at(max(base, start))
            self._hold(known == info.leader_epoch, f"the batch at {base} is of epoch {info.leader_epoch}, not {known}")
            offset = info.last_offset + 1
        for at in range(max(offset, start), log.log_end_offset):
            self._missing(at)

    def _undecided(self) -> None:
        """Check that committed records end where the oldest open transaction begins."""
        table, end_offset = self.log.state.producers()
        first = min(
            (at.transaction_first_offset for at in table.export() if at.transaction_first_offset >= 0),
            default=end_offset,
        )
        self._hold(
            self.log.last_stable_offset == min(max(first, self.log.log_start_offset), end_offset),
            f"committed records end at {self.log.last_stable_offset}, the oldest open transaction begins at {first}",
        )

    def _transactions(self) -> None:
        """Check that a read_committed consumer gets the committed records and no others.

        With changes of names in any order, a truncation may have removed the index of a segment and not the segment.
        What was unflushed in the middle of a compacted log may be gone, an end of a transaction too.
        """
        in_force = {
            base: sent
            for base, sent in (self.history.in_force(self.position) | self._matched).items()
            if sent.end_offset <= self.log.log_end_offset
        }
        sure = {base: sent for base, sent in in_force.items() if base in self._matched or base < self._certain}
        aborted, surely_aborted = decisions(in_force.values()), decisions(sure.values())
        for info, is_told in decided_by_reader(self.log):
            base = info.base_offset
            is_aborted = aborted.get(base)
            if is_aborted != surely_aborted.get(base) and (self.log.options.compacted or self.reorder):
                continue
            if self.reorder and self._was_cut(base):
                continue
            self._hold(is_told == is_aborted, f"{info} is aborted: {is_aborted}; a reader takes it for: {is_told}")

    def _match(self, batch: AnyBatch, candidates: list[Sent]) -> Sent:
        sent = match(batch, candidates)
        self.checked += 1
        if sent is None:
            raise BrokenPromise(f"{self.log}: what is at {batch.info.base_offset} was never sent: {batch.info}")
        return sent

    def _missing(self, offset: int) -> None:
        """Compaction took it; or retention or a truncation was about to, and names arrive in any order: then what stood
        around it may be back.

        In the middle of a compacted log nobody can tell what was never flushed from what was cleaned away.
        """
        self._hold(
            self.history.gone.get(offset, FOREVER) < self.position
            or (self.reorder and (offset < self._start_tried or self._was_cut(offset)))
            or (self.log.options.compacted and offset >= self._certain),
            f"the record at {offset} is missing",
        )

    def _was_cut(self, offset: int) -> bool:
        return any(at.base_offset <= offset < at.end_offset and at.cut < self.position for at in self.history.sent)

    @property
    def _certain(self) -> int:
        """The offset below which everything has to be there."""
        promise = self.history.acknowledged if self.killed else self.history.durable
        return promise.at(self.position)

    @property
    def _start_tried(self) -> int:
        return max((offset for when, offset in self.history.start_tried if when < self.position), default=0)

    def _producers(self) -> None:
        # If a batch was deleted, or was about to be, the newest snapshot may have gone with it.
        kept_from = max(self.log.log_start_offset, self._start_tried if self.reorder else 0)
        expected = self._expected_producers()
        table, _ = self.log.state.producers()
        known = {}
        for at in table.export():
            sequence = at.batches[-1].last_sequence if at.batches else -1
            known[at.producer_id] = (at.producer_epoch, sequence, at.last_timestamp, at.transaction_first_offset)
        for producer_id, state in known.items():
            possible = expected.get(producer_id, [])
            self._hold(bool(possible), f"producer {producer_id} is known, but sent nothing")
            told = [
                (wanted.epoch, wanted.last_sequence, wanted.last.timestamp, wanted.undecided_from)
                for wanted in possible
            ]
            if state[3] >= 0 and self._may_be_open_from(producer_id, state[3]):
                # The log may have lost the begin of an older transaction, and a compacted log all of it.
                has_doubts = self.log.options.compacted or self.reorder
                told = [(*row[:3], state[3]) if has_doubts or 0 <= row[3] < kept_from else row for row in told]
            if possible and possible[-1].last.is_control:
                told += self._sequences_before(possible[-1])
            is_there = possible[0].last.end_offset > kept_from
            self._hold(state in told or not is_there, f"producer {producer_id} is {state}, replay tells {told}")
        for producer_id, (wanted, *others) in expected.items():
            if not others and wanted.last.base_offset >= kept_from and wanted.last.base_offset in self._matched:
                lives = wanted.undecided_from >= 0 or wanted.last.timestamp >= self.oldest_producer_ms
                self._hold((producer_id in known) == lives, f"producer {producer_id} is {'un' * lives}known")

    def _may_be_open_from(self, producer_id: int, offset: int) -> bool:
        """Whether a transaction may be open from `offset` on: a batch was sent there, and the log has no end of it."""
        sent = self.history.in_force(self.position).get(offset) or self._matched.get(offset)
        ended = max(
            (at for at, end in self._matched.items() if end.is_control and end.producer[0] == producer_id), default=-1
        )
        return sent is not None and sent.is_transactional and sent.producer[0] == producer_id and ended < offset

    def _sequences_before(self, marked: Producer) -> list[tuple[int, int, int, int]]:
        """The sequences that a marker may leave of a producer: one may have expired, or be known by a snapshot only."""
        producer_id = marked.last.producer[0]
        sequences = {-1}
        if self.log.options.compacted:
            sequences |= {
                sent.producer[2] + len(sent.rows) - 1
                for sent in self.history.in_force(self.position).values()
                if sent.producer[:2] == (producer_id, marked.epoch) and not sent.is_control
            }
        return [(marked.epoch, each, marked.last.timestamp, marked.undecided_from) for each in sequences]

    def _expected_producers(self) -> dict[int, list[Producer]]:
        """Return the states that each producer may have: a replay of all that was sent, also of what was removed since.

        In the middle of a compacted log nobody can tell what was lost from what was cleaned away: then there are
        several.
        """
        of_log = self.history.in_force(self.position) | self._matched
        end_offset = self.log.log_end_offset
        is_doubtful = {
            base: self.log.options.compacted
            and base not in self._matched
            and (sent.is_doubtful or sent.end_offset > self._certain)
            for base, sent in of_log.items()
        }
        sure = producers_of((sent for base, sent in of_log.items() if not is_doubtful[base]), end_offset)
        possible = {producer_id: [state] for producer_id, state in sure.items()}
        for base, sent in sorted(of_log.items()):
            for producer_id, state in producers_of([sent], end_offset).items():
                if is_doubtful[base] and (producer_id not in sure or sure[producer_id].last.base_offset < base):
                    possible.setdefault(producer_id, []).append(state)
        return possible

    def goes_on(self, timestamp: int) -> None:
        """Check that the log takes the next batch, and that the last one of a producer is a duplicate.

        Changes the log.
        """
        log = self.log
        for producer, *others in self._expected_producers().values():
            last = producer.last
            if (
                others
                or last.base_offset not in self._matched
                or last.is_control
                or last.timestamp < self.oldest_producer_ms
            ):
                continue
            code, appended = log.state.append(batch_of_rows(last), timestamp)
            self._hold(
                (code, appended.base_offset) == (ErrorCode.NONE, last.base_offset),
                f"the batch at {last.base_offset} sent twice got {appended.base_offset}, error {code}",
            )
        end = log.log_end_offset
        result = log.append(encode_batch([(timestamp, b"after", b"after")]))
        self._hold(result.base_offset == end, f"the next record got offset {result.base_offset}, not {end}")
        (batch,) = read_batches(log.read(end, 1 << 20))
        self._hold(batch.records()[0].value == b"after", "the next record cannot be read")
        log.flush()
        self._hold(log.recovery_point == end + 1, f"flushed to {log.recovery_point}, not {end + 1}")


def batch_of_rows(sent: Sent, *, codec: int = 0) -> bytes:
    """Encode a batch as its producer sends it."""
    producer_id, producer_epoch, base_sequence = sent.producer
    return encode_batch(
        [(sent.timestamp, key, value) for key, value in sent.rows],
        codec=codec, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence,
        is_transactional=sent.is_transactional,
    )  # fmt: skip
