"""Idempotent producers: duplicates, order, epochs, expiry, and their snapshots."""

from __future__ import annotations

import errno
import gc
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._core.base.build_info import BUILD
from kbroker._core.log.producer_table import ProducerTable
from kbroker._core.log.producers import limit_memory, memory
from kbroker._core.wire.crc import crc32c_of
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.fs import RealFileSystem
from kbroker.storage.options import LogOptions
from kbroker.storage.producer_state import (
    BATCH,
    COUNT,
    decode_snapshot,
    encode_snapshot,
    load_snapshot,
    older_batches,
    store_snapshot,
)
from tests.kit.crash.fs import CrashFileSystem
from tests.kit.logs.home import LogHome, batch_of
from tests.kit.models.producer import WRAP, ProducerModel
from tests.kit.wire.collisions import takes_as_long

LAST = WRAP - 1

appends = st.tuples(
    st.integers(0, 3),  # producer
    st.integers(0, 2),  # epoch
    st.sampled_from([0, 0, 1, 2, 3, 5, LAST - 2, LAST - 1, LAST]),  # sequence
    st.integers(1, 4),  # records
    st.integers(0, 100),  # timestamp
    st.booleans(),  # whether to follow on from the last batch instead
)


@settings(max_examples=300)
@given(st.lists(st.one_of(appends, st.integers(0, 100)), max_size=60))
def test_any_sequence_of_appends_is_judged_as_by_the_model(
    steps: list[tuple[int, int, int, int, int, bool] | int],
) -> None:
    table, model, offset = ProducerTable(), ProducerModel(), 0
    for step in steps:
        if isinstance(step, int):
            table.expire(step)
            model.expire(step)
            continue
        producer_id, epoch, sequence, count, timestamp, follows = step
        known = model.producers.get(producer_id)
        if follows and known is not None and known.batches:
            epoch, sequence = known.epoch, (known.batches[-1][1] + 1) % WRAP
        expected = model.check(producer_id, epoch, sequence, count)
        assert table.check(producer_id, epoch, sequence, count) == expected
        if expected == (ErrorCode.NONE, None):
            model.remember(producer_id, epoch, sequence, count, offset, timestamp)
            table.remember(producer_id, epoch, sequence, count, offset, timestamp)
            offset += count
    assert [entry[:2] for entry in table.export()] == sorted((at, known.epoch) for at, known in model.producers.items())


def test_the_five_last_batches_are_known_and_the_sixth_is_out_of_order() -> None:
    table = ProducerTable()
    for at in range(6):
        table.remember(1, 0, at * 10, 10, at * 10, at)
    assert table.check(1, 0, 10, 10) == (0, (10, 19, 1))
    assert table.check(1, 0, 50, 10) == (0, (50, 59, 5))
    assert table.check(1, 0, 0, 10) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None)
    assert table.check(1, 0, 10, 9) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None)


def test_sequences_wrap_to_zero() -> None:
    table = ProducerTable()
    table.remember(1, 0, LAST - 1, 2, 0, 0)
    assert table.check(1, 0, 0, 1) == (0, None)
    table.remember(1, 0, 0, 1, 2, 0)
    table.remember(1, 0, 1, 1, 3, 0)
    table.remember(1, 0, LAST, 3, 4, 0)
    assert table.check(1, 0, LAST, 3) == (0, (4, 6, 0))
    assert table.check(1, 0, 2, 1) == (0, None)


@pytest.mark.parametrize(
    "time", [lambda at: at, lambda at: 0, lambda at: LAST - at, lambda at: LAST << 31 if at == 99 else 0]
)
def test_memory_is_bounded_and_the_longest_silent_go_first(time: Callable[[int], int]) -> None:
    """The timestamps that producers send do not matter."""
    table = ProducerTable(maximum=100)
    for at in range(10_000):
        table.remember(at, 0, 0, 1, at, time(at))
    known = {at.producer_id for at in table.export()}
    assert 50 <= len(known) <= 100
    assert known == set(range(10_000 - len(known), 10_000))


def test_a_snapshot_has_the_bytes_that_kafka_writes() -> None:
    table = ProducerTable()
    table.remember(4000, 2, 7, 3, 100, 1_700_000_000_000)
    body = struct.pack(">iqhiqiqiq", 1, 4000, 2, 9, 102, 2, 1_700_000_000_000, -1, -1)
    data = struct.pack(">hI", 1, crc32c_of(body)) + body
    assert encode_snapshot(table) == data
    assert decode_snapshot(data).export() == [(4000, 2, -1, 1_700_000_000_000, -1, [(7, 9, 102, 2, 1_700_000_000_000)])]


