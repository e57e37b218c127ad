"""Records of a producer's callers: what stands in the batches, what is refused, who waits."""

from __future__ import annotations

import array
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.client.producer.accumulator import Accumulator
from kbroker._core.client.producer.delivery import Delivery
from kbroker._core.client.producer.record_sender import RecordSender
from kbroker._core.probes.producer import deliver
from kbroker.errors import UsageError
from kbroker.protocol.records import read_records

SECONDS = 20.0
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def made(partitions: int = 1, **how: Any) -> tuple[Accumulator, RecordSender]:
    sender = {
        name: how.pop(name) for name in ("partitioner", "key_encoder", "value_encoder", "block_ms") if name in how
    }
    kind = how.pop("kind", 0)
    limits = {"memory": 1 << 24, "records": 0, "max_record_size": 1 << 20, "batch_size": 1 << 20} | how
    accumulator = Accumulator(**limits, partitioner=kind)
    accumulator.set_topic("t", [0] * partitions)
    return accumulator, RecordSender(accumulator, **sender)


def rows(accumulator: Accumulator) -> list[Row]:
    """(partition, timestamp, key, value, headers) of everything that is queued, in the order of the batches."""
    found = []
    for topic, partition, batch in deliver(accumulator):
        assert topic == "t"
        found += [(partition, r.timestamp, r.key, r.value, r.headers) for r in read_records(batch)]
    return found


def values(accumulator: Accumulator) -> list[bytes | None]:
    return [row[3] for row in rows(accumulator)]


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


fields = st.none() | st.binary(max_size=300)
records = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 1 << 62),
        fields,
        fields,
        st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), fields), max_size=3),
    ),
    max_size=60,
)


@given(records, st.sampled_from([100, 1000, 1 << 20]))
def test_what_is_sent_stands_in_the_batches(sent: list[Row], batch_size: int) -> None:
    accumulator, sender = made(3, batch_size=batch_size)
    for partition, timestamp, key, value, headers in sent:
        sender.send_nowait("t", value, key, headers, partition, timestamp)
    expected = [[(p, t, k, v, tuple(h)) for p, t, k, v, h in sent if p == partition] for partition in range(3)]
    found = rows(accumulator)
    assert [[row for row in found if row[0] == partition] for partition in range(3)] == expected


def test_batches_end_where_they_are_full_and_a_larger_record_has_its_own() -> None:
    accumulator, sender = made(batch_size=300)
    for size in (100, 100, 500, 100):
        sender.send_nowait("t", b"x" * size)
    batches = [batch for _, _, batch in deliver(accumulator)]
    assert [[len(r.value or b"") for r in read_records(b)] for b in batches] == [
        [100, 100],
        [500],
        [100],
    ]
    assert all(len(batch) <= 300 for batch in batches if len(batch) < 500)


def test_a_timestamp_that_is_not_given_is_now() -> None:
    accumulator, sender = made()
    before = time.time_ns() // 1_000_000
    sender.send_nowait("t", b"v")
    after = time.time_ns() // 1_000_000
    assert before <= rows(accumulator)[0][1] <= after


