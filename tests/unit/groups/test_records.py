"""Records of `__consumer_offsets`: the bytes of Apache Kafka 3.9, and whatever else may be on a disk."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import MalformedBytes
from kbroker.groups import records
from kbroker.groups.records import GroupKey, OffsetKey
from kbroker.model import TopicPartition
from kbroker.rules.group import Group
from kbroker.rules.group_member import Member
from kbroker.rules.group_offsets import CommittedOffset
from tests.kit.wire.parser_cases import feed

P = TopicPartition("topic", 7)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def group(**fields: object) -> Group:
    member = Member("m-1", "i", "client", "/10.0.0.1", 60_000, 45_000, {"range": b"SUB"}, b"ASSIGNED")
    other = Member("m-2", None, "client", "/10.0.0.2", 60_000, 45_000, {"range": b""})
    return Group.restore("g", "consumer", "range", 3, "m-2", [member, other])


def test_the_key_of_an_offset_has_version_1() -> None:
    expected = b"\0\1" + text("g") + text("topic") + b"\0\0\0\7"
    assert records.offset_key("g", P) == expected
    assert records.decode_key(expected) == OffsetKey("g", P)
    assert records.decode_key(b"\0\0" + expected[2:]) == OffsetKey("g", P), "version 0 reads the same"


def test_the_key_of_a_group_has_version_2() -> None:
    expected = b"\0\2" + text("g")
    assert records.group_key("g") == expected
    assert records.decode_key(expected) == GroupKey("g")


def test_an_offset_has_version_3() -> None:
    committed = CommittedOffset(5, 2, "meta", 1000, record_offset=9)
    expected = struct.pack(">hqi", 3, 5, 2) + text("meta") + struct.pack(">q", 1000)
    assert records.offset_value(committed) == expected
    assert records.decode_offset_value(expected, 9) == committed


def test_an_offset_with_a_retention_time_of_its_own_has_version_1_and_no_leader_epoch() -> None:
    committed = CommittedOffset(5, 2, "", 1000, 2000)
    expected = struct.pack(">hq", 1, 5) + text("") + struct.pack(">qq", 1000, 2000)
    assert records.offset_value(committed) == expected
    assert records.decode_offset_value(expected, -1) == committed._replace(leader_epoch=-1)


@pytest.mark.parametrize(
    ("value", "leader_epoch"),
    [
        (struct.pack(">hq", 0, 5) + text("m") + struct.pack(">q", 1000), -1),
        (struct.pack(">hq", 2, 5) + text("m") + struct.pack(">q", 1000), -1),
        (struct.pack(">hqi", 4, 5, 6) + b"\2m" + struct.pack(">q", 1000) + b"\0", 6),
    ],
)
def test_other_versions_of_an_offset_are_read(value: bytes, leader_epoch: int) -> None:
    assert records.decode_offset_value(value, 1) == CommittedOffset(5, leader_epoch, "m", 1000, -1, 1)


def test_a_group_has_version_3() -> None:
    assigned = {"m-1": b"ASSIGNED", "m-2": b""}
    expected = (
        b"\0\3" + text("consumer") + struct.pack(">i", 3) + text("range") + text("m-2") + struct.pack(">qi", 1234, 2)
        + text("m-1") + text("i") + text("client") + text("/10.0.0.1") + struct.pack(">ii", 60_000, 45_000)
        + struct.pack(">i", 3) + b"SUB" + struct.pack(">i", 8) + b"ASSIGNED"
        + text("m-2") + b"\xff\xff" + text("client") + text("/10.0.0.2") + struct.pack(">ii", 60_000, 45_000)
        + struct.pack(">ii", 0, 0)
    )  # fmt: skip
    assert records.group_value(group(), assigned, 1234) == expected
    value = records.decode_group_value(expected)
    assert value[:5] == ("consumer", "range", 3, "m-2", 1234)
    first, second = value.members
    assert (first.member_id, first.instance_id, first.client_host) == ("m-1", "i", "/10.0.0.1")
    assert (first.rebalance_timeout_ms, first.session_timeout_ms) == (60_000, 45_000)
    assert (first.protocols, first.assignment) == ({"range": b"SUB"}, b"ASSIGNED")
    assert (second.instance_id, second.assignment) == (None, b"")


def test_a_group_without_members_has_no_protocol_and_no_leader() -> None:
    empty = Group("g")
    empty.protocol_type, empty.generation = "consumer", 4
    expected = b"\0\3" + text("consumer") + struct.pack(">ihhqi", 4, -1, -1, 55, 0)
    assert records.group_value(empty, {}, 55) == expected
    assert records.decode_group_value(expected) == ("consumer", None, 4, None, 55, [])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_versions_of_a_group_are_read(version: int) -> None:
    value = struct.pack(">h", version) + text("consumer") + struct.pack(">i", 3) + text("range") + text("m")
    value += struct.pack(">q", 99) if version >= 2 else b""
    value += struct.pack(">i", 1) + text("m") + text("c") + text("/h")
    value += struct.pack(">i", 7000) if version >= 1 else b""
    value += struct.pack(">iii", 6000, 0, 0)
    read = records.decode_group_value(value)
    assert read.state_timestamp_ms == (99 if version >= 2 else -1)
    assert read.members[0].rebalance_timeout_ms == (7000 if version >= 1 else 6000)


@pytest.mark.parametrize("field", ["member_id", "instance_id"])
def test_a_group_cannot_have_two_members_of_the_same_id(field: str) -> None:
    twice = group()
    for member in twice.members.values():
        setattr(member, field, "same")
    with pytest.raises(MalformedBytes, match="two members"):
        records.decode_group_value(records.group_value(twice, {"m-1": b"", "m-2": b"", "same": b""}, 1))


def test_keys_of_other_kinds_are_not_ours() -> None:
    assert records.decode_key(b"\0\3" + text("g")) is None
    assert records.decode_key(b"\xff\xff") is None


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\5", b"\xff\xff"])
def test_values_of_unknown_versions_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBytes):
        records.decode_offset_value(data, 0)
    with pytest.raises(MalformedBytes):
        records.decode_group_value(data)


def test_whatever_is_on_the_disk_only_our_exceptions_come_out() -> None:
    assert feed(records.decode_key, records.offset_key("g", P), every_bit=True)
    assert feed(records.decode_key, records.group_key("g"), every_bit=True)
    offset = records.offset_value(CommittedOffset(5, 2, "meta", 1000))
    assert feed(lambda data: records.decode_offset_value(data, 0), offset, every_bit=True)
    members = records.group_value(group(), {"m-1": b"A", "m-2": b"B"}, 1)
    assert feed(records.decode_group_value, members, every_bit=True)


@given(
    st.text(max_size=20), st.text(max_size=20), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 2**31 - 1), st.text(max_size=50), st.integers(-1, 2**62),
)  # fmt: skip
def test_every_offset_comes_back_as_it_was(
    group_id: str, topic: str, partition_id: int, offset: int, leader_epoch: int, metadata: str, expiry: int
) -> None:
    partition = TopicPartition(topic, partition_id)
    assert records.decode_key(records.offset_key(group_id, partition)) == OffsetKey(group_id, partition)
    committed = CommittedOffset(offset, leader_epoch if expiry == -1 else -1, metadata, 17, expiry, 3)
    assert records.decode_offset_value(records.offset_value(committed), 3) == committed


@pytest.mark.parametrize(("size", "expected"), [(8191, True), (32_767, True), (32_768, False)])
def test_strings_fit_by_their_bytes(size: int, expected: bool) -> None:
    assert records.fits("x" * size) is expected
    assert records.fits("ü" * (size // 2 + size % 2)) is expected or size == 32_767
