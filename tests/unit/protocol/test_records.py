"""Record batches in Python: against the model, other people's implementations, and rubbish."""

import mmap
import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kio.records.readers import read_batch as read_kio_batch

from kbroker.errors import MalformedBytes
from kbroker.protocol import records
from kbroker.protocol.compression import Codec, InflatesTooLarge
from kbroker.protocol.records import BatchBuilder, ControlType, InvalidBatch, Record, encode_batch, read_batches
from tests.kit.models import record_batch as model
from tests.kit.wire import parser_cases
from tests.kit.wire.batches import encode_control_batch

optional_bytes = st.none() | st.binary(max_size=300)
names = st.text(max_size=20)
headers = st.lists(st.tuples(names, optional_bytes), max_size=3).map(tuple)
record_lists = st.lists(
    st.builds(Record, st.just(0), st.integers(0, 2**45) | st.just(-1), optional_bytes, optional_bytes, headers),
    max_size=8,
)


def in_order(found: list[Record], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + i, r.timestamp, r.key, r.value, r.headers) for i, r in enumerate(found)]


@given(
    record_lists,
    st.sampled_from(list(Codec)),
    st.integers(0, 2**62),
    st.booleans(),
    st.integers(-1, 2**40),
    st.integers(-1, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
)
def test_what_was_encoded_is_read_again(
    given_records: list[Record], codec: Codec, base: int, transactional: bool, pid: int, epoch: int, sequence: int
) -> None:
    data = encode_batch(
        given_records,
        base_offset=base,
        codec=codec,
        leader_epoch=7,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    (batch,) = read_batches(data)
    assert batch.records() == in_order(given_records, base)
    info = batch.info
    assert (info.base_offset, info.last_offset, info.record_count) == (
        base,
        base + len(given_records) - 1,
        len(given_records),
    )
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (pid, epoch, sequence)
    assert (info.codec, info.is_transactional, info.is_control, info.leader_epoch) == (codec, transactional, False, 7)
    assert info.base_timestamp == (given_records[0].timestamp if given_records else -1)
    assert info.max_timestamp == max((r.timestamp for r in given_records), default=-1)


@given(record_lists)
def test_bytes_are_those_of_the_model(given_records: list[Record]) -> None:
    base = given_records[0].timestamp if given_records else -1
    expected = model.encode_batch(
        model.Batch(
            tuple(
                model.Record(
                    i, r.timestamp - base, r.key, r.value, tuple((name.encode(), value) for name, value in r.headers)
                )
                for i, r in enumerate(given_records)
            ),
            base_timestamp=base,
        )
    )
    assert encode_batch(given_records) == expected


SAMPLE = [
    Record(0, 1_700_000_000_000, b"key", b"value", (("name", b"content"), ("empty", None))),
    Record(1, 1_700_000_000_005, None, b"v" * 5000),
    Record(2, 1_699_999_999_000, b"", None),
    Record(3, 1_700_000_000_001, b"k" * 100, b""),
]


# kafka-python has lz4 and zstd only with packages that nothing else here needs.
KAFKA_PYTHON_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY]


def read_by(batch: KafkaPythonBatch | AiokafkaBatch) -> list[Record]:
    assert batch.validate_crc()
    return [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]


@pytest.mark.parametrize("codec", list(Codec))
def test_aiokafka_reads_our_batches(codec: Codec) -> None:
    assert read_by(AiokafkaBatch(bytearray(encode_batch(SAMPLE, base_offset=50, codec=codec)))) == in_order(SAMPLE, 50)


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
def test_kafka_python_reads_our_batches(codec: Codec) -> None:
    assert read_by(KafkaPythonBatch(encode_batch(SAMPLE, base_offset=50, codec=codec))) == in_order(SAMPLE, 50)


@pytest.mark.parametrize(
    ("theirs", "codec"),
    [(AiokafkaBuilder, codec) for codec in Codec] + [(KafkaPythonBuilder, codec) for codec in KAFKA_PYTHON_CODECS],
)
def test_we_read_batches_of_others(theirs: type[KafkaPythonBuilder | AiokafkaBuilder], codec: Codec) -> None:
    builder = theirs(2, int(codec), True, 4000, 3, 17, 1 << 20)
    for record in SAMPLE:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    (batch,) = read_batches(bytes(builder.build()))
    assert batch.records() == SAMPLE
    assert (batch.info.producer_id, batch.info.producer_epoch, batch.info.base_sequence) == (4000, 3, 17)


def test_kio_reads_our_batches() -> None:
    data = encode_batch(SAMPLE, base_offset=50, producer_id=9, producer_epoch=1, base_sequence=4)
    theirs, size = read_kio_batch(data, 0)
    assert size == len(data)
    assert (theirs.base_offset, theirs.last_offset_delta, theirs.producer_id, theirs.base_sequence) == (50, 3, 9, 4)
    assert [(r.offset, r.key, r.value) for r in theirs.records] == [(50 + r.offset, r.key, r.value) for r in SAMPLE]


def test_records_of_a_log_append_time_batch_have_its_time() -> None:
    (batch,) = read_batches(encode_batch(SAMPLE, log_append_time=99))
    assert batch.info.is_log_append_time
    assert {record.timestamp for record in batch.records()} == {99}


def test_builders_tell_their_size_before_they_build() -> None:
    builder = BatchBuilder()
    assert (builder.count, builder.size, len(builder.build())) == (0, 61, 61)
    for count, record in enumerate(SAMPLE, 1):
        assert builder.append(record.timestamp, record.key, record.value, record.headers) == len(builder.build())
        assert (builder.count, builder.size) == (count, len(builder.build()))


def test_records_are_taken_from_any_buffer() -> None:
    data = encode_batch([(5, bytearray(b"k"), memoryview(b"0123")[1:3])])
    assert [(r.key, r.value) for r in records.read_records(data)] == [(b"k", b"12")]
    with pytest.raises(TypeError):
        encode_batch([(5, "text", None)])  # type: ignore[list-item]


def test_a_header_name_that_is_no_utf8_survives() -> None:
    batch = model.Batch((model.Record(0, 0, None, b"", ((b"\xff\xfe", b""),)),))
    (record,) = records.read_records(model.encode_batch(batch))
    assert encode_batch([record]) == model.encode_batch(batch)


def test_reading_goes_on_after_offsets_that_compaction_took_out() -> None:
    batch = model.Batch(
        (model.Record(1, 0, b"a", b""), model.Record(4, 0, b"b", b"")), base_offset=10, last_offset_delta=6
    )
    assert [r.offset for r in records.read_records(model.encode_batch(batch))] == [11, 14]


def test_records_before_an_offset_and_control_records_are_left_out() -> None:
    log = encode_batch(SAMPLE, base_offset=10) + encode_control_batch(
        ControlType.COMMIT, 7, producer_id=1, producer_epoch=0, coordinator_epoch=3, base_offset=14
    )
    log += encode_batch(SAMPLE[:1], base_offset=15)
    assert [r.offset for r in records.read_records(log, from_offset=12)] == [12, 13, 15]
    assert [r.offset for r in records.read_records(log[:-1])] == [10, 11, 12, 13]


def test_the_end_of_a_transaction_is_as_kafka_writes_it() -> None:
    data = encode_control_batch(
        ControlType.ABORT, 7, producer_id=1, producer_epoch=2, coordinator_epoch=3, base_offset=14
    )
    (batch,) = read_batches(data)
    assert batch.info.is_control
    assert batch.info.is_transactional
    assert batch.info.base_sequence == -1
    (record,) = batch.records()
    assert record == Record(14, 7, bytes(4), struct.pack(">hi", 0, 3))
    assert records.control_type(record) is ControlType.ABORT


def test_control_records_of_other_types_and_broken_ones() -> None:
    assert records.control_type(Record(0, 0, struct.pack(">hh", 0, 5), b"")) is None
    for key in (None, b"", b"\0\0\0", struct.pack(">hh", -1, 0)):
        with pytest.raises(MalformedBytes):
            records.control_type(Record(0, 0, key, b""))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
@pytest.mark.parametrize("verify", [False, True])
def test_mangled_batches_raise_only_errors_of_ours(codec: Codec, verify: bool) -> None:
    small = [SAMPLE[0], Record(1, 5, None, b"")]
    data = encode_batch(small, codec=codec)

    def read(data: bytes) -> None:
        for batch in read_batches(data, verify=verify):
            batch.records(limit=10_000)

    assert parser_cases.feed(read, data) > 0


def test_a_batch_that_inflates_to_too_much_is_refused() -> None:
    (batch,) = read_batches(encode_batch([(0, None, bytes(100_000))], codec=Codec.ZSTD))
    with pytest.raises(InflatesTooLarge):
        batch.records(limit=100_000)
    assert len(batch.records(limit=100_100)) == 1


def test_a_wrong_crc_is_noticed_unless_it_is_not_asked_for() -> None:
    data = bytearray(encode_batch([(0, None, b"value")]))
    data[-2] ^= 1
    with pytest.raises(InvalidBatch):
        list(read_batches(data))
    assert len(list(read_batches(data, verify=False))) == 1


def test_a_batch_of_more_than_two_gigabytes_is_not_begun() -> None:
    with mmap.mmap(-1, 2**31 - 50) as huge:  # address space only: refused before a byte of it is read
        builder = BatchBuilder()
        builder.append(0, None, b"first")
        size = builder.size
        with pytest.raises(OverflowError):
            builder.append(0, None, huge)
        assert (builder.size, builder.count) == (size, 1)


@pytest.mark.parametrize("codec", list(Codec))
def test_columns_are_read_from_every_codec_between_two_offsets(codec: Codec) -> None:
    log = b"".join(encode_batch(SAMPLE, base_offset=base, codec=codec) for base in (0, 4, 8))
    columns = records.read_columns(log, from_offset=2, to_offset=7)
    expected = [record for record in records.read_records(log) if 2 <= record.offset < 7]
    assert list(memoryview(columns.offsets)) == [2, 3, 4, 5, 6]
    assert [columns.values[row] for row in range(len(columns))] == [record.value for record in expected]
