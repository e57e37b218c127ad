"""A broker's logs in one seeded life on a CrashFileSystem: what it does, and what it promises meanwhile.

The life is that of `LogManager` and everything below it. Of the coordination store, which is SQLite and has its own
durability, there is the `Catalogue`: changes of it are whole and at once, in the order in which a broker makes them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker.errors import ErrorCode
from kbroker.fs import FileSystem, RealFileSystem
from kbroker.groups.records import offset_key, offset_value
from kbroker.model import GROUP_OFFSETS_TOPIC, TopicPartition
from kbroker.protocol.compression import Codec
from kbroker.rules.group_offsets import CommittedOffset
from kbroker.storage import file_names
from kbroker.storage.checkpoints import CLEANER_OFFSETS, load_offsets
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import NEVER, CleanerOptions, LogOptions, StorageOptions
from tests.kit.crash.fs import CrashFileSystem, nobody_else
from tests.kit.crash.history import (
    FOREVER,
    History,
    Producer,
    Row,
    Sent,
    batch_of_rows,
    batches_of,
    decisions,
    marker_row,
    producers_of,
    stored_in,
)
from tests.kit.crash.old_log import CLUSTER_ID, write_old_log
from tests.kit.logs.home import TOPIC_ID, ManualClock

EXPIRATION_MS = 100_000
DELETE_RETENTION_MS = 3000
OLD_TOPIC = "old"
"""A topic that is there before the first life, as an Apache Kafka has left it."""
CLEANER = CleanerOptions(io_buffer_size=1400)
GROUPS = ("billing", "search")
KEYS = 7
LARGEST_COMMIT = 300
"""The largest size in bytes of a batch with one small record."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic of a life."""

    name: str
    partition_count: int
    options: LogOptions


