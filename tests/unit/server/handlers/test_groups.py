"""The APIs of groups and offsets, every version of each, on a broker that a test has for itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kbroker.errors import ErrorCode
from kbroker.groups import records
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.protocol.records import read_records
from kbroker.rules.group_offsets import NO_EXPIRY
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient

TOPIC = "orders"
SUBSCRIPTION = b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff"


def versions(api_key: ApiKey, since: int = 0) -> range:
    return range(max(SERVED[api_key].min, since), SERVED[api_key].max + 1)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess({"offsets.topic.num.partitions": 3, "group.min.session.timeout.ms": 100}) as started:
        with WireClient("127.0.0.1", started.port) as client:
            create = M.CreateTopicsRequest(topics=[M.CreateTopicsRequest.CreatableTopic(
                name=TOPIC, num_partitions=2, replication_factor=1)])  # fmt: skip
            assert client.call(ApiKey.CREATE_TOPICS, 5, create).topics[0].error_code == 0
            find = M.FindCoordinatorRequest(key="any")
            assert client.call(ApiKey.FIND_COORDINATOR, 1, find).error_code == 0
        yield started


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:8]}"


def joining(group: str, member_id: str = "", **fields: Any) -> M.JoinGroupRequest:
    given = {
        "session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000, "protocol_type": "consumer",
        "protocols": [M.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)], **fields,
    }  # fmt: skip
    return M.JoinGroupRequest(group_id=group, member_id=member_id, **given)


def join(client: WireClient, group: str, version: int = 9, **fields: Any) -> Any:
    """Join as a client does: join again with the id that the first answer gives."""
    answer = client.call(ApiKey.JOIN_GROUP, version, joining(group, **fields))
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = client.call(ApiKey.JOIN_GROUP, version, joining(group, answer.member_id, **fields))
    return answer


def syncing(group: str, member_id: str, generation: int = 1, version: int = 5, **fields: Any) -> M.SyncGroupRequest:
    named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    assignment = M.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=b"assigned")
    return M.SyncGroupRequest(
        group_id=group, generation_id=generation, member_id=member_id, assignments=[assignment], **{**named, **fields}
    )


def form(client: WireClient, group: str, **fields: Any) -> str:
    """Make a stable group of one; return its member id."""
    member_id: str = join(client, group, **fields).member_id
    instance = fields.get("group_instance_id")
    assert client.call(ApiKey.SYNC_GROUP, 5, syncing(group, member_id, group_instance_id=instance)).error_code == 0
    return member_id


def committing(group: str, offsets: dict[tuple[str, int], int], **fields: Any) -> M.OffsetCommitRequest:
    R = M.OffsetCommitRequest
    topics: dict[str, list[Any]] = {}
    for (topic, partition_id), offset in offsets.items():
        partition = R.OffsetCommitRequestPartition(
            partition_index=partition_id, committed_offset=offset, committed_metadata=fields.pop("metadata", "m")
        )
        topics.setdefault(topic, []).append(partition)
    listed = [R.OffsetCommitRequestTopic(name=name, partitions=partitions) for name, partitions in topics.items()]
    return R(**{"group_id": group, "generation_id_or_member_epoch": -1, "topics": listed, **fields})


def commit(client: WireClient, group: str, offsets: dict[tuple[str, int], int], version: int = 9, **fields: Any) -> Any:
    answer = client.call(ApiKey.OFFSET_COMMIT, version, committing(group, offsets, **fields))
    return {(t.name, p.partition_index): ErrorCode(p.error_code) for t in answer.topics for p in t.partitions}


def fetch(client: WireClient, group: str, partitions: dict[str, list[int]] | None, version: int = 9) -> Any:
    R = M.OffsetFetchRequest
    if version >= 8:
        kind: Any = R.OffsetFetchRequestTopics
    else:
        kind = R.OffsetFetchRequestTopic
    listed = None
    if partitions is not None:
        listed = [kind(name=name, partition_indexes=indexes) for name, indexes in partitions.items()]
    if version >= 8:
        message = R(groups=[R.OffsetFetchRequestGroup(group_id=group, topics=listed)])
        answer = client.call(ApiKey.OFFSET_FETCH, version, message).groups[0]
    else:
        answer = client.call(ApiKey.OFFSET_FETCH, version, R(group_id=group, topics=listed))
    assert answer.error_code == 0
    return {(t.name, p.partition_index): (p.committed_offset, p.metadata) for t in answer.topics for p in t.partitions}


def old_offsets(client: WireClient, group: str, partitions: dict[str, list[int]]) -> list[tuple[object, ...]]:
    """Return what OffsetFetch 0 answers, in its order."""
    R = M.OffsetFetchRequest
    listed = [R.OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in partitions.items()]
    answer = client.call(ApiKey.OFFSET_FETCH, 0, R(group_id=group, topics=listed))
    return [
        (t.name, p.partition_index, p.committed_offset, p.metadata, p.error_code)
        for t in answer.topics
        for p in t.partitions
    ]


# --- the coordinator -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_the_coordinator_is_this_broker(broker: BrokerProcess, client: WireClient, version: int) -> None:
    if version < 4:
        (found,) = [client.call(ApiKey.FIND_COORDINATOR, version, M.FindCoordinatorRequest(key="g"))]
    else:
        message = M.FindCoordinatorRequest(coordinator_keys=["g", "h"])
        found, other = client.call(ApiKey.FIND_COORDINATOR, version, message).coordinators
        assert (found.key, other.key, other.error_code) == ("g", "h", 0)
    assert (found.error_code, found.host, found.port) == (0, "127.0.0.1", broker.port)


@pytest.mark.parametrize("key_type", [2, 77])
@pytest.mark.parametrize("version", [1, 6])
def test_coordinators_of_other_kinds_are_refused_for_good(client: WireClient, version: int, key_type: int) -> None:
    message = M.FindCoordinatorRequest(key_type=key_type)
    if version < 4:
        message.key = "g"
    else:
        message.coordinator_keys = ["g"]
    answer = client.call(ApiKey.FIND_COORDINATOR, version, message)
    found = answer if version < 4 else answer.coordinators[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.INVALID_REQUEST, -1, "", -1)
    assert "groups and transactions" in found.error_message


def test_why_keys_are_refused_is_said_once(client: WireClient) -> None:
    message = M.FindCoordinatorRequest(key_type=2, coordinator_keys=[""] * 1000)
    first, *others = client.call(ApiKey.FIND_COORDINATOR, 6, message).coordinators
    assert "groups and transactions" in first.error_message
    assert {(one.error_code, one.error_message) for one in others} == {(ErrorCode.INVALID_REQUEST, "")}


# --- the life of a member ------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_member_joins_syncs_lives_and_leaves(client: WireClient, group: str, version: int) -> None:
    joined = join(client, group, version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id != ""
    assert joined.member_id.startswith("wire-")
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, SUBSCRIPTION)]
    sync_version = min(version, 5)
    synced = client.call(ApiKey.SYNC_GROUP, sync_version, syncing(group, joined.member_id, version=sync_version))
    assert (synced.error_code, synced.assignment) == (0, b"assigned")
    assert synced.protocol_name == ("range" if version >= 5 else None)
    beat = M.HeartbeatRequest(group_id=group, generation_id=1, member_id=joined.member_id)
    assert client.call(ApiKey.HEARTBEAT, min(version, 4), beat).error_code == 0
    leave_version = min(version, 5)
    if leave_version < 3:
        leave = M.LeaveGroupRequest(group_id=group, member_id=joined.member_id)
    else:
        leave = M.LeaveGroupRequest(
            group_id=group, members=[M.LeaveGroupRequest.MemberIdentity(member_id=joined.member_id)]
        )
    left = client.call(ApiKey.LEAVE_GROUP, leave_version, leave)
    assert (left.error_code, [m.error_code for m in left.members]) == (0, [0] if leave_version >= 3 else [])
    assert client.call(ApiKey.HEARTBEAT, 0, beat).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_join_that_is_refused_has_nothing_in_it(client: WireClient, group: str, version: int) -> None:
    answer = client.call(ApiKey.JOIN_GROUP, version, joining(group, "stranger"))
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "stranger")
    assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
    assert answer.protocol_name == (None if version >= 7 else "")


def test_version_0_has_one_timeout_for_both(client: WireClient, group: str) -> None:
    first = client.call(ApiKey.JOIN_GROUP, 0, joining(group, session_timeout_ms=300, rebalance_timeout_ms=-1))
    assert first.generation_id == 1
    with WireClient("127.0.0.1", client.socket.getpeername()[1]) as newcomer:
        # The first one does not come back, so the second has the group after the first one's 300 ms.
        second = newcomer.call(ApiKey.JOIN_GROUP, 0, joining(group, session_timeout_ms=300, rebalance_timeout_ms=-1))
        assert (second.generation_id, second.leader) == (2, second.member_id)


def test_a_sync_of_version_5_names_its_protocol(client: WireClient, group: str) -> None:
    member_id = join(client, group).member_id
    message = syncing(group, member_id, protocol_type=None, protocol_name=None)
    assert client.call(ApiKey.SYNC_GROUP, 5, message).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_leader_that_comes_back_is_told_to_skip_the_assignment(client: WireClient, group: str) -> None:
    old = form(client, group, group_instance_id="i")
    answer = client.call(ApiKey.JOIN_GROUP, 9, joining(group, group_instance_id="i"))
    assert (answer.error_code, answer.skip_assignment, len(answer.members)) == (0, True, 1)
    assert answer.members[0].group_instance_id == "i"
    beat = M.HeartbeatRequest(group_id=group, generation_id=1, member_id=old, group_instance_id="i")
    assert client.call(ApiKey.HEARTBEAT, 4, beat).error_code == ErrorCode.FENCED_INSTANCE_ID
    older = client.call(ApiKey.JOIN_GROUP, 8, joining(group, group_instance_id="i"))
    assert (older.error_code, older.leader, older.members) == (0, answer.member_id, [])


def test_an_administrator_removes_a_static_member_by_its_instance_id(client: WireClient, group: str) -> None:
    member_id = form(client, group, group_instance_id="i")
    identity = M.LeaveGroupRequest.MemberIdentity
    message = M.LeaveGroupRequest(
        group_id=group,
        members=[identity(member_id="x"), identity(member_id=member_id, group_instance_id="other"),
                 identity(member_id="", group_instance_id="i", reason="maintenance")],
    )  # fmt: skip
    answer = client.call(ApiKey.LEAVE_GROUP, 5, message)
    found = [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members]
    assert found == [("x", None, 25), (member_id, "other", 25), ("", "i", 0)]


def test_a_member_that_waits_is_answered_when_the_other_comes(client: WireClient, group: str) -> None:
    first = form(client, group)
    with WireClient("127.0.0.1", client.socket.getpeername()[1]) as newcomer:
        given = newcomer.call(ApiKey.JOIN_GROUP, 9, joining(group)).member_id
        waiting = newcomer.send(ApiKey.JOIN_GROUP, 9, joining(group, given))
        beat = M.HeartbeatRequest(group_id=group, generation_id=1, member_id=first)
        while client.call(ApiKey.HEARTBEAT, 4, beat).error_code == 0:
            pass
        again = client.call(ApiKey.JOIN_GROUP, 9, joining(group, first))
        assert [m.member_id for m in again.members] == [first, given]
        joined = newcomer.receive(ApiKey.JOIN_GROUP, 9, waiting)
        assert (joined.generation_id, joined.leader, joined.members) == (2, first, [])


# --- offsets -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT, 1))
def test_offsets_are_committed_for_partitions_that_exist(client: WireClient, group: str, version: int) -> None:
    offsets = {(TOPIC, 0): 5, (TOPIC, 9): 1, ("nowhere", 0): 1, (TOPIC, -1): 1}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    expected = {(TOPIC, 0): ErrorCode.NONE, (TOPIC, 9): unknown, ("nowhere", 0): unknown, (TOPIC, -1): unknown}
    assert commit(client, group, offsets, version) == expected
    assert fetch(client, group, None) == {(TOPIC, 0): (5, "m")}


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH, 1))
def test_offsets_are_fetched_by_partition_or_all(client: WireClient, group: str, version: int) -> None:
    commit(client, group, {(TOPIC, 0): 5, (TOPIC, 1): 6})
    found = fetch(client, group, {TOPIC: [0, 7], "nowhere": [0]}, version)
    assert found == {(TOPIC, 0): (5, "m"), (TOPIC, 7): (-1, ""), ("nowhere", 0): (-1, "")}
    assert fetch(client, f"{group}-unknown", {TOPIC: [0]}, version) == {(TOPIC, 0): (-1, "")}
    if version >= 2:
        assert fetch(client, group, None, version) == {(TOPIC, 0): (5, "m"), (TOPIC, 1): (6, "m")}
        assert fetch(client, f"{group}-unknown", None, version) == {}


def test_offsets_of_version_0_are_others_and_have_no_metadata(client: WireClient, group: str) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    offsets = {(TOPIC, 0): 5, (TOPIC, 9): 1, ("nowhere", 0): 1, (TOPIC, -1): 1}
    expected = {(TOPIC, 0): ErrorCode.NONE, (TOPIC, 9): unknown, ("nowhere", 0): unknown, (TOPIC, -1): unknown}
    assert commit(client, group, offsets, 0) == expected
    commit(client, group, {(TOPIC, 1): 6}, 1)
    assert old_offsets(client, group, {TOPIC: [0, 1, 9, 0], "nowhere": [0]}) == [
        (TOPIC, 0, 5, "", 0), (TOPIC, 1, -1, "", unknown), (TOPIC, 9, -1, "", unknown),
        ("nowhere", 0, -1, "", unknown),
    ]  # fmt: skip
    assert fetch(client, group, None) == {(TOPIC, 1): (6, "m")}
    assert commit(client, group, {(TOPIC, 0): 7}, 0, metadata="x" * 4097) == {(TOPIC, 0): 12}
    assert commit(client, "", {(TOPIC, 0): 7}, 0) == {(TOPIC, 0): ErrorCode.INVALID_GROUP_ID}
    assert old_offsets(client, "", {TOPIC: [0]}) == [(TOPIC, 0, -1, "", ErrorCode.INVALID_GROUP_ID)]
    assert old_offsets(client, group, {TOPIC: [0]}) == [(TOPIC, 0, 5, "", 0)]


def test_version_0_stores_the_last_offset_of_a_partition_named_twice(client: WireClient, group: str) -> None:
    message = committing(group, {(TOPIC, 0): 5})
    entry = M.OffsetCommitRequest.OffsetCommitRequestPartition
    message.topics[0].partitions += [
        entry(partition_index=0, committed_offset=4, committed_metadata=""),
        entry(partition_index=0, committed_offset=9, committed_metadata="x" * 4097),
    ]
    answer = client.call(ApiKey.OFFSET_COMMIT, 0, message)
    assert [p.error_code for p in answer.topics[0].partitions] == [0, 0, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert old_offsets(client, group, {TOPIC: [0]}) == [(TOPIC, 0, 4, "", 0)]


def test_a_member_commits_with_version_0_whatever_its_generation(client: WireClient, group: str) -> None:
    form(client, group)
    assert commit(client, group, {(TOPIC, 0): 5}, 0) == {(TOPIC, 0): ErrorCode.NONE}
    assert commit(client, group, {(TOPIC, 0): 5}, 1) == {(TOPIC, 0): ErrorCode.UNKNOWN_MEMBER_ID}


def test_offsets_of_version_0_survive_a_restart() -> None:
    with BrokerProcess({}) as broker:
        with WireClient("127.0.0.1", broker.port) as client:
            topic = M.CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
            client.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[topic]))
            assert commit(client, "g", {(TOPIC, 0): 5}, 0) == {(TOPIC, 0): ErrorCode.NONE}
        broker.kill()
        broker.start()
        with WireClient("127.0.0.1", broker.port) as client:
            assert old_offsets(client, "g", {TOPIC: [0]}) == [(TOPIC, 0, 5, "", 0)]


def test_version_1_brings_the_times_of_its_commits(broker: BrokerProcess, client: WireClient, group: str) -> None:
    before_ms = int(time.time() * 1000)
    message = committing(group, {(TOPIC, 0): 5, (TOPIC, 1): 6})
    message.topics[0].partitions[0].commit_timestamp = 1234
    answer = client.call(ApiKey.OFFSET_COMMIT, 1, message)
    assert [p.error_code for p in answer.topics[0].partitions] == [0, 0]
    stored = {}
    for path in Path(broker.data).glob("__consumer_offsets-*/*.log"):
        for record in read_records(path.read_bytes()):
            key = records.decode_key(record.key or b"")
            if isinstance(key, records.OffsetKey) and key.group_id == group:
                stored[key.partition.partition_id] = records.decode_offset_value(record.value or b"", 0)
    assert (stored[0].offset, stored[0].commit_timestamp_ms) == (5, 1234)
    assert stored[1].offset == 6 and stored[1].commit_timestamp_ms >= before_ms
    assert stored[0].expire_timestamp_ms == stored[1].expire_timestamp_ms == NO_EXPIRY


def test_several_groups_are_fetched_at_once(client: WireClient, group: str) -> None:
    commit(client, group, {(TOPIC, 0): 5})
    R = M.OffsetFetchRequest
    wanted = [R.OffsetFetchRequestGroup(group_id=name, topics=None) for name in (group, "unknown", "")]
    answer = client.call(ApiKey.OFFSET_FETCH, 9, R(groups=wanted, require_stable=True))
    assert [(g.group_id, g.error_code, len(g.topics)) for g in answer.groups] == [
        (group, 0, 1),
        ("unknown", 0, 0),
        ("", 0, 0),
    ]
    assert client.call(ApiKey.OFFSET_FETCH, 9, R(groups=[])).groups == []


@pytest.mark.parametrize("version", [2, 4])
def test_a_retention_time_of_the_commit_makes_it_expire(client: WireClient, group: str, version: int) -> None:
    assert commit(client, group, {(TOPIC, 0): 5}, version, retention_time_ms=10**9) == {(TOPIC, 0): ErrorCode.NONE}
    assert fetch(client, group, None) == {(TOPIC, 0): (5, "m")}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"generation_id_or_member_epoch": 1, "member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id_or_member_epoch": 7, "member_id": "me"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": 1, "member_id": "me"}, ErrorCode.NONE),
    ],
)
def test_a_group_with_members_takes_commits_from_them_only(
    client: WireClient, group: str, fields: dict[str, Any], error: ErrorCode
) -> None:
    member_id = form(client, group)
    if fields.get("member_id") == "me":
        fields = {**fields, "member_id": member_id}
    assert commit(client, group, {(TOPIC, 0): 5}, **fields) == {(TOPIC, 0): error}


def test_metadata_too_long_is_refused(client: WireClient, group: str) -> None:
    assert commit(client, group, {(TOPIC, 0): 5}, metadata="x" * 4097) == {
        (TOPIC, 0): ErrorCode.OFFSET_METADATA_TOO_LARGE
    }


def test_offsets_are_deleted(client: WireClient, group: str) -> None:
    commit(client, group, {(TOPIC, 0): 5, (TOPIC, 1): 6})
    R = M.OffsetDeleteRequest
    partition = R.OffsetDeleteRequestPartition
    topics = [
        R.OffsetDeleteRequestTopic(name=TOPIC, partitions=[partition(partition_index=n) for n in (0, 9)]),
        R.OffsetDeleteRequestTopic(name="nowhere", partitions=[partition(partition_index=0)]),
    ]
    answer = client.call(ApiKey.OFFSET_DELETE, 0, R(group_id=group, topics=topics))
    found = {(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}
    assert (answer.error_code, found) == (0, {(TOPIC, 0): 0, (TOPIC, 9): 3, ("nowhere", 0): 3})
    assert fetch(client, group, None) == {(TOPIC, 1): (6, "m")}
    answer = client.call(ApiKey.OFFSET_DELETE, 0, R(group_id=f"{group}-unknown", topics=topics))
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


# --- administration ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_groups_are_described(client: WireClient, group: str, version: int) -> None:
    member_id = form(client, group, group_instance_id="i")
    message = M.DescribeGroupsRequest(groups=[group, f"{group}-unknown"])
    if version >= 3:
        message.include_authorized_operations = True
    described, unknown = client.call(ApiKey.DESCRIBE_GROUPS, version, message).groups
    found = (described.error_code, described.group_state, described.protocol_type, described.protocol_data)
    assert found == (0, "Stable", "consumer", "range")
    assert (unknown.error_code, unknown.group_state, unknown.members) == (0, "Dead", [])
    (member,) = described.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "wire", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (SUBSCRIPTION, b"assigned")
    assert member.group_instance_id == ("i" if version >= 4 else None)
    assert described.authorized_operations == (328 if version >= 3 else -(2**31))


def test_a_group_that_is_named_twice_is_described_and_fetched_once(client: WireClient, group: str) -> None:
    """Otherwise a small request could have an answer of any size."""
    commit(client, group, {(TOPIC, 0): 1})
    described = client.call(ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=[group, "other", group])).groups
    assert [each.group_id for each in described] == [group, "other"]
    R = M.OffsetFetchRequest
    partition = R.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    asked = [R.OffsetFetchRequestGroup(group_id=group, topics=topics) for topics in ([partition], None, None)]
    asked.append(R.OffsetFetchRequestGroup(group_id="other", topics=None))
    fetched = client.call(ApiKey.OFFSET_FETCH, 8, R(groups=asked)).groups
    assert [each.group_id for each in fetched] == [group, group, "other"], "once in part, once all of it"


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_groups_are_listed(client: WireClient, group: str, version: int) -> None:
    form(client, group)
    commit(client, f"{group}-simple", {(TOPIC, 0): 1})

    def listed(**filters: Any) -> dict[str, tuple[str, str, str]]:
        answer = client.call(ApiKey.LIST_GROUPS, version, M.ListGroupsRequest(**filters))
        assert answer.error_code == 0
        return {
            each.group_id: (each.protocol_type, each.group_state, each.group_type)
            for each in answer.groups
            if each.group_id.startswith(group)
        }

    kind = "classic" if version >= 5 else ""
    stable, simple = (("consumer", "Stable", kind), ("", "Empty", kind)) if version >= 4 else ("consumer", "")
    if version < 4:
        stable, simple = ("consumer", "", ""), ("", "", "")
    assert listed() == {group: stable, f"{group}-simple": simple}
    if version >= 4:
        assert listed(states_filter=["stable"]) == {group: stable}
        assert listed(states_filter=["Dead"]) == {}
    if version >= 5:
        assert len(listed(types_filter=["Classic"])) == 2
        assert listed(types_filter=["consumer"]) == {}


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_groups_are_deleted_when_nobody_is_in_them(client: WireClient, group: str, version: int) -> None:
    form(client, group)
    commit(client, f"{group}-simple", {(TOPIC, 0): 1})
    names = [group, f"{group}-simple", f"{group}-unknown", group]
    answer = client.call(ApiKey.DELETE_GROUPS, version, M.DeleteGroupsRequest(groups_names=names))
    found = {result.group_id: ErrorCode(result.error_code) for result in answer.results}
    expected = [ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert found == dict(zip(names[:3], expected, strict=True)) and len(answer.results) == 3
    assert fetch(client, f"{group}-simple", None) == {}


# --- the broker under it -------------------------------------------------------------------------------------
def test_members_and_offsets_survive_a_restart_and_a_kill(group: str) -> None:
    with BrokerProcess({"offsets.topic.num.partitions": 3}) as broker:
        with WireClient("127.0.0.1", broker.port) as client:
            create = M.CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
            client.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[create]))
            client.call(ApiKey.FIND_COORDINATOR, 1, M.FindCoordinatorRequest(key=group))
            member_id = form(client, group)
            mine = {"generation_id_or_member_epoch": 1, "member_id": member_id}
            assert commit(client, group, {(TOPIC, 0): 5}, **mine) == {(TOPIC, 0): ErrorCode.NONE}
        for end in (broker.stop, broker.kill):
            end()
            broker.start()
            with WireClient("127.0.0.1", broker.port) as client:
                message = M.DescribeGroupsRequest(groups=[group])
                while client.call(ApiKey.DESCRIBE_GROUPS, 5, message).groups[0].error_code:
                    pass  # being loaded
                assert fetch(client, group, None) == {(TOPIC, 0): (5, "m")}
                beat = M.HeartbeatRequest(group_id=group, generation_id=1, member_id=member_id)
                assert client.call(ApiKey.HEARTBEAT, 4, beat).error_code == 0


def test_a_deleted_topic_takes_its_offsets_along(client: WireClient, group: str) -> None:
    topic = f"short-lived-{group}"
    create = M.CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    client.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[create]))
    commit(client, group, {(topic, 0): 5, (TOPIC, 0): 6})
    client.call(ApiKey.DELETE_TOPICS, 5, M.DeleteTopicsRequest(topic_names=[topic], timeout_ms=5000))
    assert fetch(client, group, None) == {(TOPIC, 0): (6, "m")}
