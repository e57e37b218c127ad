"""Records of consumer groups (KIP-848): bytes that do not change, records of older brokers, and invalid records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import MalformedBytes
from kbroker.groups import consumer_records
from kbroker.groups.consumer_records import decode, record
from kbroker.protocol import messages as M
from kbroker.protocol.records import encode_batch
from kbroker.rules.consumer_group_member import (
    Change,
    ClassicGroupGone,
    ClassicMetadata,
    Current,
    CurrentChange,
    EpochChange,
    MemberState,
    PartitionMetadataChange,
    RegexChange,
    ResolvedRegex,
    Subscription,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
)
from tests.kit.parts.consumer_members import topic_id
from tests.kit.wire.parser_cases import feed

from .conftest import Home

T, U = topic_id("t"), topic_id("u")
CHANGES: list[Change] = [
    SubscriptionChange("m", Subscription("i", "r", "c", "/h", ("a", "b"), "x.*", 1000, "range")),
    SubscriptionChange("m", Subscription(None, None, "", "", (), "", -1, None, ClassicMetadata(6000, (("p", b"\0"),)))),
    CurrentChange("m", Current(3, 2, MemberState.UNREVOKED_PARTITIONS, {T: {0: 2, 1: 3}}, {U: {5: 1}})),
    CurrentChange("m", Current(-2, 2, MemberState.UNRELEASED_PARTITIONS)),
    TargetChange("m", {T: frozenset({0, 2}), U: frozenset({1})}),
    TargetEpochChange(7, 99),
    EpochChange(8, -5),
    RegexChange("x.*", ResolvedRegex(frozenset({"xa", "xb"}), 3, 4)),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_what_is_written_is_read_again(change: Change) -> None:
    key, value = record("g", change)
    assert value is not None
    assert decode(key, value) == ("g", change)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (SubscriptionChange("m", None), 5), (CurrentChange("m", None), 8), (TargetChange("m", None), 7),
        (TargetEpochChange(None), 6), (EpochChange(None), 3), (RegexChange("x", None), 16),
        (PartitionMetadataChange(False), 4), (ClassicGroupGone(), 2),
    ],
)  # fmt: skip
def test_what_is_no_more_is_a_key_without_a_value(change: Change, kind: int) -> None:
    key, value = record("g", change)
    assert (int.from_bytes(key[:2], "big"), value) == (kind, None)


def test_the_bytes_on_disk_do_not_change() -> None:
    key, value = record("g", EpochChange(2, 258))
    assert (key.hex(), (value or b"").hex()) == ("0003000167", "0000000000020100080000000000000102")
    key, value = record("g", CurrentChange("m", Current(3, 2, MemberState.STABLE, {T: {1: 2}})))
    assert key.hex() == "00080001670001" + b"m".hex()
    assert (value or b"").hex() == "000000000003000000020002" + T.hex() + "020000000101000502000000020100"


def test_partitions_without_epochs_count_from_the_epoch_that_their_member_is_in() -> None:
    V = M.ConsumerGroupCurrentMemberAssignmentValue
    value = V(
        member_epoch=4, previous_member_epoch=3, state=0,
        assigned_partitions=[V.TopicPartitions(topic_id=T, partitions=[1, 2])],
    )  # fmt: skip
    key, _ = record("g", CurrentChange("m", None))
    assert decode(key, b"\0\0" + value.encode(0)) == (
        "g",
        CurrentChange("m", Current(4, 3, MemberState.STABLE, {T: {1: 4, 2: 4}})),
    )


def test_a_state_that_a_later_broker_wrote_is_unknown() -> None:
    key, value = record("g", CurrentChange("m", Current(4, 3)))
    later = M.ConsumerGroupCurrentMemberAssignmentValue.decode((value or b"")[2:], 0)
    later.state = 9
    change = decode(key, b"\0\0" + later.encode(0))
    assert change == ("g", CurrentChange("m", Current(4, 3, MemberState.UNKNOWN)))


def test_epochs_that_do_not_fit_their_partitions_are_malformed() -> None:
    V = M.ConsumerGroupCurrentMemberAssignmentValue
    value = V(assigned_partitions=[V.TopicPartitions(topic_id=T, partitions=[1, 2], assignment_epochs=[1])])
    key, _ = record("g", CurrentChange("m", None))
    with pytest.raises(MalformedBytes):
        decode(key, b"\0\0" + value.encode(0))


def test_other_kinds_of_records_are_not_ours() -> None:
    assert decode(b"\0\1" + b"\0\1g\0\1t\0\0\0\0", b"") is None
    assert decode(b"\0\x0b" + b"\0\1g", b"\0\0") is None
    with pytest.raises(MalformedBytes):
        decode(b"\0", b"\0\0")
    with pytest.raises(MalformedBytes):
        decode(record("g", EpochChange(1))[0], b"\0\1\0\0\0\1\0")


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_only_our_error_comes_out_of_damaged_records(change: Change) -> None:
    key, value = record("g", change)
    feed(lambda data: decode(key, data), value or b"")
    feed(lambda data: decode(data, value or b""), key)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_only_our_error_comes_out_of_any_bytes(key: bytes, value: bytes) -> None:
    for kind in (3, 4, 5, 6, 7, 8, 16):
        try:
            decode(kind.to_bytes(2, "big") + key, b"\0\0" + value)
        except MalformedBytes:
            pass


def test_a_group_that_kafka_wrote_goes_on_in_its_next_epoch(home: Home) -> None:
    """Kafka's hash of the topics is another one, so the topics seem to have changed."""
    written: list[Change] = [
        SubscriptionChange("a", Subscription(None, None, "c", "/h", ("t",), "", 1000)),
        EpochChange(5, 1234567),
        TargetEpochChange(5, 1),
        TargetChange("a", {T: frozenset({0, 1, 2, 3})}),
        CurrentChange("a", Current(5, 4, MemberState.STABLE, {T: dict.fromkeys(range(4), 2)})),
    ]
    metadata_key = M.ConsumerGroupPartitionMetadataKey(group_id="g").encode(4)
    metadata = (b"\0\4" + metadata_key, b"\0\0" + M.ConsumerGroupPartitionMetadataValue().encode(0))
    replica = home.replica_of("g")
    replica.put(encode_batch([(0, *one) for one in [metadata, *(record("g", change) for change in written)]]))
    home.restart()
    answer = home.beat("a", 5)
    assert (answer.error, answer.member_epoch, answer.assignment) == (0, 6, None)
    assert home.beat("a", 6).member_epoch == 6
    assert (metadata[0], None) in replica.records(), "what 4.1 has no use for is deleted"
    assert consumer_records.EPOCH == 3
