"""Columns of a poll's records against the records themselves."""

import gc
import subprocess
import sys

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.client.consumer.batches import read_chunk
from kbroker._core.client.consumer.record import UnreadableRecords
from kbroker._core.client.consumer.records import Records
from kbroker._core.wire.columns import COLUMN_NAMES
from kbroker.protocol.compression import Codec, inflate
from kbroker.protocol.records import encode_batch
from tests.kit.models.consumer import Log, logs
from tests.kit.wire.batches import changed

pyarrow = pytest.importorskip("pyarrow")
numpy = pytest.importorskip("numpy")


def inflated(codec: int, data: memoryview, magic: int) -> bytes:
    return inflate(codec, data, 1 << 20, magic=magic)


def records_of(log: Log, position: int, limit: int) -> Records:
    whole = log.encode()
    chunks = [
        read_chunk("t", 3, whole, inflated, position=position),
        read_chunk("empty", 0, b"", inflated),
        read_chunk("u", 1, whole, inflated, aborted=log.aborted),
        read_chunk("t", 0, whole, inflated),
    ]
    return Records(chunks, limit)


def rows(records: Records) -> list[dict[str, object]]:
    return [
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": record.timestamp_type,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": content} for name, content in record.headers],
        }
        for record in records
    ]


cases = given(logs(max_batches=5), st.integers(0, 20), st.integers(0, 60), st.sets(st.sampled_from(COLUMN_NAMES)))


@cases
def test_arrow_has_what_the_records_have(log: Log, position: int, limit: int, wanted: set[str]) -> None:
    records = records_of(log, position, limit)
    batch = records.arrow()
    batch.validate(full=True)
    assert batch.schema.names == list(COLUMN_NAMES)
    found = batch.to_pylist()
    for row in found:
        row["timestamp"] = None
    expected = rows(records)
    assert batch.column("timestamp").cast(pyarrow.int64()).to_pylist() == [row["timestamp"] for row in expected]
    assert found == [row | {"timestamp": None} for row in expected]
    some = records.arrow(wanted)
    assert some.schema.names == [name for name in COLUMN_NAMES if name in wanted]
    for name in wanted:
        assert some.column(name).equals(batch.column(name))


@cases
def test_numpy_has_what_the_records_have(log: Log, position: int, limit: int, wanted: set[str]) -> None:
    records = records_of(log, position, limit)
    found, expected = records.numpy(), rows(records)
    for name in ("partition", "offset", "timestamp", "timestamp_type"):
        assert found[name].tolist() == [row[name] for row in expected]
    assert [found["topics"][index] for index in found["topic"]] == [row["topic"] for row in expected]
    for name in ("key", "value"):
        ends = found[f"{name}_offsets"]
        values = [found[name][ends[row] : ends[row + 1]].tobytes() for row in range(len(records))]
        assert [value if valid else None for value, valid in zip(values, found[f"{name}_valid"], strict=True)] == [
            row[name] for row in expected
        ]
    assert found["header_offsets"][-1] == len(found["header_key_valid"]) == sum(len(row["headers"]) for row in expected)  # type: ignore[misc,arg-type]
    starts = {"headers": "header_"}
    some = records.numpy(wanted)
    assert set(some) == {
        name
        for name in found
        if any(name.startswith(starts.get(column, column)) for column in wanted)
        and not (name.startswith("timestamp_type") and "timestamp_type" not in wanted)
        and not (name == "timestamp" and "timestamp" not in wanted)
    }


def fixed(values: list[bytes | None], codec: Codec = Codec.NONE) -> Records:
    return Records([read_chunk("t", 0, encode_batch([(1, None, value) for value in values], codec=codec), inflated)])


@pytest.mark.parametrize("codec", list(Codec))
def test_values_of_one_size_are_elements_of_a_type(codec: Codec) -> None:
    values = [number.to_bytes(8, "little") for number in (5, 2**40, 7)]
    found = fixed(list(values), codec).numpy(["value"], dtypes={"value": "<u8"})
    assert {name: array.tolist() for name, array in found.items()} == {"value": [5, 2**40, 7]}
    with pytest.raises(ValueError, match="not every value has the 4 bytes of int32"):
        fixed(list(values)).numpy(dtypes={"value": "i4"})


@pytest.mark.parametrize(
    "values", [[b"12345678", None], [b"12345678", b"1234567812345678", b""], [b"1234", b"123456789012"]]
)
def test_values_of_several_sizes_are_no_elements(values: list[bytes | None]) -> None:
    with pytest.raises(ValueError, match="not every value"):
        fixed(values).numpy(dtypes={"value": "<u8"})


def test_what_cannot_be_asked_for_is_named() -> None:
    records = fixed([b"v"])
    with pytest.raises(ValueError, match="no column 'vlaue': there are topic, partition"):
        records.arrow(["vlaue"])
    with pytest.raises(ValueError, match="only key and value"):
        records.numpy(dtypes={"offset": "i8"})
    with pytest.raises(ValueError, match="not asked for"):
        records.columns(["value"]).keys  # noqa: B018


def test_columns_outlive_the_records_and_are_read_only() -> None:
    records = fixed([b"v" * 50] * 3, Codec.ZSTD)
    found, batch = records.numpy(["value"]), records.arrow(["value"])
    del records
    assert found["value"].tobytes() == b"v" * 150
    assert batch.column("value").to_pylist() == [b"v" * 50] * 3
    with pytest.raises(ValueError, match="read-only"):
        found["value"][0] = 1


@pytest.mark.parametrize("way", ["arrow", "numpy"])
def test_columns_go_with_the_last_reference(way: str) -> None:
    """Batches of many megabytes do not wait for the garbage collector."""
    records, process = fixed([bytes(16 << 20)]), psutil.Process()
    getattr(records, way)()  # what a first call needs
    gc.disable()
    try:
        before = process.memory_info().rss
        for _ in range(8):
            getattr(records, way)()
        assert process.memory_info().rss - before < 64 << 20
    finally:
        gc.enable()


def test_a_damaged_batch_is_named_with_its_partition() -> None:
    data = encode_batch([(1, None, b"good")]) + changed(encode_batch([(1, None, b"v")], base_offset=1), 61, b"\x7f")
    with pytest.raises(UnreadableRecords, match="t-0: the records at offset 1"):
        Records([read_chunk("t", 0, data, inflated)]).arrow()


def test_who_lacks_pyarrow_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match="pyarrow is not installed: pip install pyarrow"):
        fixed([b"v"]).arrow()


def test_records_load_neither_numpy_nor_pyarrow() -> None:
    script = """if True:
        import sys
        from kbroker._core.client.consumer.records import Records
        Records().columns()
        print({*sys.modules} & {"numpy", "pyarrow"})
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