@dataclass(frozen=True, slots=True)
class Plan:
    """The kind of broker in a life; it follows from the seed."""

    name: str
    directory_count: int
    topics: tuple[TopicPlan, ...]
    steps: int
    lives: int
    reorder: bool

    @classmethod
    def of(cls, chance: random.Random) -> Plan:
        policy, flush_messages = chance.choice(
            (("fsync before every ack", 1), ("fsync every five messages", 5), ("page cache", NEVER))
        )
        small = LogOptions(
            segment_bytes=chance.choice((1300, 1300, 2500)),
            index_interval_bytes=chance.choice((0, 150, 400)),
            flush_messages=flush_messages,
            preallocate=chance.random() < 0.1,
            verify_transactions=False,
        )
        compacted = small._replace(compacted=True, deleted_by_retention=False, delete_retention_ms=DELETE_RETENTION_MS,
            min_cleanable_ratio=0.0,
        )  # fmt: skip
        orders = small._replace(retention_bytes=chance.choice((-1, -1, 2000)), retention_ms=chance.choice((-1, 60_000)))
        topics = [TopicPlan("orders", chance.choice((1, 2)), orders)]
        if chance.random() < 0.7:
            topics.append(TopicPlan("changes", 1, compacted._replace(deleted_by_retention=chance.random() < 0.3)))
        if chance.random() < 0.5:
            topics.append(TopicPlan(GROUP_OFFSETS_TOPIC, 1, compacted))
        if chance.random() < 0.4:
            topics.append(TopicPlan("passing", chance.choice((1, 2)), small))
        if chance.random() < 0.3:
            topics.append(TopicPlan(OLD_TOPIC, 1, chance.choice((small, compacted, compacted))))
        reorder = chance.random() < 0.3
        return cls(
            f"{policy}, {', '.join(topic.name for topic in topics)}{', names reordered' if reorder else ''}",
            chance.choice((1, 1, 2)), tuple(topics), chance.choice((30, 60, 120)), chance.choice((1, 2, 3)), reorder,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """What the coordination store says of a topic from a position of the journal on."""

    position: int
    name: str
    topic_id: UUID
    state: str
    """here, doomed or gone."""


@dataclass(slots=True)
class Catalogue:
    """The coordination store's part in a life: topics and leader epochs, by the position of each change."""

    entries: list[Entry] = field(default_factory=list)
    epochs: list[tuple[int, TopicPartition, int]] = field(default_factory=list)

    def state_at(self, position: int) -> dict[str, Entry]:
        """The newest entry before `position` of each topic that is not gone."""
        newest = {each.name: each for each in self.entries if each.position < position}
        return {name: each for name, each in newest.items() if each.state != "gone"}

    def epoch_at(self, position: int, at: TopicPartition) -> int:
        return max((epoch for when, which, epoch in self.epochs if when < position and which == at), default=0)

    def carried_over(self, position: int) -> Catalogue:
        return Catalogue(
            [replace(each, position=-1) for each in self.entries if each.position < position],
            [(-1, at, epoch) for when, at, epoch in self.epochs if when < position],
        )


Key = tuple[UUID, int]
"""Topic id and partition."""


class Life:
    """The life of a broker on `disk`, which is empty or was left by a crash."""

    def __init__(
        self,
        disk: Path,
        plan: Plan,
        seed: str,
        *,
        file_system: type[CrashFileSystem] = CrashFileSystem,
        catalogue: Catalogue | None = None,
        histories: dict[Key, History] | None = None,
        now_ms: int = 1_700_000_000_000,
        tombstones: dict[Key, dict[int, int]] | None = None,
    ):
        self.plan, self.seed = plan, seed
        self.chance = random.Random(seed)
        self.clock = ManualClock(now_ms)
        self.is_first = catalogue is None
        if self.is_first:
            for number in range(plan.directory_count):
                (disk / f"d{number}").mkdir(parents=True)
        self.catalogue = catalogue or Catalogue()
        self.histories = histories or {}
        self.options = {topic.name: topic.options for topic in plan.topics}
        if self.is_first and OLD_TOPIC in self.options:
            self.histories[TOPIC_ID, 0] = write_old_log(disk / "d0", TopicPartition(OLD_TOPIC, 0), self.chance)
            self.catalogue.entries.append(Entry(-1, OLD_TOPIC, TOPIC_ID, "here"))
        self.fs = file_system(disk, short_writes=random.Random(seed), reorder=plan.reorder)
        self.first_position = self.fs.position
        """The position of the journal at which the life has begun."""
        self._producers: dict[Key, dict[int, Producer]] = {}
        self.tombstones: dict[Key, dict[int, int]] = {
            key: {offset: when for offset, when in of_log.items() if when <= now_ms}
            for key, of_log in (tombstones or {}).items()
        }
        """For each log, offset of a tombstone -> time when a cleaning first met it."""
        self._times: list[tuple[int, int]] = []

    def now_at(self, position: int) -> int:
        """The clock's time at an operation."""
        return max((now for when, now in self._times if when <= position), default=self.clock.now_ms)

    # --- starting

    def live(self, *, steps: int | None = None, lives: int | None = None) -> None:
        """Live `lives` lives. Each of them but the last ends with a clean stop or a kill."""
        for number in range(lives or self.plan.lives):
            self.fs.mark("start")
            logs = start(
                self.fs, self.fs.root, self.plan, self.catalogue, self.fs.position, self.clock, f"{self.seed} {number}"
            )
            for name, entry in self.catalogue.state_at(self.fs.position).items():
                if entry.state == "doomed":
                    self._delete(logs, name, entry)
            if self.is_first and number == 0:
                for topic in self.plan.topics:
                    if topic.name != OLD_TOPIC:
                        self._create(logs, topic)
            self._take_up(logs)
            self._logs = logs
            for _ in range(steps or self.plan.steps):
                self._step(logs)
            if self.chance.random() < 0.4:
                self._stop(logs)
            else:
                logs.abandon()

    def _take_up(self, logs: LogManager) -> None:
        """Open every log. Producers and readers go on from what it has now."""
        for at, key in self._partitions():
            log = logs.create(at.topic, key[0], at.partition_id, self.options[at.topic])
            log.open()
            epoch = self.catalogue.epoch_at(self.fs.position, at)
            if log.leader_epoch != epoch:
                log.be_alone(epoch)
            history = self.histories[key]
            history.start_tried.append((self.fs.position - 1, log.log_start_offset))
            history.settle(self.fs.position, log, has_holes=self.plan.reorder)
            self._producers[key] = self._known_producers(log, history)
            self._claim(log, history)

    def _known_producers(self, log: Log, history: History) -> dict[int, Producer]:
        """The producers as the log knows them, each with its last batch that was sent if the log still has it."""
        replayed = producers_of(history.in_force(self.fs.position).values(), log.log_end_offset)
        table, _ = log.state.producers()
        known = {}
        for at in table.export():
            state = replayed.get(at.producer_id)
            epoch, sequence = at.producer_epoch, at.batches[-1].last_sequence if at.batches else -1
            if state is None or (state.epoch, state.last_sequence) != (epoch, sequence):
                # Nobody sends a marker again.
                last = Sent(-1, 0, (), at.last_timestamp, 0, (at.producer_id, epoch, sequence), is_control=True)
                state = Producer(epoch, sequence, last, at.transaction_first_offset)
            state.undecided_from = at.transaction_first_offset
            known[at.producer_id] = state
        return known

    def _partitions(self) -> list[tuple[TopicPartition, Key]]:
        counts = {topic.name: topic.partition_count for topic in self.plan.topics}
        return [
            (TopicPartition(name, number), (entry.topic_id, number))
            for name, entry in sorted(self.catalogue.state_at(self.fs.position).items())
            if entry.state == "here"
            for number in range(counts[name])
        ]

    def _stop(self, logs: LogManager) -> None:
        self.fs.mark("stop")
        ends = {key: logs.get(at).log_end_offset for at, key in self._partitions()}  # type: ignore[union-attr]
        logs.stop()
        for key, end in ends.items():
            self.histories[key].durable.say(self.fs.position, end)

    # --- what it does

    def _step(self, logs: LogManager) -> None:
        self.clock.now_ms += self.chance.choice((0, 1, 1000))
        if self.chance.random() < 0.01:
            self.clock.now_ms += EXPIRATION_MS
        self._times.append((self.fs.position, self.clock.now_ms))
        partitions = self._partitions()
        step = self.chance.choices(list(STEPS), list(STEPS.values()))[0]
        if step == "topic":
            self._topic(logs)
            return
        if step in ("checkpoint", "files", "expire"):
            self.fs.mark(step)
            self._background(logs, step)
            return
        if not partitions:
            return
        at, key = self.chance.choice(partitions)
        log, history = logs.get(at), self.histories[key]
        assert log is not None
        self.fs.mark(f"{step} {at}")
        getattr(self, f"_{step}")(log, history, key)
        self._claim(log, history)

    def _claim(self, log: Log, history: History) -> None:
        """Note as durable what the log itself takes for flushed."""
        flushed = log.state.flushed_offset
        if flushed > history.durable.at(self.fs.position):
            history.durable.say(self.fs.position, flushed)

    def _background(self, logs: LogManager, step: str) -> None:
        if step == "checkpoint":
            logs.write_checkpoints()
        elif step == "files":
            self.clock.now_ms += 60_000
            self._times.append((self.fs.position, self.clock.now_ms))
            logs.run_due_jobs()
        else:
            logs.expire_producers()
            for at, key in self._partitions():
                log = logs.get(at)
                assert log is not None
                self._producers[key] = self._known_producers(log, self.histories[key])

    def _topic(self, logs: LogManager) -> None:
        topic = next((topic for topic in self.plan.topics if topic.name == "passing"), None)
        if topic is None:
            return
        entry = self.catalogue.state_at(self.fs.position).get(topic.name)
        if entry is None:
            self._create(logs, topic)
        else:
            self._delete(logs, topic.name, entry)

    def _create(self, logs: LogManager, topic: TopicPlan) -> None:
        """Create a topic: first in the store, then its logs. The next start makes logs that are missing."""
        topic_id = UUID(int=self.chance.getrandbits(128))
        self.catalogue.entries.append(Entry(self.fs.position, topic.name, topic_id, "here"))
        self.fs.mark(f"create {topic.name}")
        for number in range(topic.partition_count):
            key = topic_id, number
            self.histories[key] = History()
            self._producers[key] = {}
            self.catalogue.epochs.append((self.fs.position - 1, TopicPartition(topic.name, number), 0))
            log = logs.create(topic.name, topic_id, number, topic.options)
            log.be_alone(0)
            log.open()

    def _delete(self, logs: LogManager, name: str, entry: Entry) -> None:
        """Delete a topic: first the mark, then the logs, then the topic."""
        self.catalogue.entries.append(replace(entry, position=self.fs.position, state="doomed"))
        self.fs.mark(f"delete {name}")
        for number in range(next(topic.partition_count for topic in self.plan.topics if topic.name == name)):
            logs.delete(TopicPartition(name, number))
        self.catalogue.entries.append(replace(entry, position=self.fs.position, state="gone"))
        self.fs.mark(f"deleted {name}")

    def _append(self, log: Log, history: History, key: Key) -> None:
        if log.topic_partition.topic == GROUP_OFFSETS_TOPIC:
            self._commit(log, history, key)
            return
        kind = self.chance.choices(("plain", "idempotent", "again"), (6, 5, 1))[0]
        producers = self._producers[key]
        if kind == "again" and producers:
            self._append_again(log, producers)
            return
        rows = self._rows(log)
        producer = -1, -1, -1
        if kind == "idempotent":
            producer_id = self.chance.randrange(100, 104)
            producer = self._next_of(producer_id, history, producers.get(producer_id))
        sent = self._send(log, history, rows, producer)
        if kind == "idempotent":
            producers[producer[0]] = Producer(producer[1], producer[2] + len(rows) - 1, sent)

    def _transact(self, log: Log, history: History, key: Key) -> None:
        """Let a producer go on with its transaction, or the coordinator end it, also if none is open."""
        if log.topic_partition.topic == GROUP_OFFSETS_TOPIC:
            return
        producers = self._producers[key]
        producer_id = self.chance.randrange(200, 203)
        known = producers.get(producer_id)
        is_open = known is not None and known.undecided_from >= 0
        if self.chance.random() < (0.4 if is_open else 0.05):
            self._end_transaction(log, history, producers, producer_id)
            return
        rows = self._rows(log)
        producer = self._next_of(producer_id, history, known)
        sent = self._send(log, history, rows, producer, is_transactional=True)
        first = known.undecided_from if known is not None and is_open else sent.base_offset
        producers[producer_id] = Producer(producer[1], producer[2] + len(rows) - 1, sent, first)

    def _end_transaction(self, log: Log, history: History, producers: dict[int, Producer], producer_id: int) -> None:
        known = producers.get(producer_id)
        last_epoch = max((at.producer[1] for at in history.sent if at.producer[0] == producer_id), default=0)
        epoch = max(last_epoch, known.epoch if known is not None else 0) + (self.chance.random() < 0.3)
        commit = self.chance.random() < 0.5
        sent = Sent(
            self.fs.position, log.log_end_offset, (marker_row(commit=commit, coordinator_epoch=0),),
            self.clock.now_ms, log.leader_epoch, (producer_id, epoch, -1), is_control=True,
        )  # fmt: skip
        history.sent.append(sent)
        result = log.append_marker(producer_id, epoch, 0, commit=commit)
        assert result.base_offset == sent.base_offset, (result, sent)
        self._acknowledge(history, sent.end_offset, is_durable=result.must_flush)
        is_same = known is not None and known.epoch == epoch
        producers[producer_id] = Producer(epoch, known.last_sequence if known is not None and is_same else -1, sent)

    def _next_of(self, producer_id: int, history: History, known: Producer | None) -> tuple[int, int, int]:
        """The next producer id, epoch and sequence of a client.

        If the log knows less than the client, it takes a new epoch.
        """
        of_producer = [at for at in history.sent if at.producer[0] == producer_id]
        last = next((at for at in reversed(of_producer) if not at.is_control), None)
        newest = max((at.producer[1] for at in of_producer), default=-1)
        if last is None or newest > last.producer[1]:
            if known is None:
                return producer_id, max(newest, self.chance.randrange(3)), 0
            return producer_id, max(newest, known.epoch) + (known.last_sequence >= 0 or newest < 0), 0
        epoch, sequence = last.producer[1], last.producer[2] + len(last.rows)
        if (
            known is not None and (epoch, sequence) != (known.epoch, known.last_sequence + 1)
        ) or self.chance.random() < 0.1:
            return producer_id, epoch + 1, 0
        return producer_id, epoch, sequence

    def _rows(self, log: Log) -> tuple[Row, ...]:
        compacted = log.options.compacted
        return tuple(
            (
                b"key %d" % self.chance.randrange(KEYS) if compacted or self.chance.random() < 0.5 else None,
                None
                if compacted and self.chance.random() < 0.15
                else b"%x " % self.chance.getrandbits(64) + b"x" * self.chance.choice((0, 40, 300)),
            )
            for _ in range(self.chance.choice((1, 1, 3)))
        )

    def _send(
        self,
        log: Log,
        history: History,
        rows: tuple[Row, ...],
        producer: tuple[int, int, int],
        *,
        is_transactional: bool = False,
    ) -> Sent:
        sent = Sent(
            self.fs.position, log.log_end_offset, rows, self.clock.now_ms, log.leader_epoch, producer,
            is_transactional=is_transactional,
        )  # fmt: skip
        history.sent.append(sent)
        codec = self.chance.choice((Codec.NONE, Codec.NONE, *Codec))
        result = log.append(batch_of_rows(sent, codec=codec))
        assert result.base_offset == sent.base_offset, (result, sent)
        self._acknowledge(history, sent.end_offset, is_durable=result.must_flush)
        return sent

    def _acknowledge(self, history: History, end_offset: int, *, is_durable: bool) -> None:
        history.acknowledged.say(self.fs.position, end_offset)
        if is_durable:
            history.durable.say(self.fs.position, end_offset)

    def _append_again(self, log: Log, producers: dict[int, Producer]) -> None:
        last = self.chance.choice(list(producers.values())).last
        if last.is_control:
            return
        end = log.log_end_offset
        code, appended = log.state.append(batch_of_rows(last), self.clock.now_ms)
        assert (code, appended.base_offset, log.log_end_offset) == (ErrorCode.NONE, last.base_offset, end), (
            f"{log}: a batch sent twice got offset {appended.base_offset}, not {last.base_offset} (error {code})"
        )

    def _commit(self, log: Log, history: History, key: Key) -> None:
        """Let a group commit an offset of `orders` that it has read."""
        entry = self.catalogue.state_at(self.fs.position)["orders"]
        read_to = self.histories[entry.topic_id, 0].acknowledged.at(self.fs.position)
        committed = CommittedOffset(self.chance.randint(0, read_to), 0, "", self.clock.now_ms)
        group = self.chance.choice(GROUPS)
        value = offset_value(committed) if self.chance.random() < 0.95 else None
        self._send(log, history, ((offset_key(group, TopicPartition("orders", 0)), value),), (-1, -1, -1))

    def _flush(self, log: Log, history: History, key: Key) -> None:
        log.flush()
        history.durable.say(self.fs.position, log.log_end_offset)

    def _roll(self, log: Log, history: History, key: Key) -> None:
        log.roll()

    def _delete_records(self, log: Log, history: History, key: Key) -> None:
        if not log.options.deleted_by_retention:
            return
        wanted = self.chance.randint(0, log.log_end_offset)
        history.start_tried.append((self.fs.position, max(wanted, log.log_start_offset)))
        log.delete_records_before(wanted)
        history.deleted.say(self.fs.position, max(wanted, history.deleted.at(self.fs.position)))

    def _retention(self, log: Log, history: History, key: Key) -> None:
        began = self.fs.position
        self._logs.check_retention()
        for at, each in self._partitions():
            of_partition = self._logs.get(at)
            assert of_partition is not None
            self.histories[each].start_tried.append((began, of_partition.log_start_offset))

    def _epoch(self, log: Log, history: History, key: Key) -> None:
        epoch = log.leader_epoch + 1
        self.catalogue.epochs.append((self.fs.position - 1, log.topic_partition, epoch))
        log.be_alone(epoch)

    def _truncate(self, log: Log, history: History, key: Key) -> None:
        if log.options.compacted or log.log_end_offset == log.log_start_offset:
            return
        wanted = self.chance.randint(log.log_start_offset, log.log_end_offset)
        began = self.fs.position
        whole = (stored.last_offset + 1 for stored in stored_in(log) if stored.last_offset < wanted)
        kept = max(whole, default=log.log_start_offset)
        history.truncate(began, kept)
        log.truncate_to(wanted)
        end = log.log_end_offset
        assert kept <= end <= wanted, f"{log}: cut to {end}; {wanted} was wanted, {kept} is whole"
        history.acknowledged.say(self.fs.position, end)
        self._producers[key] = self._known_producers(log, history)

    def _clean(self, log: Log, history: History, key: Key) -> None:
        """Let the cleaner clean a compacted log of its choice, and check what is left."""
        if not log.options.compacted:
            return
        if self.chance.random() < 0.7:
            log.flush()
        compacted = [(self._logs.get(at), each) for at, each in self._partitions() if self.options[at.topic].compacted]
        before = [rows_of(each) for each, _ in compacted]
        ends = [each.log_end_offset for each, _ in compacted]
        began = self.fs.position
        self.fs.after_rename = self._meanwhile
        self._logs.cleaner.clean_filthiest(DedupeMap(1 << 12))
        self.fs.after_rename = nobody_else
        assert not self._logs.cleaner.uncleanable(), f"{self._logs.cleaner.uncleanable()} cannot be cleaned"
        for (each, its_key), rows, end_offset in zip(compacted, before, ends, strict=True):
            after = {offset: row for offset, row in rows_of(each).items() if offset < end_offset}
            cleaned_to = load_offsets(RealFileSystem(), f"{each.directory.path}/{CLEANER_OFFSETS}")
            self._judge_cleaning(each, its_key, rows, after, cleaned_to.get(each.topic_partition, 0))
            for offset in rows.keys() - after.keys():
                self.histories[its_key].gone.setdefault(offset, began)

    def _meanwhile(self, path: str) -> None:
        """Do between two steps of a swap what other threads may do that does not need the log's lock."""
        if not path.endswith((file_names.SWAP, file_names.DELETED, file_names.LOG)) or self.chance.random() < 0.7:
            return
        at, key = self.chance.choice(self._partitions())
        log, history = self._logs.get(at), self.histories[key]
        assert log is not None
        self.fs.after_rename = nobody_else
        self.fs.mark(f"meanwhile {at}")
        if not path.startswith(f"{log.path}/"):
            step = self.chance.choice((self._append, self._append, self._flush, self._roll, None))
            if step is None:
                self._logs.write_checkpoints()
            else:
                step(log, history, key)
        elif (size := log.state.segments()[-1].size) and size + LARGEST_COMMIT < log.options.segment_bytes:
            if at.topic == GROUP_OFFSETS_TOPIC:
                self._commit(log, history, key)
            else:
                self._send(log, history, ((b"key 0", b"meanwhile"),), (-1, -1, -1))
            self._flush(log, history, key)
        self._claim(log, history)
        self.fs.after_rename = self._meanwhile

    def _judge_cleaning(
        self, log: Log, key: Key, before: dict[int, Row | None], after: dict[int, Row | None], end_offset: int
    ) -> None:
        """Check that each removed record is outdated, aborted, or a tombstone or marker whose time is over."""
        written = self.histories[key].in_force(self.fs.position).values()
        is_aborted = decisions(written)
        aborted = {
            at
            for sent in written
            if is_aborted.get(sent.base_offset)
            for at in range(sent.base_offset, sent.end_offset)
        }
        old = {sent.base_offset for sent in written if sent.magic < 2}
        newest = {
            row[0]: offset
            for offset, row in before.items()
            if row is not None and row[0] and offset < end_offset and offset not in aborted
        }
        tombstones = self.tombstones.setdefault(key, {})
        now_ms = self.clock.now_ms
        for offset in before.keys() - after.keys():
            row = before[offset]
            # Tombstones of magic 0 and 1 are removed by the age of their segment.
            is_old = offset in old or now_ms - tombstones.get(offset, FOREVER) >= DELETE_RETENTION_MS
            is_superseded = row is not None and newest.get(row[0], -1) > offset
            is_tombstone = row is None or row[1] is None
            is_right = is_superseded or offset in aborted or (is_tombstone and is_old)
            assert is_right, f"{log}: cleaning took {row} at {offset}"
        assert after.items() <= before.items(), f"{log}: cleaning made records"
        for offset, row in after.items():
            if offset < end_offset and (row is None or row[1] is None):
                tombstones.setdefault(offset, now_ms)


STEPS = {
    "append": 60, "transact": 25, "flush": 6, "roll": 3, "delete_records": 3, "retention": 3, "epoch": 1, "truncate": 1,
    "clean": 8, "checkpoint": 4, "files": 3, "expire": 1, "topic": 3,
}  # fmt: skip
"""How often each step is done. A step is a method of Life, or a background job."""


def rows_of(log: Log) -> dict[int, Row | None]:
    """Return every record by its offset; None for a marker."""
    found: dict[int, Row | None] = {}
    for batch in batches_of(log):
        for record in batch.records() if batch.info.record_count else ():
            found[record.offset] = None if batch.info.is_control else (record.key, record.value)
    return found


def start(
    fs: FileSystem, disk: Path, plan: Plan, catalogue: Catalogue, position: int, clock: ManualClock, seed: str
) -> LogManager:
    """Start a broker's logs on `disk`: load those that are there and make those that are missing."""
    directories = tuple(f"{disk}/d{number}" for number in range(plan.directory_count))
    storage = StorageOptions(directories, flusher_threads=0, producer_id_expiration_ms=EXPIRATION_MS, cleaner=CLEANER)
    logs = LogManager(storage, fs=fs, clock=clock, randomness=random.Random(seed))
    topics = catalogue.state_at(position)
    options = {topic.name: topic.options for topic in plan.topics}

    def resolve(at: TopicPartition) -> tuple[UUID, LogOptions] | None:
        entry = topics.get(at.topic)
        return None if entry is None else (entry.topic_id, options[at.topic])

    logs.start(resolve, cluster_id=CLUSTER_ID, background=False)
    return logs
