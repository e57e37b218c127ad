"""A log with several transactional producers shows the same as a plain list of what was appended."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol.records import encode_batch
from kbroker.storage import file_names
from kbroker.storage.index_entries import ABORTED_TRANSACTION, aborted_transactions
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.committed import read_committed
from tests.kit.logs.home import LogHome
from tests.kit.logs.quick_disk import memory_directory
from tests.kit.models.transaction import TransactionModel

producer_ids = st.integers(1, 3)


class TransactionMachine(RuleBasedStateMachine):
    log: Log

    @initialize(
        segment_bytes=st.sampled_from([300, 1000, 1 << 20]),
        index_interval_bytes=st.sampled_from([0, 200, 4096]),
        index_max_bytes=st.sampled_from([48, 10 << 20]),
    )
    def create(self, segment_bytes: int, index_interval_bytes: int, index_max_bytes: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="kbroker-model-", dir=memory_directory()))
        options = LogOptions(
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            index_max_bytes=index_max_bytes,
            verify_transactions=False,
        )
        self.home = LogHome(self.path, options=options)
        self.log = self.home.create()
        self.log.open()
        self.model = TransactionModel()
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "path"):
            self.home.abandon()
            shutil.rmtree(self.path)

    def batch(self, producer_id: int, count: int, *, is_transactional: bool) -> bytes:
        return encode_batch(
            [(1_700_000_000_000 + at, None, b"%d" % producer_id * 9) for at in range(count)],
            producer_id=producer_id,
            producer_epoch=self.epochs.get(producer_id, 0),
            base_sequence=self.sequences.get(producer_id, 0),
            is_transactional=is_transactional,
        )

    @rule(producer_id=producer_ids, count=st.integers(1, 3))
    def append_to_a_transaction(self, producer_id: int, count: int) -> None:
        batch = self.batch(producer_id, count, is_transactional=True)
        expected = self.model.append(producer_id, self.epochs.setdefault(producer_id, 0), count, is_transactional=True)
        assert self.log.append(batch).base_offset == expected.base_offset
        self.sequences[producer_id] = self.sequences.get(producer_id, 0) + count

    @rule(producer_id=st.integers(5, 6), count=st.integers(1, 3))
    def append_outside_of_transactions(self, producer_id: int, count: int) -> None:
        batch = self.batch(producer_id, count, is_transactional=False)
        expected = self.model.append(producer_id, self.epochs.setdefault(producer_id, 0), count, is_transactional=False)
        assert self.log.append(batch).base_offset == expected.base_offset
        self.sequences[producer_id] = self.sequences.get(producer_id, 0) + count

    @rule(count=st.integers(1, 3))
    def append_of_nobody(self, count: int) -> None:
        self.log.append(encode_batch([(1000, None, b"n" * 20)] * count))
        self.model.append(-1, -1, count, is_transactional=False)

    @rule(producer_id=producer_ids, commit=st.booleans(), bump=st.integers(0, 1), coordinator_epoch=st.integers(0, 2))
    def end(self, producer_id: int, commit: bool, bump: int, coordinator_epoch: int) -> None:
        epoch = self.epochs.get(producer_id, 0) + bump
        known_epoch, known_coordinator = self.model.epochs().get(producer_id, (-1, -1))
        assert epoch >= known_epoch
        if coordinator_epoch < known_coordinator:
            try:
                self.log.append_marker(producer_id, epoch, coordinator_epoch, commit=commit)
            except ProtocolError as refused:
                assert refused.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
                return
            raise AssertionError("a marker of an old coordinator was taken")
        appended = self.log.append_marker(producer_id, epoch, coordinator_epoch, commit=commit)
        expected = self.model.end(producer_id, epoch, coordinator_epoch, commit=commit)
        assert appended.base_offset == expected.base_offset
        self.epochs[producer_id] = epoch
        if epoch != known_epoch:
            self.sequences[producer_id] = 0

    @precondition(lambda self: self.model.open_transactions())
    @rule(data=st.data(), commit=st.sampled_from([False, False, True]))
    def end_what_is_open(self, data: st.DataObject, commit: bool) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.model.open_transactions())))
        known_coordinator = self.model.epochs()[producer_id][1]
        self.end(producer_id, commit, 0, max(known_coordinator, 0))

    @rule(offset=st.integers(0, 200))
    def truncate(self, offset: int) -> None:
        if not self.model.start_offset <= offset < self.model.end_offset:
            return
        self.log.truncate_to(offset)
        self.model.truncate_to(offset)
        self.home.recovery_point = min(self.home.recovery_point, self.log.recovery_point)
        self.learn()

    @rule(offset=st.integers(0, 200))
    def delete_records(self, offset: int) -> None:
        if self.model.start_offset <= offset <= self.model.end_offset:
            self.log.delete_records_before(offset)
            self.model.start_offset = offset

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(
        how=st.sampled_from(["clean", "killed", "killed without snapshot", "killed without txnindex"]),
        is_flushed=st.booleans(),
    )
    def restart(self, how: str, is_flushed: bool) -> None:
        if is_flushed:
            self.log.flush()
            self.home.recovery_point = self.log.recovery_point
        if how.endswith("txnindex"):
            self.home.recovery_point = 0  # what is below is not made anew
        if how == "clean":
            self.log.close()
        if how.startswith("killed without"):
            for path in self.home.log_path.glob("*." + how.rpartition(" ")[2]):
                path.unlink()
        self.log = self.home.reopen(clean=how == "clean")
        self.learn()

    def learn(self) -> None:
        """Take over the log's state: a producer may have lost its last batches."""
        for producer in self.log.active_producers():
            if producer.producer_id in self.epochs:
                self.epochs[producer.producer_id] = producer.producer_epoch
                self.sequences[producer.producer_id] = producer.last_sequence + 1
        known = self.model.epochs()
        for producer_id in list(self.epochs):
            if producer_id not in known:
                del self.epochs[producer_id]
                self.sequences.pop(producer_id, None)

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.model.end_offset
        assert self.log.state.first_undecided_offset == self.model.first_undecided_offset
        assert self.log.last_stable_offset == self.model.last_stable_offset

    @invariant()
    def producers_are_those_of_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        open_transactions = self.model.open_transactions()
        assert [
            (at.producer_id, at.producer_epoch, at.coordinator_epoch, at.transaction_start_offset)
            for at in self.log.active_producers()
        ] == [(at, *epochs, open_transactions.get(at, -1)) for at, epochs in sorted(self.model.epochs().items())]

    @invariant()
    def the_index_of_aborted_transactions_is_that_of_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        written = []
        for segment in self.log.state.segments():
            path = Path(self.log.path_of(segment.base_offset, file_names.TRANSACTION_INDEX))
            if path.exists():
                data = path.read_bytes()
                assert len(data) % ABORTED_TRANSACTION.size == 0
                entries = list(aborted_transactions(data))
                assert all(entry.last_offset >= segment.base_offset for entry in entries)
                written += entries
        expected = [
            (at.producer_id, at.first_offset, at.last_offset, at.last_stable_offset) for at in self.model.aborted()
        ]
        assert written == expected
        assert self.log.state.aborted_count == len(expected)

    @precondition(lambda self: self.model.end_offset > self.model.start_offset)
    @rule(data=st.data(), max_bytes=st.sampled_from([1, 100, 300, 1 << 20]))
    def fetch_committed(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.model.start_offset, self.model.end_offset))
        got = self.log.read(offset, max_bytes, committed=True)
        aborted = self.log.aborted_transactions(offset, max_bytes)
        if got:
            # At least those that overlap what was read; Kafka's bound is the next entry of the index.
            end = self.model.end_offset
            assert [at for at in self.model.aborted_within(offset, end) if at in aborted] == aborted
        else:
            assert aborted == []

    @precondition(lambda self: self.model.end_offset > self.model.start_offset)
    @rule(data=st.data(), max_bytes=st.sampled_from([1, 100, 300, 1 << 20]))
    def read_what_is_committed(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.model.start_offset, self.model.end_offset))
        found = [record.offset for record in read_committed(self.log, offset, max_bytes)]
        assert found == [at for at in self.model.committed() if at >= offset]


TransactionMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow], deadline=None
)
test_any_sequence_of_transactions_is_told_as_by_the_model = TransactionMachine.TestCase
