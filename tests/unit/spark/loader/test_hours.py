"""Rows by hour, and hours that are complete."""

from __future__ import annotations

import pyarrow
from hypothesis import given
from hypothesis import strategies as st

from kbroker.model import TopicPartition
from kbroker.spark.loader.hours import HOUR_MS, LAST_MS, by_hour, hour_folder, hour_name
from kbroker.spark.loader.plans.complete_hours import read_up_to_ms, sorted_hours

ARRIVAL_MS = 500_000 * HOUR_MS
STAMPS = st.lists(
    st.one_of(
        st.integers(0, 3 * HOUR_MS),
        st.integers(0, LAST_MS),
        st.sampled_from([-1, -(1 << 63), (1 << 63) - 1, LAST_MS, LAST_MS + 1, HOUR_MS - 1, HOUR_MS]),
    ),
    min_size=1,
    max_size=60,
)


def batch_of(stamps: list[int]) -> pyarrow.RecordBatch:
    return pyarrow.record_batch(
        {
            "timestamp": pyarrow.array(stamps, pyarrow.int64()).cast(pyarrow.timestamp("ms", "UTC")),
            "row": list(range(len(stamps))),
        }
    )


@given(STAMPS)
def test_every_row_is_in_its_hour_in_order(stamps: list[int]) -> None:
    found = {}
    for hour, part in by_hour(batch_of(stamps), ARRIVAL_MS):
        assert hour not in found
        found[hour] = part.column("row").to_pylist()
    expected: dict[int, list[int]] = {}
    for row, stamp in enumerate(stamps):
        expected.setdefault((stamp if 0 <= stamp <= LAST_MS else ARRIVAL_MS) // HOUR_MS, []).append(row)
    assert found == expected


def test_a_small_part_does_not_keep_the_batch() -> None:
    parts = dict(by_hour(batch_of([0] * 1000 + [HOUR_MS]), ARRIVAL_MS))
    assert parts[1].get_total_buffer_size() < 100
    assert parts[0].column("row").buffers()[1].size == 1001 * 8  # and a large one is no copy


def test_names() -> None:
    assert hour_name(0) == "1970-01-01T00"
    assert hour_name(LAST_MS // HOUR_MS) == "9999-12-31T23"
    assert hour_folder("views", 472_222) == "topic=views/date=2023-11-14/hour=22"


A, B, C, D = (TopicPartition("t", partition) for partition in range(4))


def marks(read_to: dict[TopicPartition, float], time: str = "event") -> tuple[object, object]:
    return sorted_hours(
        {"t": (1,)},
        {("t", 2), ("t", 3)},
        {place: round(hours * HOUR_MS) for place, hours in read_to.items()},
        time=time,
        loaded_at_ms=3 * HOUR_MS + 1,
        lateness_ms=HOUR_MS // 2,
    )


def test_an_hour_is_complete_when_all_partitions_were_read_past_it() -> None:
    assert marks({A: 9.0, B: 3.5}) == ({"t": (3,)}, {"t": (1, 2)})
    assert marks({A: 9.0, B: 3.49}) == ({"t": (2, 3)}, {"t": (1,)})
    assert marks({A: 9.0, B: -1}) == ({"t": (1, 2, 3)}, {})
    assert marks({A: 9.0, B: 9.0}) == ({}, {"t": (1, 2, 3)})
    assert marks({TopicPartition("another", 0): 9.0}) == ({"t": (1, 2, 3)}, {})


def test_a_partition_that_was_read_to_its_end_is_as_far_as_when_that_was_its_end() -> None:
    newest = {A: 70, B: 200, C: 30}
    places = [A, B, C, D]
    assert read_up_to_ms(places, newest, {A: 10, B: 9, C: 5, D: 0}, {A: 10, B: 10, D: 0}, 100) == {
        A: 100,  # to its end
        B: 100,  # not to its end, but a record of it says that it is from later than now
        C: 30,  # a transaction is open behind what was read
        D: 100,  # it was never written to
    }
    assert read_up_to_ms(places, newest, {A: 9, B: 9, C: 5, D: 0}, {A: 10, B: 10, D: 1}, 300) == {
        A: 70,
        B: 200,
        C: 30,
        D: -1,
    }


def test_by_arrival_an_hour_is_complete_when_it_is_over() -> None:
    assert marks({}, "arrival") == ({"t": (3,)}, {"t": (1, 2)})
