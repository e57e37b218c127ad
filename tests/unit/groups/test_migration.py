"""A live group goes from the classic protocol to the newer one and back, and loses nothing on the way."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kbroker.errors import BadInput, ErrorCode
from kbroker.groups.migration import assignment_bytes, wanted_of
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.consumer_group_member import BeatAnswer
from kbroker.rules.group_member import JoinAnswer, Leaving
from tests.kit.parts.consumer_members import Topics, topic_id

from .conftest import Home, subscription

T = topic_id("t")
P0 = TopicPartition("t", 0)


def owning(*partitions: int, topics: tuple[str, ...] = ("t",)) -> bytes:
    """Return metadata of version 1: the partitions that a member of the cooperative protocol owns."""
    S = M.ConsumerProtocolSubscription
    owned = [S.TopicPartition(topic="t", partitions=list(partitions))] if partitions else []
    return struct.pack(">h", 1) + S(topics=list(topics), owned_partitions=owned).encode(1)


def assigned(answer_assignment: bytes) -> list[int]:
    read = M.ConsumerProtocolAssignment.decode_prefix(memoryview(answer_assignment)[2:], 0)[0]
    return sorted(p for topic in read.assigned_partitions for p in topic.partitions)


def form_classic(home: Home, **fields: Any) -> JoinAnswer:
    """Make a stable classic group of one member, which has all four partitions."""
    (joined,) = home.join(**fields)
    everything = assignment_bytes({T: range(4)}, subscription("t"), home.topics)
    home.sync("g", joined.generation, joined.member_id, {joined.member_id: everything}, fields.get("instance_id"))
    return joined


def rejoin(home: Home, member_id: str, *owned: int, **fields: Any) -> tuple[JoinAnswer, list[int]]:
    (joined,) = home.join(member_id=member_id, protocols={"range": owning(*owned)}, **fields)
    if joined.error:
        return joined, []
    (synced,) = home.sync("g", joined.generation, joined.member_id, instance_id=fields.get("instance_id"))
    assert synced.error is ErrorCode.NONE
    return joined, assigned(synced.assignment)


def kind(home: Home) -> str:
    return home.coordinator.list_groups()[1][0].kind


def upgraded(home: Home) -> str:
    """Make a group of a classic member, whose id it returns, and a newer one, `n`, with two partitions each."""
    classic = form_classic(home).member_id
    assert home.enter("n") == BeatAnswer(ErrorCode.NONE, None, "n", 2, 5000, {})
    assert home.coordinator.heartbeat("g", 1, classic, None) is ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoin(home, classic)[1] == [0, 1]
    assert home.beat("n", 2).assignment == {T: {2: 2, 3: 2}}
    return classic


def test_a_classic_group_becomes_a_newer_one_when_such_a_member_joins(home: Home) -> None:
    classic = upgraded(home)
    assert kind(home) == "consumer"
    assert home.coordinator.heartbeat("g", 2, classic, None) is ErrorCode.NONE
    described = home.coordinator.consumers.describe("g")
    assert (described.state, described.epoch) == ("Stable", 2)
    before = sorted(map(repr, described.members))
    home.restart()
    assert sorted(map(repr, home.coordinator.consumers.describe("g").members)) == before
    assert home.coordinator.heartbeat("g", 2, classic, None) is ErrorCode.NONE
    assert home.commit({P0: 5}, generation=2, member_id=classic)[0][0] is ErrorCode.NONE
    assert home.commit({P0: 5}, generation=3, member_id=classic)[0][0] is ErrorCode.ILLEGAL_GENERATION


def test_a_cooperative_member_keeps_what_it_may_and_joins_again_to_give_up_the_rest(home: Home) -> None:
    classic = form_classic(home).member_id
    home.enter("n")
    joined, having = rejoin(home, classic, 0, 1, 2, 3)
    assert (joined.generation, having) == (1, [0, 1]), "it stays in its generation until the others are given up"
    assert home.coordinator.heartbeat("g", 1, classic, None) is ErrorCode.REBALANCE_IN_PROGRESS
    assert home.beat("n", 2).assignment is None
    joined, having = rejoin(home, classic, 0, 1)
    assert (joined.generation, having) == (2, [0, 1])
    assert home.beat("n", 2).assignment == {T: {2: 2, 3: 2}}


def test_who_waits_in_the_classic_group_is_told_to_join_again(home: Home) -> None:
    classic = form_classic(home).member_id
    waiting = home.join(member_id="", client_id="other")
    assert waiting == []
    home.enter("n")
    assert [answer.error for answer in waiting] == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert classic in {m.member_id for m, _ in home.coordinator.consumers.describe("g").members}


def test_it_becomes_classic_again_when_the_last_newer_member_leaves(home: Home) -> None:
    classic = upgraded(home)
    home.commit({P0: 5}, generation=2, member_id=classic)
    home.beat("n", -1)
    assert kind(home) == "classic"
    assert home.coordinator.heartbeat("g", 2, classic, None) is ErrorCode.REBALANCE_IN_PROGRESS
    (joined,) = home.join(member_id=classic)
    assert (joined.error, joined.leader) == (ErrorCode.NONE, classic)
    home.restart()
    assert kind(home) == "classic"
    assert home.fetch("g", P0) == {"t-0": 5}


def test_it_becomes_classic_again_when_the_last_newer_member_is_not_heard_of(home: Home) -> None:
    classic = upgraded(home)
    for _ in range(10):
        home.advance(5_000)
        home.coordinator.heartbeat("g", home.coordinator.consumers.describe("g").epoch, classic, None)
    assert kind(home) == "classic"


def test_a_classic_member_that_does_not_join_or_sync_again_in_time_is_put_out(home: Home) -> None:
    classic = form_classic(home, rebalance_timeout_ms=3000).member_id
    home.enter("n")
    for _ in range(2):
        assert home.coordinator.heartbeat("g", 1, classic, None) is ErrorCode.REBALANCE_IN_PROGRESS
        home.advance(1500)
    assert [m.member_id for m, _ in home.coordinator.consumers.describe("g").members] == ["n"]
    (joined,) = home.join(member_id="", rebalance_timeout_ms=3000)
    home.advance(2999)
    assert len(home.coordinator.consumers.describe("g").members) == 2
    home.advance(1)
    assert len(home.coordinator.consumers.describe("g").members) == 1
    assert home.coordinator.heartbeat("g", joined.generation, joined.member_id, None) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_joins_a_newer_group(home: Home) -> None:
    home.enter("n")
    (sent_back,) = home.join(known_member_id_required=True)
    assert sent_back.error is ErrorCode.MEMBER_ID_REQUIRED
    joined, having = rejoin(home, sent_back.member_id)
    assert (joined.generation, joined.protocol_name, joined.leader, having) == (3, "range", "", [])
    home.beat("n", 2)
    home.beat("n", 2, owned={T: frozenset({0, 1})})
    assert home.coordinator.heartbeat("g", 3, joined.member_id, None) is ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoin(home, joined.member_id)[1] == [2, 3]
    assert home.coordinator.leave("g", [Leaving(joined.member_id), Leaving("x")]) == (
        ErrorCode.NONE,
        [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID],
    )
    assert home.beat("n", 3).assignment == {T: {0: 2, 1: 2, 2: 4, 3: 4}}


def test_a_classic_member_that_beats_as_the_newer_ones_do_is_one_of_them_from_then_on(home: Home) -> None:
    home.enter("n")
    here = {"client_host": "/h"}
    classic = home.join(**here)[0].member_id
    home.beat("n", 2)
    home.beat("n", 2, owned={T: frozenset({0, 1})})
    assert rejoin(home, classic, **here)[1] == [2, 3]
    assert home.beat(classic, 3) == BeatAnswer(ErrorCode.NONE, None, classic, 3, 5000, None)
    assert home.coordinator.heartbeat("g", 3, classic, None) is ErrorCode.UNKNOWN_MEMBER_ID


def test_what_classic_members_get_wrong_has_its_own_error(home: Home) -> None:
    classic = upgraded(home)
    coordinator = home.coordinator
    assert coordinator.heartbeat("g", 1, classic, None) is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.heartbeat("g", 2, "n", None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat("g", 2, classic, "i") is ErrorCode.UNKNOWN_MEMBER_ID
    assert home.sync("g", 1, classic)[0].error is ErrorCode.ILLEGAL_GENERATION
    assert home.sync("g", 2, "x")[0].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert home.join(protocols={"sticky": owning()})[0].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert home.join(protocol_type="connect")[0].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert home.join(protocols={"range": b"\0"})[0].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    home.topics = Topics(t=5)
    home.beat("n", 2)
    assert home.sync("g", 2, classic)[0].error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_takes_the_place_of_itself_in_the_other_protocol(home: Home) -> None:
    classic = form_classic(home, instance_id="i")
    home.enter("n")
    back = home.enter("i2", instance_id="i")
    assert (back.error, back.member_epoch) == (ErrorCode.NONE, 2)
    assert {m.member_id for m, _ in home.coordinator.consumers.describe("g").members} == {"n", "i2"}
    assert home.coordinator.heartbeat("g", 1, classic.member_id, "i") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_comes_back_as_a_classic_one_makes_the_group_classic_without_a_rebalance(
    home: Home,
) -> None:
    home.enter("n", instance_id="i")
    (back,) = home.join(instance_id="i", protocols={"range": owning()})
    assert (kind(home), back.generation, back.leader) == ("classic", 2, "")
    (synced,) = home.sync("g", 2, back.member_id, instance_id="i")
    assert assigned(synced.assignment) == [0, 1, 2, 3]
    assert home.coordinator.heartbeat("g", 2, back.member_id, "i") is ErrorCode.NONE
    assert home.beat("n", 2, instance_id="i").error is ErrorCode.GROUP_ID_NOT_FOUND


def test_with_another_subscription_there_is_a_rebalance(home: Home) -> None:
    home.topics = Topics(t=4, u=1)
    home.enter("n", instance_id="i")
    (back,) = home.join(instance_id="i", protocols={"range": subscription("u")})
    assert (kind(home), back.generation) == ("classic", 3)
    assert home.coordinator.heartbeat("g", 3, back.member_id, "i") is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("policy", "up", "down"), [("disabled", 0, 0), ("upgrade", 1, 0), ("downgrade", 0, 1), ("bidirectional", 1, 1)]
)
def test_the_policy_says_which_way_it_goes(policy: str, up: int, down: int) -> None:
    home = Home(migration_policy=policy)
    form_classic(home)
    assert home.enter("n").error is (ErrorCode.NONE if up else ErrorCode.GROUP_ID_NOT_FOUND)
    assert kind(home) == ("consumer" if up else "classic")
    mixed = Home(migration_policy=policy)
    mixed.enter("n")
    mixed.join()
    mixed.beat("n", -1)
    assert kind(mixed) == ("classic" if down else "consumer")


def test_a_group_that_is_none_of_consumers_is_not_upgraded(home: Home) -> None:
    home.join(protocol_type="connect", protocols={"p": b""})
    answer = home.enter("n")
    assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert "does not use the consumer embedded protocol" in (answer.message or "")
    other = Home()
    other.form(protocols={"range": b"\0"})
    assert "malformed" in (other.enter("n").message or "")


def test_an_upgrade_that_the_log_refuses_has_not_happened(home: Home) -> None:
    classic = form_classic(home)
    home.replica_of("g").refuse = ErrorCode.KAFKA_STORAGE_ERROR
    assert home.enter("n").error is ErrorCode.NOT_COORDINATOR
    home.replica_of("g").refuse = None
    assert kind(home) == "classic"
    assert home.coordinator.heartbeat("g", 1, classic.member_id, None) is ErrorCode.NONE
    assert home.enter("n").error is ErrorCode.NONE
    assert kind(home) == "consumer"


def test_a_downgrade_that_the_log_refuses_comes_later(home: Home) -> None:
    classic = upgraded(home)
    replica = home.replica_of("g")
    append = replica.append

    def once(*given: Any) -> None:
        append(*given)
        replica.refuse = ErrorCode.KAFKA_STORAGE_ERROR

    replica.append = once  # type: ignore[method-assign]
    home.beat("n", -1)
    replica.append, replica.refuse = append, None  # type: ignore[method-assign]
    assert kind(home) == "consumer"
    home.restart()
    assert home.coordinator.heartbeat("g", 2, classic, None) is ErrorCode.REBALANCE_IN_PROGRESS
    (joined,) = home.join(member_id=classic)
    assert kind(home) == "classic"
    assert home.coordinator.heartbeat("g", joined.generation, classic, None) is ErrorCode.REBALANCE_IN_PROGRESS
    assert home.join(member_id=classic)[0].leader == classic


def test_metadata_of_every_version_is_read() -> None:
    S = M.ConsumerProtocolSubscription
    for version in range(5):
        message = S(topics=["b", "a"], rack_id="r" if version >= 3 else None)
        data = struct.pack(">h", version) + message.encode(min(version, 3)) + b"whatever comes" * (version > 3)
        assert wanted_of(data, Topics()) == (("a", "b"), {}, message.rack_id)
    with pytest.raises(BadInput):
        wanted_of(b"\xff\xff", Topics())


@pytest.mark.parametrize(("assignor", "is_upgraded"), [("cooperative-sticky", True), ("my-own", False)])
def test_data_of_an_assignor_stops_an_upgrade_unless_it_is_of_no_more_use(
    home: Home, assignor: str, is_upgraded: bool
) -> None:
    (joined,) = home.join(protocols={assignor: subscription("t")})
    A = M.ConsumerProtocolAssignment
    partitions = [A.TopicPartition(topic="t", partitions=[0, 1, 2, 3])]
    assignment = b"\0\0" + A(assigned_partitions=partitions, user_data=b"note").encode(0)
    home.sync("g", joined.generation, joined.member_id, {joined.member_id: assignment})
    answer = home.enter("n")
    assert answer.error is (ErrorCode.NONE if is_upgraded else ErrorCode.GROUP_ID_NOT_FOUND)
    assert is_upgraded or "custom assignor" in (answer.message or "")