def test_every_kind_of_bytes_is_taken() -> None:
    accumulator, sender = made()
    given: list[Any] = [b"a", "ä", bytearray(b"c"), memoryview(b"xdx")[1:2], None, b"", ""]
    for value in given:
        sender.send_nowait("t", value, headers={"h": "é"})
    assert values(accumulator) == [b"a", "ä".encode(), b"c", b"d", None, b"", b""]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"value": 5}, TypeError, "value must be bytes.*not int"),
        ({"key": 1.5}, TypeError, "key must be bytes.*not float"),
        ({"value": memoryview(b"abcd")[::2]}, BufferError, "contiguous"),
        ({"value": "\ud800"}, UnicodeEncodeError, "surrogates"),
        ({"headers": [("a", 5)]}, TypeError, "value of a header"),
        ({"headers": [(b"a", b"")]}, TypeError, "name of a header must be str, not bytes"),
        ({"headers": ["ab"]}, TypeError, "pairs"),
        ({"partition": 1}, ValueError, "partitions 0 to 0, not 1"),
        ({"partition": -1}, ValueError, "out of range"),
        ({"partition": "0"}, TypeError, "partition must be an int"),
        ({"timestamp": -5}, ValueError, "negative"),
        ({"timestamp": 1.5}, TypeError, "timestamp must be an int"),
        ({"value": b"x" * (1 << 20)}, ValueError, "max.request.size"),
    ],
)
def test_a_wrong_record_is_refused_at_the_call(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    accumulator, sender = made()
    for method in (sender.send_nowait, sender.send):
        with pytest.raises(error, match=says):
            method("t", **arguments)
    assert rows(accumulator) == []


def test_a_topic_nobody_knows_is_asked_for() -> None:
    accumulator, sender = made()

    class Asking(RecordSender):
        def await_topic(self, topic: str) -> None:
            self.accumulator.set_topic(topic, [0])

    Asking(accumulator).send_nowait("other", b"v")
    assert [topic for topic, _, _ in deliver(accumulator)] == ["other"]
    with pytest.raises(KeyError):
        sender.send_nowait("a third", b"v")


def test_a_full_queue_refuses_at_once_or_after_the_time_it_was_given() -> None:
    for how in ({"memory": 2000}, {"records": 5}):
        for block_ms in (0, 30):
            accumulator, sender = made(block_ms=block_ms, **how)
            with pytest.raises(BufferError, match="no room"):
                for _ in range(20):
                    sender.send_nowait("t", b"x" * 300)
            taken = len(rows(accumulator))
            assert taken in (5, 6)
            assert accumulator.bytes_used == accumulator.record_count == 0
            sender.send_nowait("t", b"x")


def test_who_waits_for_room_goes_on_when_there_is_some() -> None:
    accumulator, sender = made(records=10, block_ms=-1)
    done = threading.Thread(target=lambda: [sender.send_nowait("t", b"%d" % i) for i in range(1000)])
    done.start()
    found: list[bytes | None] = []
    until(lambda: bool(found.extend(values(accumulator))) or len(found) == 1000)
    done.join(SECONDS)
    assert found == [b"%d" % i for i in range(1000)]


def test_a_signal_interrupts_who_waits_for_room() -> None:
    _, sender = made(records=1, block_ms=-1)
    sender.send_nowait("t", b"1")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    accumulator, other = made()
    waiting = [
        lambda: sender.send_nowait("t", b"2"),
        sender.accumulator.flush,
        other.send("t", b"3").result,
    ]
    try:
        for wait in waiting:
            signaller = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
            signaller.start()
            with pytest.raises(KeyboardInterrupt):
                wait()
            signaller.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert accumulator.record_count == 1


def test_threads_keep_their_own_order() -> None:
    accumulator, sender = made(records=50, block_ms=-1, batch_size=500)
    threads = [
        threading.Thread(target=lambda n=n: [sender.send_nowait("t", b"%d" % i, b"%d" % n) for i in range(500)])  # type: ignore[misc]
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    found: list[Row] = []
    until(lambda: bool(found.extend(rows(accumulator))) or len(found) == 2000)
    for n in range(4):
        assert [row[3] for row in found if row[2] == b"%d" % n] == [b"%d" % i for i in range(500)]


def test_encoders_make_the_bytes() -> None:
    accumulator, sender = made(value_encoder=lambda value: str(value), key_encoder=lambda key: b"k%d" % key)
    sender.send_nowait("t", 5, 6)
    sender.send_many("t", [1, 2], keys=np.array([3, 4]))
    assert [row[2:4] for row in rows(accumulator)] == [(b"k6", b"5"), (b"k3", b"1"), (b"k4", b"2")]


def test_a_closed_producer_takes_nothing() -> None:
    accumulator, sender = made()
    accumulator.close()
    with pytest.raises(RuntimeError, match="closed"):
        sender.send_nowait("t", b"v")
    with pytest.raises(RuntimeError, match="closed"):
        sender.send_many("t", [b"v"])


# --- deliveries ---------------------------------------------------------------------------------------


def test_a_delivery_tells_where_the_record_is() -> None:
    accumulator, sender = made(2)
    sent = [sender.send("t", b"v", partition=i % 2, timestamp=i) for i in range(6)]
    assert [one.done() for one in sent] == [False] * 6
    assert [one.offset for one in sent] == [None] * 6
    with pytest.raises(TimeoutError):
        sent[0].result(timeout=0.01)
    deliver(accumulator, base_offset=100)
    assert [one.result(timeout=0).offset for one in sent] == [100, 100, 101, 101, 102, 102]
    assert [(one.topic, one.partition, one.timestamp) for one in sent] == [("t", i % 2, i) for i in range(6)]
    assert repr(sent[0]) == "<Delivery to t-0, offset 100>"


def test_callbacks_are_called_once_early_or_late() -> None:
    accumulator, sender = made()
    told: list[Delivery] = []
    first, second = sender.send("t", b"1"), sender.send("t", b"2")
    first.add_done_callback(told.append)
    second.add_done_callback(lambda _: 1 / 0)
    second.add_done_callback(told.append)
    assert told == []
    deliver(accumulator)
    assert told == [first, second]
    first.add_done_callback(told.append)
    assert told == [first, second, first]


def test_who_waits_for_a_delivery_is_woken() -> None:
    accumulator, sender = made()
    sent = sender.send("t", b"1")
    found: list[int | None] = []
    thread = threading.Thread(target=lambda: found.append(sent.result(SECONDS).offset))
    thread.start()
    deliver(accumulator, base_offset=7)
    thread.join(SECONDS)
    assert found == [7]


def test_what_a_producer_leaves_behind_fails() -> None:
    accumulator, sender = made()
    sent, many = sender.send("t", b"1"), sender.send_many("t", [b"1"])
    del accumulator, sender
    assert isinstance(sent.exception(0), UsageError)
    assert isinstance(many.exception(0), UsageError)


# --- columns ------------------------------------------------------------------------------------------

column = st.lists(st.none() | st.binary(max_size=200), max_size=300)


def forms(items: list[bytes | None]) -> dict[str, Any]:
    """Return a column in every form that is taken."""
    padded: list[bytes | None] = [b"first", None, *items, b"last"]
    objects = np.empty(len(items), object)
    objects[:] = items
    found = {
        "list": items,
        "tuple": tuple(items),
        "generator": iter(items),
        "objects": objects,
        "every second object": np.repeat(objects, 2)[::2],
        "binary": pa.array(items, pa.binary()),
        "large_binary": pa.array(items, pa.large_binary()),
        "slice": pa.array(padded, pa.binary())[2 : 2 + len(items)],
        "chunked": pa.chunked_array(
            [pa.array(items[: len(items) // 3], pa.binary()), pa.array(items[len(items) // 3 :], pa.binary())]
        ),
        "one chunk": pa.chunked_array([pa.array(items, pa.binary())]),
    }
    if None not in items:
        found["bytearrays"] = [bytearray(item or b"") for item in items]
        if items and len({len(item or b"") for item in items}) == 1 and items[0]:
            size = len(items[0])
            rows_of = np.frombuffer(b"".join(item or b"" for item in items), np.uint8).reshape(len(items), size)
            found["uint8"] = rows_of
            found["rows of more"] = np.hstack([rows_of, rows_of])[:, :size]
            found["fixed_size_binary"] = pa.array(items, pa.binary(size))
    return found


@given(column, st.sampled_from([200, 1 << 20]), st.data())
def test_columns_of_every_form_are_what_their_records_are_one_by_one(
    items: list[bytes | None], batch_size: int, data: st.DataObject
) -> None:
    size = {"min_size": len(items), "max_size": len(items)}
    keys = data.draw(st.none() | st.lists(st.none() | st.binary(max_size=5), **size))
    partitions = data.draw(st.none() | st.just(1) | st.lists(st.integers(0, 2), **size))
    expected = [
        (key, value, partitions[i] if isinstance(partitions, list) else partitions)
        for i, (key, value) in enumerate(zip(keys or [None] * len(items), items, strict=True))
    ]
    shapes = forms(items)
    key_shapes = forms(keys) if keys is not None else {"none": None}
    for shape, source in shapes.items():
        key_shape = data.draw(st.sampled_from(sorted(key_shapes)))
        key_source = iter(keys) if keys is not None and key_shape == "generator" else key_shapes[key_shape]
        if "chunk" in shape + key_shape and "generator" in (shape, key_shape):
            continue
        accumulator, sender = made(3, batch_size=batch_size, kind=3)
        many = sender.send_many("t", source, key_source, {"h": b"x"}, partitions, 5)
        assert len(many) == len(items)
        assert many.done() == (not items)
        found = rows(accumulator)
        assert many.result(0) == len(items)
        for partition in range(3):
            wanted = [(5, k, v, (("h", b"x"),)) for k, v, p in expected if (p if p is not None else -1) == partition]
            if partitions is not None:
                assert [row[1:] for row in found if row[0] == partition] == wanted, (shape, key_shape)
        assert sorted(map(repr, (row[1:4] for row in found))) == sorted(repr((5, k, v)) for k, v, _ in expected)


@given(
    st.lists(st.sampled_from([None, 0, 1, 60, 63, 64, 90, 100, 120, 200, 350]), min_size=20, max_size=80),
    st.fixed_dictionaries(
        {
            "batch_size": st.integers(100, 3000),
            "batch_records": st.sampled_from([1, 7, 1000]),
            "memory": st.integers(1000, 12000),
            "records": st.integers(0, 60),
            "max_record_size": st.integers(150, 450),
            "kind": st.integers(0, 6),
        }
    ),
    st.none() | st.just(0),
    st.just(7) | st.lists(st.integers(0, 200), min_size=80, max_size=80),
)
def test_a_column_makes_the_batches_that_its_records_make_one_by_one(
    sizes: list[int | None], how: dict[str, int], partition: int | None, times: Any
) -> None:
    """Up to the same record, where one is too large, or there is no room."""
    column = [None if size is None else bytes([number % 256]) * size for number, size in enumerate(sizes)]
    times_of = times if isinstance(times, list) else [times] * len(column)
    batches = []
    for as_column in (False, True):
        accumulator, sender = made(block_ms=0, **how)
        refused = None
        try:
            if as_column:
                sender.send_many(
                    "t",
                    pa.array(column, pa.binary()),
                    None,
                    None,
                    partition,
                    times[: len(column)] if isinstance(times, list) else times,
                )
            else:
                for value, timestamp in zip(column, times_of, strict=False):
                    sender.send_nowait("t", value, None, None, partition, timestamp)
        except (ValueError, BufferError) as error:
            refused = type(error)
        used = accumulator.bytes_used, accumulator.record_count
        batches.append((refused, used, deliver(accumulator), accumulator.bytes_used))
    assert batches[0] == batches[1]


@given(st.lists(st.integers(4, 200), max_size=80), st.integers(1, 600), st.integers(1, 80))
def test_records_of_a_column_change_their_partition_where_single_ones_do(
    sizes: list[int], sticky_bytes: int, at_once: int
) -> None:
    accumulator, sender = made(3, sticky_bytes=sticky_bytes)
    column = [number.to_bytes(4) + bytes(size - 4) for number, size in enumerate(sizes)]
    for first in range(0, len(column), at_once):
        sender.send_many("t", column[first : first + at_once], headers={"h": b"x"}, timestamps=1)
    places = dict(sorted((row[3], row[0]) for row in rows(accumulator)))
    assert list(places) == column
    may_change, used = set(), 0
    for number, size in enumerate(sizes):
        if used >= sticky_bytes:
            may_change.add(number)
            used = 0
        used += size - 1 + len(b"\2\2h\2x") + 6  # no key, and the headers as they are encoded
    chosen = list(places.values())
    changes = {number for number in range(1, len(chosen)) if chosen[number] != chosen[number - 1]}
    assert changes <= may_change


def test_fixed_width_strings_of_numpy() -> None:
    accumulator, sender = made()
    sender.send_many("t", np.array([b"abc", b"", b"a\0c", b"x" * 5]), keys=np.array(["ä", "b", "", "d"]))
    assert [row[2:4] for row in rows(accumulator)] == [
        ("ä".encode(), b"abc"),
        (b"b", b""),
        (b"", b"a\0c"),
        (b"d", b"xxxxx"),
    ]


def test_strings_of_arrow() -> None:
    accumulator, sender = made()
    for kind in (pa.string(), pa.large_string()):
        sender.send_many("t", pa.array(["ä", None, ""], kind))
        assert values(accumulator) == ["ä".encode(), None, b""]


@pytest.mark.parametrize(
    "partitions", [[0, 1, 1], np.array([0, 1, 1]), np.array([0, 1, 1], np.int8), pa.array([0, 1, 1], pa.int16())]
)
@pytest.mark.parametrize("times", [[5, 6, 7], np.arange(5, 8), pa.array([5, 6, 7], pa.timestamp("ms"))])
def test_integers_of_every_form(partitions: Any, times: Any) -> None:
    accumulator, sender = made(2)
    sender.send_many("t", [b"a", b"b", b"c"], partitions=partitions, timestamps=times)
    assert sorted(row[:2] for row in rows(accumulator)) == [(0, 5), (1, 6), (1, 7)]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"values": b"abc"}, TypeError, "values must be a list"),
        ({"values": "abc"}, TypeError, "values must be a list"),
        ({"values": None}, TypeError, "values must be a list"),
        ({"values": [b"a", 5]}, TypeError, "not int"),
        ({"values": np.arange(3)}, TypeError, "format 'l' and 1 dimensions"),
        ({"values": np.zeros((2, 4), np.uint8)[:, ::2]}, ValueError, "side by side"),
        ({"values": pa.array([1])}, TypeError, "Arrow array of int64"),
        ({"values": [b"a"], "keys": [b"1", b"2"]}, ValueError, "keys has 2 items for 1 values"),
        ({"values": [b"a"], "partitions": [0, 0]}, ValueError, "partitions has 2 items for 1 values"),
        ({"values": [b"a"], "partitions": [1]}, ValueError, "t has partitions 0 to 0, not 1"),
        ({"values": [b"a"], "partitions": [-1]}, ValueError, "partitions: -1 at 0 is negative"),
        ({"values": [b"a"], "partitions": 1}, ValueError, "partitions 0 to 0, not 1"),
        ({"values": [b"a"], "partitions": np.array([0.5])}, TypeError, "signed integers"),
        ({"values": [b"a"], "timestamps": [-1]}, ValueError, "timestamps: -1 at 0 is negative"),
        ({"values": [b"a"], "timestamps": pa.array([None], pa.int64())}, ValueError, "nulls"),
        ({"values": [b"x" * (1 << 20)]}, ValueError, "max.request.size"),
    ],
)
def test_wrong_columns_are_refused(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    _, sender = made()
    with pytest.raises(error, match=says):
        sender.send_many("t", **arguments)


def test_offsets_that_leave_their_data_are_refused() -> None:
    lying = pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.py_buffer(array.array("i", [0, 100, 3])), pa.py_buffer(b"abc")]
    )
    with pytest.raises(ValueError, match="offsets do not fit"):
        made()[1].send_many("t", lying)


def test_an_exception_in_the_middle_says_how_many_were_taken() -> None:
    accumulator, sender = made(records=200, block_ms=0)
    with pytest.raises(BufferError) as raised:
        sender.send_many("t", [b"%d" % i for i in range(300)])
    assert raised.value.__notes__ == ["200 records of this call were taken before"]
    assert values(accumulator) == [b"%d" % i for i in range(200)]


def test_columns_wait_for_room_too() -> None:
    accumulator, sender = made(records=10, block_ms=-1)
    items = [b"%d" % i for i in range(1000)]
    for source in (items, np.array(items), pa.array(items)):
        thread = threading.Thread(target=sender.send_many, args=("t", source))
        thread.start()
        found: list[bytes | None] = []
        until(lambda found=found: bool(found.extend(values(accumulator))) or len(found) == 1000)  # type: ignore[misc]
        thread.join(SECONDS)
        assert found == items