def test_older_batches_stand_behind_what_kafka_reads() -> None:
    table = ProducerTable()
    for at in range(7):
        table.remember(1, 0, at * 2, 2, at * 2, at)
    table.remember(2, 0, 0, 1, 14, 7)
    data = encode_snapshot(table)
    assert struct.unpack_from(">i", data, 6) == (2,)
    assert len(data) == 10 + 2 * 46 + 4 + 4 * 36
    assert decode_snapshot(data).export() == table.export()


@pytest.mark.parametrize("count", [1, 3])
def test_a_damaged_snapshot_is_no_snapshot(tmp_path: Path, count: int) -> None:
    table = ProducerTable()
    for at in range(count):
        table.remember(1, 0, at, 1, at, 0)
    data = encode_snapshot(table)
    for at in range(len(data)):
        with pytest.raises(ValueError, match="snapshot"):
            decode_snapshot(data[:at])
        with pytest.raises(ValueError, match="snapshot"):
            decode_snapshot(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
    store_snapshot(RealFileSystem(), str(tmp_path), 5, table)
    path = tmp_path / "00000000000000000005.snapshot"
    path.write_bytes(path.read_bytes()[:-1])
    assert load_snapshot(RealFileSystem(), str(tmp_path), 5) is None


def idempotent(sequence: int, epoch: int = 0, count: int = 1) -> bytes:
    return batch_of([b"x"] * count, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


@pytest.mark.parametrize("restart", ["none", "clean", "unclean", "unclean without snapshots"])
def test_a_batch_sent_again_is_answered_with_its_first_offsets(tmp_path: Path, restart: str) -> None:
    home = LogHome(tmp_path, options=LogOptions(segment_bytes=500))
    log = home.create()
    for sequence in range(20):
        log.append(idempotent(sequence))
    if restart != "none":
        if restart == "clean":
            log.close()
        if restart == "unclean without snapshots":
            for path in home.log_path.glob("*.snapshot"):
                path.unlink()
        log = home.reopen(clean=restart == "clean")
    for sequence in range(15, 20):
        assert log.append(idempotent(sequence)).base_offset == sequence
    assert log.log_end_offset == 20
    with pytest.raises(ProtocolError) as refused:
        log.append(idempotent(21))
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    with pytest.raises(ProtocolError) as refused:
        log.append(idempotent(5, epoch=1))
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(idempotent(0, epoch=1)).base_offset == 20
    with pytest.raises(ProtocolError) as refused:
        log.append(idempotent(20))
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_what_was_sent_behind_a_batch_that_a_full_disk_refused_is_refused_by_the_disk_too(tmp_path: Path) -> None:
    """By OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka takes a new epoch, and sends again what may have been stored."""
    fs = CrashFileSystem(tmp_path)
    home = LogHome(tmp_path, fs=fs)
    log = home.create()
    log.append(idempotent(0))
    fs.fault = lambda call, what: errno.ENOSPC if call == "pwrite" else 0
    with pytest.raises(KbrokerError):
        log.append(idempotent(1))
    fs.fault = lambda call, what: 0
    for sequence in (2, 3):
        with pytest.raises(KbrokerError) as refused:
            log.append(idempotent(sequence))
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    for sequence in (1, 2, 3):
        assert log.append(idempotent(sequence)).base_offset == sequence
    home.abandon()


def test_an_expired_producer_may_go_on_with_any_sequence(tmp_path: Path) -> None:
    home = LogHome(tmp_path)
    log = home.create()
    log.append(idempotent(0))
    home.clock.now_ms += home.context.producer_id_expiration_ms + 1
    log.expire_producers()
    assert log.append(idempotent(9)).base_offset == 1


MEMORY_OF_PRODUCERS = """
import struct, sys
from pathlib import Path
from kbroker._core.wire.crc import crc32c_of
from tests.kit.logs.home import LogHome, batch_of
from tests.kit.parts.processors import resident_bytes

home = LogHome(Path(sys.argv[1]))
log = home.create()
batch = bytearray(batch_of([b"x"], producer_id=0, producer_epoch=0, base_sequence=0))

def write(first, count):
    for producer_id in range(first, first + count):
        struct.pack_into(">qqq", batch, 27, home.clock.now_ms, home.clock.now_ms, producer_id)
        struct.pack_into(">I", batch, 17, crc32c_of(batch[21:]))
        log.append(bytes(batch))
        home.clock.now_ms += 1

def measure():
    print(resident_bytes(), len(log.state.producers()[0]))

write(0, 1000)
measure()
for first in (100_000, 200_000):
    write(first, 100_000)
    measure()
    home.clock.now_ms += home.context.producer_id_expiration_ms
    log.expire_producers()
    measure()
"""


@pytest.mark.skipif(BUILD == "asan", reason="the sanitizer holds back what is freed")
def test_memory_of_a_hundred_thousand_producers_is_bounded_and_goes_when_they_expire(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_OF_PRODUCERS, str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    sizes, counts = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    few, full, emptied, full_again, emptied_again = sizes
    assert counts[0] == 1000 and counts[2] == counts[4] == 0
    assert 16_384 <= counts[1] <= 32_768 and 16_384 <= counts[3] <= 32_768
    # 65,536 slots of 192 bytes, up to three times while they are made anew.
    assert full - few < 40 << 20 and full_again - few < 40 << 20
    assert emptied - few < 2 << 20 and emptied_again - few < 2 << 20


@pytest.fixture
def little_memory() -> Iterator[int]:
    """Limit the memory of all tables together to so many bytes more than now."""
    gc.collect()  # what other tests have left would go meanwhile
    more = 1 << 20
    limit_memory(memory() + more)
    yield more
    limit_memory(256 << 20)


@pytest.mark.parametrize("from_snapshots", [False, True])
def test_producers_of_all_partitions_together_take_bounded_memory_and_the_last_of_each_stay(
    little_memory: int, from_snapshots: bool
) -> None:
    before = memory()
    tables = [ProducerTable() for _ in range(50)]
    for producer_id in range(1000):
        for table in tables:
            assert table.check(producer_id, 0, 0, 1) == (0, None)
            if from_snapshots:
                table.restore(producer_id, 0, -1, 0, -1, [(0, 0, producer_id, 0, 0)])
            else:
                table.remember(producer_id, 0, 0, 1, producer_id, 0)
    small = 64 * 192
    assert little_memory - 2 * 1024 * 192 < memory() - before <= little_memory + len(tables) * small
    for table in tables:
        kept = [at.producer_id for at in table.export()]
        assert len(kept) >= 24 and kept == list(range(1000 - len(kept), 1000))
        assert table.check(999, 0, 0, 1) == (0, (999, 999, 0)), "it is known still"
        assert table.check(0, 0, 77, 1) == (0, None), "it may go on with any sequence"
    copies = [table.copy() for table in tables[:3]]
    del tables, table, copies
    assert memory() == before


def test_producers_in_transactions_stay_however_little_memory_there_is(little_memory: int) -> None:
    limit_memory(0)
    table = ProducerTable()
    for producer_id in range(300):
        table.remember(producer_id, 0, 0, 1, producer_id, 0, transactional=producer_id < 200)
    assert {at.producer_id for at in table.export()} >= {*range(200), 299}


def test_truncation_forgets_what_was_cut(tmp_path: Path) -> None:
    log = LogHome(tmp_path, options=LogOptions(segment_bytes=500)).create()
    for sequence in range(20):
        log.append(idempotent(sequence))
    log.truncate_to(12)
    assert log.append(idempotent(12)).base_offset == 12


def test_chosen_producer_ids_do_not_meet_in_one_place_of_the_table() -> None:
    """Fibonacci hashing without a secret would put all these ids into one place."""
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    chosen = [made for number in range(1 << 15) if (made := (number << 47 | number) * inverse % (1 << 64)) < 1 << 63]
    table = ProducerTable(len(chosen) + 1)
    for producer_id in chosen[:4096]:
        table.restore(producer_id, 0, -1, 0, -1, [])
    assert table.longest_search < 200


def test_ids_of_producers_cannot_be_chosen_so_that_a_snapshot_is_slow_to_read() -> None:
    def read(producer_ids: Sequence[int]) -> None:
        batches = b"".join(BATCH.pack(producer_id, 0, 0, 0, 0, 0) for producer_id in producer_ids)
        older_batches(COUNT.pack(len(producer_ids)) + batches)

    assert takes_as_long(read)
