"""Records of `__transaction_state`: Kafka's bytes, and what is made of damaged ones."""

from __future__ import annotations

import pytest

from kbroker.errors import MalformedBytes
from kbroker.model import TopicPartition
from kbroker.protocol.records import Batch, encode_batch, read_batches
from kbroker.rules.transaction import Transaction, TransactionState, Transit
from kbroker.transactions import records
from kbroker.transactions.replay import PartitionReplay

A0, A2 = TopicPartition("a", 0), TopicPartition("a", 2)

ONGOING = Transit(TransactionState.ONGOING, 0x1234, 7, 6, 60_000, frozenset([A2]), 0x18B_0000_0001, 0x18B_0000_0002)
ONGOING_BYTES = bytes.fromhex(
    "0001"  # version
    "0000000000001234 0007"  # producer id and epoch
    "0000ea60 01"  # timeout, status
    "02 02 61 02 00000002 00"  # partitions
    "0000018b00000002 0000018b00000001"  # last update, start
    "00"  # tags
)
OLD_ONGOING_BYTES = bytes.fromhex(
    "0000 0000000000001234 0007 0000ea60 01 00000001 0001 61 00000001 00000002 0000018b00000002 0000018b00000001"
)
EMPTY = Transit(TransactionState.EMPTY, 1, 0, -1, 1, frozenset(), -1, 5)
EMPTY_BYTES = bytes.fromhex("0001 0000000000000001 0000 00000001 00 00 0000000000000005 ffffffffffffffff 00")
OLD_EMPTY_BYTES = bytes.fromhex("0000 0000000000000001 0000 00000001 00 ffffffff 0000000000000005 ffffffffffffffff")
LAST = Transit(TransactionState.PREPARE_COMMIT, 5, 32767, 32766, 1, frozenset([A2]), 3, 4, 2, 9, 5)
LAST_BYTES = bytes.fromhex(
    "0001 0000000000000005 7fff 00000001 02 02 02 61 02 00000002 00 0000000000000004 0000000000000003"
    "03"  # tags
    "00 08 0000000000000005"  # the producer id before
    "01 08 0000000000000009"  # the next producer id
    "02 02 0002"  # what the client speaks
)


def test_a_key_is_written_as_kafka_writes_it() -> None:
    assert records.transaction_key("id-1") == bytes.fromhex("0000 0004") + b"id-1"
    assert records.decode_key(bytes.fromhex("0000 0004") + b"id-1") == "id-1"


@pytest.mark.parametrize(("transit", "data"), [(ONGOING, ONGOING_BYTES), (EMPTY, EMPTY_BYTES), (LAST, LAST_BYTES)])
def test_a_value_is_written_as_kafka_writes_it(transit: Transit, data: bytes) -> None:
    assert records.transaction_value(transit) == data


@pytest.mark.parametrize(
    ("transit", "data"),
    [
        (ONGOING, ONGOING_BYTES),
        (EMPTY, EMPTY_BYTES),
        (LAST, LAST_BYTES),
        (ONGOING, OLD_ONGOING_BYTES),
        (EMPTY, OLD_EMPTY_BYTES),
    ],
)
def test_a_value_is_read_back(transit: Transit, data: bytes) -> None:
    read = records.decode_value("id", data)
    assert (read.state, read.producer_id, read.producer_epoch) == transit[:3]
    assert (read.timeout_ms, read.partitions) == (transit.timeout_ms, transit.partitions)
    assert (read.start_ms, read.update_ms) == (transit.start_ms, transit.update_ms)
    assert (read.last_producer_id, read.next_producer_id) == (transit.previous_producer_id, transit.next_producer_id)
    assert (read.client_version, read.last_producer_epoch, read.pending) == (transit.client_version, -1, None)


def test_a_completed_transaction_has_no_partitions_but_a_list_of_them() -> None:
    complete = Transit(TransactionState.COMPLETE_COMMIT, 1, 0, -1, 1, frozenset(), 3, 5)
    assert records.transaction_value(complete)[17:18] == b"\1"


@pytest.mark.parametrize(("state", "number"), records.STATE_IDS.items())
def test_states_have_their_numbers(state: TransactionState, number: int) -> None:
    data = records.transaction_value(ONGOING._replace(state=state))
    assert data[16] == number
    assert records.decode_value("id", data).state is state


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\2" + ONGOING_BYTES[2:],
        b"\xff\xff" + ONGOING_BYTES[2:],
        *(ONGOING_BYTES[:size] for size in range(2, len(ONGOING_BYTES))),
        *(OLD_ONGOING_BYTES[:size] for size in range(2, len(OLD_ONGOING_BYTES))),
        OLD_ONGOING_BYTES + b"\0",
        ONGOING_BYTES + b"\0",
        *(ONGOING_BYTES[:16] + bytes([status]) + ONGOING_BYTES[17:] for status in (6, 7, 8, 255)),
    ],
)
def test_a_damaged_value_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedBytes):
        records.decode_value("id", data)


def test_a_key_of_a_later_version_is_left_alone() -> None:
    assert records.decode_key(b"\0\1whatever") is None
    with pytest.raises(MalformedBytes):
        records.decode_key(b"\0")
    with pytest.raises(MalformedBytes):
        records.decode_key(b"\0\0\0\5id")


def replayed(*batches: list[tuple[bytes | None, bytes | None]]) -> dict[str, Transaction]:
    replay = PartitionReplay("p")
    for at, of_batch in enumerate(batches):
        batch: Batch
        (batch,) = read_batches(encode_batch(((0, key, value) for key, value in of_batch), base_offset=at))
        replay.apply_batch(batch)
    return replay.transactions()


def test_the_newest_record_of_an_id_counts_and_a_tombstone_removes_it() -> None:
    key, other = records.transaction_key("id"), records.transaction_key("other")
    assert replayed([(key, EMPTY_BYTES), (other, EMPTY_BYTES)], [(key, ONGOING_BYTES)])["id"].state == "Ongoing"
    assert set(replayed([(key, ONGOING_BYTES), (other, EMPTY_BYTES)], [(key, None)])) == {"other"}
    assert set(replayed([(key, None), (key, EMPTY_BYTES)])) == {"id"}


def test_what_cannot_be_read_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = records.transaction_key("good"), records.transaction_key("bad")
    found = replayed([(bad, b"\0\0\1"), (None, EMPTY_BYTES), (b"\0\7new", b"x"), (good, EMPTY_BYTES), (b"\0", b"")])
    assert set(found) == {"good"}
    assert len(caplog.records) == 4
