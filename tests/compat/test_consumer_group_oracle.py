"""Apache Kafka 4.3 and kbroker are sent the same heartbeats (KIP-848): they answer the same, and store the same.

Differences on purpose are in docs/DEVIATIONS.md; the hash of the topics and times are not compared.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.compat.group_asker import (
    APPEND,
    DELETE,
    DESCRIBE,
    HEARTBEAT,
    SET,
    Asker,
    R,
    Transaction,
    offsets_told,
)
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.kafka.process import Kafka4InMemory
from tests.unit.server.handlers.test_groups import committing

SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.max.size": 3,
    "group.consumer.session.timeout.ms": 4000,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.heartbeat.interval.ms": 400,
    "group.consumer.min.heartbeat.interval.ms": 100,
}
TOPICS = {"t": 4, "u": 2, "six": 6}
Story = Callable[[Asker], None]
STORIES: dict[str, Story] = {}


def story(tell: Story) -> Story:
    STORIES[tell.__name__] = tell
    return tell


@story
def requests_that_are_wrong(a: Asker) -> None:
    for version in (0, 1):
        a.join("", version=1)
        a.beat("", 1, version)
        a.beat("", -1, version)
        a.beat("  ", 1, version)
        a.join("m", version=version, group="")
        a.join("m", version=version, instance_id="")
        a.join("m", version=version, rack_id=" ")
        a.join("m", version=version, rebalance_timeout_ms=-1)
        a.join("m", version=version, owned=None)
        a.join("m", version=version, owned={"t": [0]})
        a.join("m", version=version, subscribed_topic_names=None)
        a.beat("m", -2, version)
        a.beat("m", -3, version)
        a.join("m", version=version, server_assignor="sticky")
    a.join("m", subscribed_topic_regex="(")
    a.describe(a.group)


@story
def groups_that_are_not_there(a: Asker) -> None:
    a.beat("m", 1)
    a.beat("m", -1)
    a.beat("m", -2, instance_id="i")
    a.describe(a.group, "")
    message = committing(a.group, {("t", 0): 1}, generation_id_or_member_epoch=1, member_id="m")
    a.ask(ApiKey.OFFSET_COMMIT, 8, message)
    offsets_told(a, "m", 1)
    message = committing(a.group, {("t", 0): 1}, generation_id_or_member_epoch=-1)
    a.ask(ApiKey.OFFSET_COMMIT, 9, message)
    a.describe()
    a.beat("m", 1)


@story
def one_member(a: Asker) -> None:
    a.join("m")
    a.describe()
    a.beat("m")
    a.beat("m", owned={"t": range(4)})
    a.beat("m", owned={"t": range(4)}, rebalance_timeout_ms=1000, subscribed_topic_names=["t"])
    a.beat("m", subscribed_topic_names=["t", "u"])
    a.describe()
    a.beat("m", subscribed_topic_names=["missing"])
    a.describe()
    a.beat("m", owned={})
    a.describe()
    a.beat("m", 99)
    a.beat("m", 1)
    a.beat("x", 2)
    a.join("m")
    a.beat("m", -1)
    a.describe()
    a.beat("m", 3)
    a.join("m")
    a.describe()


@story
def two_members_and_a_third(a: Asker) -> None:
    a.join("a")
    a.join("b")
    a.describe()
    a.beat("b")
    a.beat("a")
    a.beat("a", owned={"t": range(4)})
    a.beat("a", owned={"t": [0, 1]})
    a.describe()
    a.beat("b")
    a.describe()
    a.join("c")
    for _ in range(3):
        for member, owned in (("a", [0, 1]), ("b", [2]), ("c", [])):
            a.beat(member, owned={"t": owned} if owned else {})
    a.describe()
    a.join("d")
    a.beat("b", -1)
    a.beat("a")
    a.beat("c")
    a.describe()


@story
def static_members(a: Asker) -> None:
    a.join("a", instance_id="i", rack_id="r", server_assignor="range")
    a.join("b", instance_id="j")
    a.beat("a")
    a.beat("a", owned={"t": [0, 1]}, instance_id="i")
    a.beat("b", instance_id="j")
    a.join("a2", instance_id="i")
    a.beat("a", -2, instance_id="i")
    a.describe()
    a.beat("a", instance_id="i")
    a.join("a2", instance_id="i")
    a.describe()
    a.beat("a", instance_id="i")
    a.beat("a", -1, instance_id="i")
    a.beat("x", -1, instance_id="k")
    a.beat("x", 3, instance_id="k")
    a.beat("b", -1, instance_id="j")
    a.beat("a2", instance_id="i")
    a.beat("a2", -2, instance_id="i")
    a.until(lambda: not a.members())
    a.describe()


@story
def the_epoch_before_is_taken_from_whoever_has_nothing_else(a: Asker) -> None:
    a.join("a")
    a.join("b")
    a.beat("a")
    a.beat("a", owned={"t": [0, 1]})
    a.beat("a", 2)
    a.beat("a", 2, owned={"t": [0, 2]})
    a.beat("a", 2, owned={"t": [0]})
    a.beat("a", 1, owned={"t": [0]})


@story
def sessions_end(a: Asker) -> None:
    a.join("a")
    a.join("b")

    def alive() -> bool:
        a.client.call(HEARTBEAT, 1, R(group_id=a.group, member_id="b", member_epoch=a.epochs["b"]))
        return "a" not in a.members()

    a.until(alive)
    alive()  # it has what a had, whether it was heard of meanwhile or not
    a.beat("a", 2)
    a.join("a")


@story
def partitions_are_not_given_up_in_time(a: Asker) -> None:
    a.join("a", rebalance_timeout_ms=600)
    a.join("b")
    a.beat("a")

    def both() -> bool:
        for member in ("a", "b"):
            a.client.call(HEARTBEAT, 1, R(group_id=a.group, member_id=member, member_epoch=a.epochs[member]))
        return "a" not in a.members()

    a.until(both)
    a.describe()


@story
def assignors(a: Asker) -> None:
    a.join("a", "t", "u", server_assignor="range")
    a.join("b", "t", "u", server_assignor="range")
    a.beat("a")
    a.beat("a", owned={"t": [0, 1], "u": [0]})
    a.beat("b")
    a.describe()
    a.beat("a", server_assignor="uniform")
    a.describe()
    a.beat("b", server_assignor="uniform")
    a.describe()


@story
def offsets_with_member_epochs(a: Asker) -> None:
    a.join("a")
    a.join("b")
    a.beat("a")
    a.beat("a", owned={"t": [0, 1]})
    a.beat("b")
    for member, epoch, partition in (
        ("a", 3, 0), ("a", 2, 0), ("a", 2, 2), ("b", 2, 2), ("b", 3, 2), ("a", 4, 0), ("x", 3, 0), ("", -1, 0),
        ("a", -1, 0), ("a", 0, 0),
    ):  # fmt: skip
        message = committing(a.group, {("t", partition): 7}, generation_id_or_member_epoch=epoch, member_id=member)
        a.ask(ApiKey.OFFSET_COMMIT, 9, message)
    message = committing(a.group, {("t", 0): 8}, generation_id_or_member_epoch=3, member_id="a")
    a.ask(ApiKey.OFFSET_COMMIT, 8, message)
    for member_id, epoch in (("a", 3), ("a", 2), ("a", 4), ("x", 3), (None, -1), ("", -1)):
        offsets_told(a, member_id, epoch)
    D = M.OffsetDeleteRequest
    part = D.OffsetDeleteRequestPartition(partition_index=0)
    topics = [D.OffsetDeleteRequestTopic(name=name, partitions=[part]) for name in ("t", "u")]
    a.ask(ApiKey.OFFSET_DELETE, 0, D(group_id=a.group, topics=topics))
    a.ask(ApiKey.DELETE_GROUPS, 2, M.DeleteGroupsRequest(groups_names=[a.group]))
    a.beat("a", -1)
    a.beat("b", -1)
    a.ask(ApiKey.OFFSET_COMMIT, 9, committing(a.group, {("t", 0): 9}))
    a.ask(ApiKey.DELETE_GROUPS, 2, M.DeleteGroupsRequest(groups_names=[a.group]))
    a.describe()


@story
def offsets_of_transactions_with_member_epochs(a: Asker) -> None:
    """Members commit with earlier and later epochs: one that has not had the partition since that epoch is a zombie."""
    a.join("a", instance_id="i")
    a.join("b")
    a.beat("a", instance_id="i")
    a.beat("a", instance_id="i", owned={"t": [0, 1]})
    a.beat("b")
    for commit in (False, True):
        transaction = Transaction(a)
        for version in (3, 4, 5):
            for member, epoch, partition in (
                ("a", 3, 0), ("a", 2, 1), ("a", 2, 2), ("b", 2, 2), ("b", 3, 2), ("a", 1, 0), ("a", 4, 0), ("a", 99, 0),
                ("x", 3, 0), ("", 3, 0), ("", -1, 3), ("a", -1, 0), ("a", 0, 0), ("a", -2, 0),
            ):  # fmt: skip
                transaction.commit(partition, epoch, member, version=version)
            transaction.commit(0, 3, "a", "i", version)
            transaction.commit(0, 3, "a", "other", version)
            transaction.commit(0, 3, "", "i", version)
        for stable in (True, False):
            offsets_told(a, "a", 3, 0, 1, 2, 3, stable=stable)
        transaction.end(commit)
        offsets_told(a, "a", 3, 0, 1, 2, 3, stable=True)
    a.beat("a", -1, instance_id="i")
    a.beat("b", -1)
    transaction = Transaction(a)
    for epoch, member in ((3, "a"), (3, ""), (-1, "a"), (-1, "")):
        transaction.commit(0, epoch, member)
    transaction.end(True)
    offsets_told(a, None, -1, 0, stable=True)


@story
def both_kinds_are_told_apart(a: Asker) -> None:
    a.join("a")
    groups = a.client.call(ApiKey.LIST_GROUPS, 5, M.ListGroupsRequest(types_filter=["Consumer"])).groups
    a.said.append([a.plain(group) for group in groups if group.group_id == a.group])
    groups = a.client.call(ApiKey.LIST_GROUPS, 5, M.ListGroupsRequest(types_filter=["classic"])).groups
    a.said.append([a.plain(group) for group in groups if group.group_id == a.group])
    a.ask(ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=[a.group]))
    message = M.HeartbeatRequest(group_id=a.group, generation_id=2, member_id="x")
    a.ask(ApiKey.HEARTBEAT, 4, message)


@story
def a_pattern(a: Asker) -> None:
    a.join("a", subscribed_topic_names=None, subscribed_topic_regex="u|v.*")

    def resolved() -> bool:
        answer = a.client.call(HEARTBEAT, 1, R(group_id=a.group, member_id="a", member_epoch=a.epochs["a"]))
        a.epochs["a"] = answer.member_epoch
        return answer.assignment is not None

    a.until(resolved)
    a.describe()
    a.join("b", subscribed_topic_names=["t"], subscribed_topic_regex="u|v.*")
    a.describe()
    a.beat("b", -1)
    a.beat("a", subscribed_topic_regex="", subscribed_topic_names=["t"], owned={"u": [0, 1]})
    a.describe()


def metadata(*owned: int, topic: str = "t") -> bytes:
    """Return the subscription of a classic consumer, version 1."""
    S = M.ConsumerProtocolSubscription
    partitions = [S.TopicPartition(topic=topic, partitions=list(owned))] if owned else []
    return b"\0\1" + S(topics=[topic], owned_partitions=partitions).encode(1)


class Classic:
    """A member that speaks the classic protocol."""

    def __init__(self, a: Asker, name: str, instance_id: str | None = None, topic: str = "t"):
        self.a, self.name, self.instance_id, self.topic = a, name, instance_id, topic
        self.member_id, self.generation = "", -1

    def join(self, *owned: int, **fields: Any) -> Any:
        J = M.JoinGroupRequest
        given: dict[str, Any] = {
            "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer",
            "protocols": [J.JoinGroupRequestProtocol(name="range", metadata=metadata(*owned, topic=self.topic))],
            **fields,
        }  # fmt: skip
        message = J(group_id=self.a.group, member_id=self.member_id, group_instance_id=self.instance_id, **given)
        answer = self.a.client.call(ApiKey.JOIN_GROUP, 9, message)
        if answer.member_id:
            self.member_id = answer.member_id
            self.a.named[answer.member_id] = f"<{self.name}>"
        self.a.said.append(self.a.plain(answer))
        if answer.error_code == 79:
            return self.join(*owned, **fields)
        if not answer.error_code:
            self.generation = answer.generation_id
        return answer

    def sync(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
        S = M.SyncGroupRequest
        listed = [
            S.SyncGroupRequestAssignment(member_id=member_id, assignment=of)
            for member_id, of in (assignments or {}).items()
        ]
        given = {"generation_id": self.generation, "protocol_type": "consumer", "protocol_name": "range", **fields}
        message = S(
            group_id=self.a.group, member_id=self.member_id, group_instance_id=self.instance_id, assignments=listed,
            **given,
        )  # fmt: skip
        return self.a.ask(ApiKey.SYNC_GROUP, 5, message)

    def beat(self, **fields: Any) -> Any:
        given = {"generation_id": self.generation, "member_id": self.member_id, **fields}
        message = M.HeartbeatRequest(group_id=self.a.group, group_instance_id=self.instance_id, **given)
        return self.a.ask(ApiKey.HEARTBEAT, 4, message)

    def leave(self) -> Any:
        L = M.LeaveGroupRequest
        identity = L.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        return self.a.ask(ApiKey.LEAVE_GROUP, 5, L(group_id=self.a.group, members=[identity]))


def all_of_t() -> bytes:
    A = M.ConsumerProtocolAssignment
    return b"\0\1" + A(assigned_partitions=[A.TopicPartition(topic="t", partitions=[0, 1, 2, 3])]).encode(1)


@story
def a_classic_group_is_upgraded_and_downgraded(a: Asker) -> None:
    old = Classic(a, "old")
    old.join()
    old.sync({old.member_id: all_of_t()})
    old.beat()
    a.join("new")
    a.describe()
    old.beat()
    old.sync()
    old.join(0, 1, 2, 3)
    old.sync()
    old.beat()
    a.beat("new")
    old.join(0, 1)
    old.sync()
    old.beat()
    a.beat("new")
    a.describe()
    old.beat(generation_id=1)
    old.beat(member_id="new")
    old.beat(member_id="nobody")
    old.sync(generation_id=1)
    old.sync(protocol_name="roundrobin")
    old.sync(protocol_type="connect")
    a.ask(
        ApiKey.OFFSET_COMMIT, 8,
        committing(a.group, {("t", 0): 7}, generation_id_or_member_epoch=2, member_id=old.member_id),
    )  # fmt: skip
    a.ask(
        ApiKey.OFFSET_COMMIT, 8,
        committing(a.group, {("t", 0): 7}, generation_id_or_member_epoch=3, member_id=old.member_id),
    )  # fmt: skip
    transaction = Transaction(a)
    for epoch in (2, 3, 4):
        transaction.commit(0, epoch, old.member_id)
    transaction.end(True)
    offsets_told(a, None, -1, stable=True)
    a.beat("new", -1)
    a.describe()
    old.beat(generation_id=3)
    old.beat()
    old.join()
    old.sync({old.member_id: all_of_t()})
    a.ask(ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=[a.group]))
    old.leave()
    a.join("new")
    a.describe()


@story
def classic_members_join_a_newer_group(a: Asker) -> None:
    # As many partitions as two and three members can share: who gets one more hangs on Kafka's order of random ids.
    a.join("new", "six")
    old, other = Classic(a, "old", topic="six"), Classic(a, "other", "i", "six")
    old.join(session_timeout_ms=1)
    old.join(protocol_type="connect")
    old.join(protocols=[])
    old.join()
    old.sync()
    other.join()
    other.sync()
    Classic(a, "late", topic="six").join()
    a.beat("new")
    a.beat("new", owned={"six": [0, 1]})
    a.describe()
    old.beat()
    other.beat()
    old.join()
    old.sync()
    other.join()
    other.sync()
    a.describe()
    again = Classic(a, "again", "i", "six")
    again.join()
    again.sync()
    other.beat()
    a.describe()
    again.leave()
    other.leave()
    old.leave()  # of two that are left, Kafka's order of ids says who gets which
    a.beat("new")
    a.describe()


@story
def a_static_member_changes_its_protocol(a: Asker) -> None:
    a.join("new", instance_id="i")
    a.join("two")
    old = Classic(a, "old", "i")
    old.join()
    old.sync()
    a.beat("new", instance_id="i")
    a.describe()
    a.join("newer", instance_id="i")
    old.beat()
    a.describe()


def told_of(a: Asker) -> None:
    answer = a.client.call(ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=[a.group]))
    answer.groups[0].members.sort(key=lambda member: a.named[member.member_id])
    a.said.append(a.plain(answer))


@story
def the_last_newer_member_comes_back_as_a_classic_one(a: Asker) -> None:
    a.join("new", instance_id="i")
    old = Classic(a, "old", "i")
    old.join()
    told_of(a)
    old.sync()
    old.beat()
    a.beat("new", instance_id="i")
    told_of(a)


@story
def the_last_newer_member_comes_back_as_a_classic_one_beside_another(a: Asker) -> None:
    a.join("new", instance_id="i")
    other = Classic(a, "other")
    other.join()
    other.sync()
    a.beat("new", instance_id="i")
    a.beat("new", instance_id="i", owned={"t": [0, 1]})
    other.beat()
    other.join()
    other.sync()
    old = Classic(a, "old", "i")
    old.join(0, 1)
    old.sync()
    old.beat()
    other.beat()
    told_of(a)


SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"


@story
def a_group_has_settings_of_its_own(a: Asker) -> None:
    a.configured()
    a.join("a")
    a.configure((INTERVAL, SET, "900"), (SESSION, SET, "1000"), check=True)
    a.configure((INTERVAL, SET, "900"), (SESSION, SET, "1000"))
    a.configured(heartbeat_interval_ms="900", session_timeout_ms="1000")
    message = R(group_id=a.group, member_id="a", member_epoch=2, topic_partitions=None)
    a.until(lambda: a.client.call(HEARTBEAT, 1, message).heartbeat_interval_ms == 900)
    a.beat("a", 2)
    a.until(lambda: not a.members())
    a.beat("a", 2)
    a.configure((INTERVAL, DELETE, None), (SESSION, DELETE, ""), (ASSIGNMENT, SET, "10000"), ("no.such", DELETE, None))
    a.configured(heartbeat_interval_ms="400", session_timeout_ms="4000", assignment_interval_ms="10000")
    a.join("b")
    a.join("c")
    a.describe()
    a.configure((ASSIGNMENT, DELETE, None))
    a.configured(assignment_interval_ms="0")
    a.beat("b")
    a.beat("c")


@story
def settings_that_a_group_cannot_have(a: Asker) -> None:
    for name, how, value in (
        ("no.such", SET, "1"), (SESSION, SET, "soon"), (SESSION, SET, ""), (SESSION, SET, "0"), (SESSION, SET, "499"),
        (SESSION, SET, "60001"), (SESSION, SET, "400"), (SESSION, SET, "99999999999"), (INTERVAL, SET, "99"),
        (INTERVAL, SET, "15001"), (INTERVAL, SET, "4000"), (ASSIGNMENT, SET, "-1"), (ASSIGNMENT, SET, "15001"),
        (SESSION, APPEND, "1"), ("no.such", APPEND, "1"), (SESSION, SET, None),
    ):  # fmt: skip
        a.configure((name, how, value))
    a.configure((SESSION, SET, "600"), (SESSION, SET, "700"))
    a.configure((SESSION, SET, "600"), (INTERVAL, SET, "600"))
    a.configure((SESSION, SET, "600"), group="")
    a.configs("")
    a.said.append(a.described)
    a.configured()


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[tuple[BrokerProcess, dict[str, bytes]], tuple[BrokerProcess, dict[str, bytes]]]]:
    with Kafka4InMemory(SETTINGS) as kafka, BrokerProcess(SETTINGS) as ours:
        yield (kafka, prepare(kafka)), (ours, prepare(ours))


def prepare(broker: BrokerProcess) -> dict[str, bytes]:
    """Make the topics that the stories are about, and return their ids by name.

    Groups are served when this returns, and the topic of transactions exists.
    """
    with WireClient("127.0.0.1", broker.port) as client:
        C = M.CreateTopicsRequest.CreatableTopic
        topics = [C(name=name, num_partitions=count, replication_factor=1) for name, count in TOPICS.items()]
        created = client.call(ApiKey.CREATE_TOPICS, 7, M.CreateTopicsRequest(topics=topics, timeout_ms=10_000))
        deadline = time.monotonic() + 30
        for kind in (0, 1):
            find = M.FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"])
            while client.call(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        ask = M.ConsumerGroupDescribeRequest(group_ids=["any"])
        while client.call(DESCRIBE, 0, ask).groups[0].error_code in (14, 15, 16):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return {one.name: bytes(one.topic_id) for one in created.topics}


TWO_STEPS = ("a_classic_group_is_upgraded_and_downgraded",)
"""Stories in which kbroker writes two batches, for a leaving member and the change of protocol, and Kafka one."""


ERRORS = {
    "ConsumerGroupHeartbeat": {
        "INVALID_REQUEST", "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "UNSUPPORTED_ASSIGNOR", "UNRELEASED_INSTANCE_ID",
        "FENCED_INSTANCE_ID", "GROUP_MAX_SIZE_REACHED", "INVALID_REGULAR_EXPRESSION", "GROUP_ID_NOT_FOUND",
    },
    "ConsumerGroupDescribe": {"GROUP_ID_NOT_FOUND", "INVALID_GROUP_ID"},
    "OffsetCommit": {"STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "UNSUPPORTED_VERSION"},
    "OffsetFetch": {"STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "UNSTABLE_OFFSET_COMMIT"},
    "TxnOffsetCommit": {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"},
}  # fmt: skip
"""The errors that Kafka gives in these stories, by API. Errors of loading or moving coordinators and of authorizers are
not among them.
"""
TOLD: dict[str, list[object]] = {}


@pytest.mark.parametrize("name", STORIES)
def test_both_brokers_say_and_store_the_same(name: str, brokers: Any) -> None:
    said: list[list[object]] = []
    stored = []
    for broker, ids in brokers:
        asker = Asker(broker, ids, f"g-{name}")
        STORIES[name](asker)
        said.append(asker.said)
        stored.append(asker.stored())
    TOLD[name] = said[0]
    compared = {"said": said} if name in TWO_STEPS else {"said": said, "stored": stored}
    for kind, (theirs, mine) in compared.items():
        for number, (one, other) in enumerate(zip_longest(theirs, mine)):
            assert other == one, f"{kind} {number}\n  Kafka   {one}\n  kbroker {other}"


def test_each_error_of_these_apis_was_given_by_kafka() -> None:
    if TOLD.keys() != STORIES.keys():
        pytest.skip("only some stories were told")
    for api, errors in ERRORS.items():
        answers = [text for told in TOLD.values() for text in map(str, told) if text.startswith(f"{api}Response")]
        codes = {int(code) for text in answers for code in re.findall(r"error_code=(\d+)", text)}
        assert {ErrorCode(code).name for code in codes} - {"NONE"} == errors, api
