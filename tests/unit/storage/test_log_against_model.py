"""Any sequence of operations on a log gives what a plain list would give."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.protocol.records import encode_batch
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import LogHome, read_all
from tests.kit.logs.quick_disk import memory_directory
from tests.kit.models.log import LogModel

values = st.binary(max_size=300)
timestamps = st.integers(min_value=0, max_value=1000)


class LogMachine(RuleBasedStateMachine):
    log: Log

    @initialize(
        segment_bytes=st.sampled_from([1400, 4000, 1 << 20]),
        index_interval_bytes=st.sampled_from([0, 200, 4096]),
        index_max_bytes=st.sampled_from([48, 10 << 20]),
    )
    def create(self, segment_bytes: int, index_interval_bytes: int, index_max_bytes: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="kbroker-model-", dir=memory_directory()))
        options = LogOptions(
            segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes, index_max_bytes=index_max_bytes
        )
        self.home = LogHome(self.path, options=options)
        self.log = self.home.create()
        self.log.open()
        self.model = LogModel()
        self.highest_epoch = 0

    def teardown(self) -> None:
        if hasattr(self, "path"):
            self.home.abandon()
            shutil.rmtree(self.path)

    @rule(records=st.lists(st.tuples(timestamps, values), min_size=1, max_size=4), codec=st.sampled_from([0, 0, 1, 4]))
    def append(self, records: list[tuple[int, bytes]], codec: int) -> None:
        batch = encode_batch([(timestamp, None, value) for timestamp, value in records], codec=codec)
        assert self.log.append(batch).base_offset == self.model.append(records)

    @rule(count=st.integers(1, 30))
    def append_many(self, count: int) -> None:
        for at in range(count):
            self.append([(at * 7 % 1000, b"x" * (at * 37 % 200))], 0)

    @rule(data=st.data())
    def read_from_anywhere(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.model.start_offset, self.model.end_offset))
        found = read_all(self.log, offset, max_bytes=data.draw(st.sampled_from([1, 200, 1000, 1 << 20])))
        assert [(record.offset, record.timestamp, record.value) for record in found] == [
            (record.offset, record.timestamp, record.value) for record in self.model.records(offset)
        ]

    @rule(timestamp=timestamps)
    def look_up_a_time(self, timestamp: int) -> None:
        found = self.log.offset_for_timestamp(timestamp)
        expected = self.model.first_at_or_after(timestamp)
        assert (found and found[:2]) == (expected and (expected.timestamp, expected.offset))

    @rule()
    def look_up_the_newest(self) -> None:
        found = self.log.offset_of_max_timestamp()
        expected = self.model.newest()
        assert (found and found[:2]) == (expected and (expected.timestamp, expected.offset))

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.state.flushed_offset == self.model.end_offset

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.model.start_offset, self.model.end_offset))
        self.log.truncate_to(offset)
        self.model.truncate_to(offset)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.model.end_offset))
        self.model.delete_before(offset)
        assert self.log.delete_records_before(offset) == self.model.start_offset

    @rule(retention_bytes=st.sampled_from([-1, 0, 3000]))
    def retain(self, retention_bytes: int) -> None:
        """Remove whole segments, the oldest first, while the log does not get smaller than allowed."""
        before, size = self.model.start_offset, self.log.size
        self.log.update_options(
            LogOptions(
                segment_bytes=self.home.options.segment_bytes,
                index_interval_bytes=self.home.options.index_interval_bytes,
                index_max_bytes=self.home.options.index_max_bytes,
                retention_ms=-1,
                retention_bytes=retention_bytes,
            )
        )
        self.log.delete_old_segments()
        self.log.update_options(self.home.options)
        start_offset = self.log.log_start_offset
        assert before <= start_offset <= self.model.end_offset
        if retention_bytes > 0:
            assert self.log.size >= min(size, retention_bytes) or start_offset == before
        if retention_bytes == 0:
            assert self.log.size == 0
        self.model.delete_before(start_offset)

    @rule(by=st.integers(0, 2))
    def lead(self, by: int) -> None:
        self.highest_epoch += by
        self.log.be_alone(self.highest_epoch)
        self.model.begin_epoch(self.highest_epoch)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if clean:
            self.log.close()
        self.home.recovery_point = self.log.recovery_point
        self.home.unlink_removed()
        self.log = self.home.reopen(clean=clean)
        self.log.be_alone(self.highest_epoch)
        self.model.begin_epoch(self.highest_epoch)

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def ends_agree(self) -> None:
        assert self.log.log_start_offset == self.model.start_offset
        assert self.log.log_end_offset == self.log.high_watermark == self.model.end_offset

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def segments_are_named_by_their_first_offset(self) -> None:
        segments = self.log.state.segments()
        assert sorted(path.name for path in self.home.log_path.glob("*.log")) == [
            f"{at[0]:020d}.log" for at in segments
        ]


TestLogAgainstModel = LogMachine.TestCase
TestLogAgainstModel.settings = settings(
    max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
