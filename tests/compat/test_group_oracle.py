"""Apache Kafka 3.9 and kbroker are asked the same about groups and answer the same; each reads what the other stores.

Differences on purpose are in docs/GROUPS.md. Not compared are the very first FindCoordinator, and coordinators of
transactions and share groups.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.groups import records
from kbroker.groups.records import GroupKey, OffsetKey
from kbroker.model import GROUP_OFFSETS_TOPIC
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.protocol.records import encode_batch, read_records
from kbroker.rules.group import Group
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.kafka.java_program import java
from tests.kit.kafka.process import KafkaInMemory
from tests.kit.parts.replica import MemoryOffsetsTopic
from tests.unit.groups.conftest import Home
from tests.unit.server.handlers.test_groups import TOPIC, commit, committing, fetch, form, join, joining, syncing

SETTINGS = {"offsets.topic.num.partitions": 3, "group.max.size": 3}


def prepare(broker: BrokerProcess) -> None:
    """Make the topics that the questions are about."""
    create = M.CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
    with WireClient("127.0.0.1", broker.port) as client:
        client.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[create], timeout_ms=10_000))
        find = M.FindCoordinatorRequest(key="any")
        deadline = time.monotonic() + 30
        while client.call(ApiKey.FIND_COORDINATOR, 1, find).error_code and time.monotonic() < deadline:
            time.sleep(0.1)
        # Kafka loads its partitions one by one.
        while client.call(ApiKey.LIST_GROUPS, 4, M.ListGroupsRequest()).error_code and time.monotonic() < deadline:
            time.sleep(0.1)
        for name in "abcdefgh":
            describe = M.DescribeGroupsRequest(groups=[name])
            while client.call(ApiKey.DESCRIBE_GROUPS, 0, describe).groups[0].error_code and time.monotonic() < deadline:
                time.sleep(0.1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    with KafkaInMemory(SETTINGS) as kafka, BrokerProcess(SETTINGS) as ours:
        for broker in (kafka, ours):
            prepare(broker)
        yield kafka, ours


class Asker:
    """Asks one broker and keeps its answers, with names in the place of random ids."""

    def __init__(self, broker: BrokerProcess, group: str):
        self.broker = broker
        self.group = group
        self.said: list[object] = []
        self.ids: dict[str, str] = {}

    def ask(self, client: WireClient, api_key: ApiKey, version: int, message: M.Message) -> Any:
        answer = client.call(api_key, version, message)
        self.said.append((api_key.name, version, self.plain(answer)))
        return answer

    def name(self, member_id: str) -> str:
        """Give a member id its name in the comparison; return the id."""
        self.ids.setdefault(member_id, f"<member {len(self.ids)}>")
        return member_id

    def plain(self, answer: object) -> object:
        text = repr(answer)
        for member_id, name in self.ids.items():
            text = text.replace(member_id, name)
        return text.replace(f"port={self.broker.port}", "port=here").replace("node_id=0,", "node_id=1,")

    def client(self) -> WireClient:
        return WireClient("127.0.0.1", self.broker.port, timeout_s=20)


Story = Callable[[Asker], None]
STORIES: dict[str, Story] = {}


def story(tell: Story) -> Story:
    STORIES[tell.__name__] = tell
    return tell


def versions(api_key: ApiKey, lowest: int = 0) -> range:
    return range(max(SERVED[api_key].min, lowest), SERVED[api_key].max + 1)


@story
def joins_that_are_refused(a: Asker) -> None:
    with a.client() as client:
        for version in versions(ApiKey.JOIN_GROUP):
            for message in (
                joining(""),
                joining(a.group, "stranger"),
                joining(a.group, session_timeout_ms=1),
                joining(a.group, session_timeout_ms=2**31 - 1),
                joining(a.group, protocol_type=""),
                joining(a.group, protocols=[]),
            ):
                a.ask(client, ApiKey.JOIN_GROUP, version, message)


@story
def requests_about_groups_that_are_not_there(a: Asker) -> None:
    with a.client() as client:
        for group in ("", a.group):
            for version in versions(ApiKey.SYNC_GROUP):
                a.ask(client, ApiKey.SYNC_GROUP, version, syncing(group, "stranger", version=version))
            for version in versions(ApiKey.HEARTBEAT):
                message = M.HeartbeatRequest(group_id=group, generation_id=1, member_id="stranger")
                a.ask(client, ApiKey.HEARTBEAT, version, message)
            for version in versions(ApiKey.LEAVE_GROUP):
                a.ask(client, ApiKey.LEAVE_GROUP, version, leaving(group, "stranger", version))
            for version in versions(ApiKey.DESCRIBE_GROUPS):
                a.ask(client, ApiKey.DESCRIBE_GROUPS, version, M.DescribeGroupsRequest(groups=[group]))
            for version in versions(ApiKey.DELETE_GROUPS):
                a.ask(client, ApiKey.DELETE_GROUPS, version, M.DeleteGroupsRequest(groups_names=[group]))
            a.ask(client, ApiKey.OFFSET_DELETE, 0, deleting(group, {TOPIC: [0]}))
            a.ask(client, ApiKey.OFFSET_DELETE, 0, deleting(group, {"nowhere": [0]}))
            for version in versions(ApiKey.OFFSET_COMMIT, 1):
                message = committing(group, {(TOPIC, 0): 1}, generation_id_or_member_epoch=3, member_id="stranger")
                a.ask(client, ApiKey.OFFSET_COMMIT, version, message)


def leaving(group: str, member_id: str, version: int, instance_id: str | None = None) -> M.LeaveGroupRequest:
    if version < 3:
        return M.LeaveGroupRequest(group_id=group, member_id=member_id)
    identity = M.LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance_id)
    return M.LeaveGroupRequest(group_id=group, members=[identity])


def deleting(group: str, topics: dict[str, list[int]]) -> M.OffsetDeleteRequest:
    R = M.OffsetDeleteRequest
    listed = [
        R.OffsetDeleteRequestTopic(
            name=name, partitions=[R.OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
        )
        for name, numbers in topics.items()
    ]
    return R(group_id=group, topics=listed)


@story
def the_life_of_a_member(a: Asker) -> None:
    for version in versions(ApiKey.JOIN_GROUP):
        group = f"{a.group}-{version}"
        with a.client() as client:
            first = client.call(ApiKey.JOIN_GROUP, version, joining(group))
            a.name(first.member_id)
            a.said.append(a.plain(first))
            member_id = first.member_id
            if first.error_code:
                a.ask(client, ApiKey.JOIN_GROUP, version, joining(group, member_id))
            sync_version = min(version, 5)
            a.ask(client, ApiKey.OFFSET_COMMIT, 8, committing(group, {(TOPIC, 0): 1}, generation_id_or_member_epoch=1,
                                                              member_id=member_id))  # fmt: skip
            for message in (
                syncing(group, "stranger", version=sync_version),
                syncing(group, member_id, generation=7, version=sync_version),
                syncing(group, member_id, version=sync_version),
            ):
                a.ask(client, ApiKey.SYNC_GROUP, sync_version, message)
            if sync_version >= 5:
                for named in ({"protocol_type": None}, {"protocol_name": "x"}, {"protocol_type": "x"}):
                    a.ask(client, ApiKey.SYNC_GROUP, 5, syncing(group, member_id, **named))
            for generation, who in ((1, member_id), (0, member_id), (1, "stranger")):
                beat = M.HeartbeatRequest(group_id=group, generation_id=generation, member_id=who)
                a.ask(client, ApiKey.HEARTBEAT, min(version, 4), beat)
            describe_version = min(version, 5)
            describe = M.DescribeGroupsRequest(groups=[group], include_authorized_operations=describe_version >= 3)
            a.ask(client, ApiKey.DESCRIBE_GROUPS, describe_version, describe)
            for fields in ({"generation_id_or_member_epoch": 1, "member_id": member_id},
                           {"generation_id_or_member_epoch": 0, "member_id": member_id},
                           {"generation_id_or_member_epoch": -1, "member_id": member_id}, {}):  # fmt: skip
                a.ask(client, ApiKey.OFFSET_COMMIT, 8, committing(group, {(TOPIC, 0): 1}, **fields))
            a.ask(client, ApiKey.OFFSET_DELETE, 0, deleting(group, {TOPIC: [0]}))
            a.ask(client, ApiKey.DELETE_GROUPS, 2, M.DeleteGroupsRequest(groups_names=[group]))
            a.ask(client, ApiKey.JOIN_GROUP, version, joining(group, member_id))
            leave_version = min(version, 5)
            for who in ("stranger", member_id):
                a.ask(client, ApiKey.LEAVE_GROUP, leave_version, leaving(group, who, leave_version))
            a.ask(client, ApiKey.DESCRIBE_GROUPS, describe_version, describe)
            a.ask(client, ApiKey.DELETE_GROUPS, 2, M.DeleteGroupsRequest(groups_names=[group]))


@story
def static_members(a: Asker) -> None:
    with a.client() as client:
        old = a.name(form(client, a.group, group_instance_id="i"))
        for fields in ({"member_id": old, "group_instance_id": "j"}, {"member_id": "x", "group_instance_id": "i"}):
            a.ask(client, ApiKey.JOIN_GROUP, 9, joining(a.group, **fields))
            beat = M.HeartbeatRequest(group_id=a.group, generation_id=1, **fields)
            a.ask(client, ApiKey.HEARTBEAT, 4, beat)
            mine = {"generation_id_or_member_epoch": 1, **fields}
            a.ask(client, ApiKey.OFFSET_COMMIT, 9, committing(a.group, {(TOPIC, 0): 1}, **mine))
            a.ask(client, ApiKey.LEAVE_GROUP, 5, leaving(a.group, fields["member_id"], 5, fields["group_instance_id"]))
        for version in (5, 8, 9):
            answer = client.call(ApiKey.JOIN_GROUP, version, joining(a.group, group_instance_id="i"))
            a.name(answer.member_id)
            a.said.append(a.plain(answer))
            beat = M.HeartbeatRequest(group_id=a.group, generation_id=1, member_id=old, group_instance_id="i")
            a.ask(client, ApiKey.HEARTBEAT, 4, beat)
            instance = {"group_instance_id": "i"}
            a.ask(client, ApiKey.SYNC_GROUP, 5, syncing(a.group, answer.member_id, **instance))
            old = answer.member_id
        a.ask(client, ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=[a.group]))
        a.ask(client, ApiKey.LEAVE_GROUP, 5, leaving(a.group, "", 5, "j"))
        a.ask(client, ApiKey.LEAVE_GROUP, 5, leaving(a.group, "", 5, "i"))
        a.ask(client, ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=[a.group]))


@story
def members_that_have_too_little_in_common_or_are_too_many(a: Asker) -> None:
    protocol = M.JoinGroupRequest.JoinGroupRequestProtocol
    with a.client() as client:
        first = a.name(form(client, a.group))
        a.ask(client, ApiKey.JOIN_GROUP, 9, joining(a.group, protocol_type="connect"))
        a.ask(client, ApiKey.JOIN_GROUP, 9, joining(a.group, protocols=[protocol(name="sticky", metadata=b"")]))
        waiting = [a.client() for _ in range(2)]
        sent = [each.send(ApiKey.JOIN_GROUP, 3, joining(a.group)) for each in waiting]
        describe = M.DescribeGroupsRequest(groups=[a.group])
        while len(client.call(ApiKey.DESCRIBE_GROUPS, 5, describe).groups[0].members) < 3:
            pass
        beat = M.HeartbeatRequest(group_id=a.group, generation_id=1, member_id=first)
        a.ask(client, ApiKey.HEARTBEAT, 4, beat)
        a.ask(client, ApiKey.SYNC_GROUP, 5, syncing(a.group, first))
        mine = {"generation_id_or_member_epoch": 1, "member_id": first}
        a.ask(client, ApiKey.OFFSET_COMMIT, 9, committing(a.group, {(TOPIC, 0): 1}, **mine))
        again = client.call(ApiKey.JOIN_GROUP, 9, joining(a.group, first))
        a.said.append((again.error_code, again.generation_id, again.leader == first, len(again.members)))
        for each, number in zip(waiting, sent, strict=True):
            joined = each.receive(ApiKey.JOIN_GROUP, 3, number)
            a.said.append((joined.error_code, joined.generation_id, joined.leader == first, joined.members))
        a.ask(client, ApiKey.JOIN_GROUP, 9, joining(a.group))
        a.ask(client, ApiKey.JOIN_GROUP, 3, joining(a.group))
        a.ask(client, ApiKey.JOIN_GROUP, 9, joining(a.group, group_instance_id="one more"))
        for each in waiting:
            each.close()


@story
def offsets(a: Asker) -> None:
    with a.client() as client:
        everything = {(TOPIC, 0): 5, (TOPIC, 1): 6, (TOPIC, 9): 1, ("nowhere", 0): 1, (TOPIC, -1): 1}
        for version in versions(ApiKey.OFFSET_COMMIT, 1):
            a.ask(client, ApiKey.OFFSET_COMMIT, version, committing(a.group, everything))
            a.ask(client, ApiKey.OFFSET_COMMIT, version, M.OffsetCommitRequest(group_id=a.group))
        for offsets_and_fields in (
            ({(TOPIC, 0): -7}, {}),
            ({(TOPIC, 0): 2**62}, {"metadata": None}),
            ({(TOPIC, 0): 1}, {"metadata": "x" * 4096}),
            ({(TOPIC, 0): 1}, {"metadata": "x" * 4097}),
            ({(TOPIC, 0): 1}, {"metadata": "ü" * 4097}),
            ({(TOPIC, 1): 8}, {"group_instance_id": "i"}),
            ({(TOPIC, 1): 8}, {"member_id": "m"}),
        ):
            given, fields = offsets_and_fields
            a.ask(client, ApiKey.OFFSET_COMMIT, 9, committing(a.group, given, **fields))
        for version in versions(ApiKey.OFFSET_FETCH, 1):
            for group in (a.group, f"{a.group}-unknown", ""):
                a.said.append(fetch(client, group, {TOPIC: [0, 1, 7], "nowhere": [0]}, version))
                a.said.append(fetch(client, group, {}, version))
                if version >= 2:
                    a.said.append(sorted(fetch(client, group, None, version).items()))
        a.ask(client, ApiKey.OFFSET_DELETE, 0, deleting(a.group, {TOPIC: [0, 7], "nowhere": [0]}))
        a.said.append(fetch(client, a.group, None))
        a.ask(client, ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=[a.group]))
        a.ask(client, ApiKey.OFFSET_DELETE, 0, deleting(a.group, {TOPIC: [1]}))
        a.ask(client, ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=[a.group]))


@story
def lists_of_groups(a: Asker) -> None:
    with a.client() as client:
        form(client, f"{a.group}-stable")
        commit(client, f"{a.group}-simple", {(TOPIC, 0): 1})
        join(client, f"{a.group}-joining")
        filters: list[dict[str, Any]] = [{}]
        for version in versions(ApiKey.LIST_GROUPS):
            if version == 4:
                filters += [{"states_filter": names} for names in (["Stable"], ["STABLE", "empty"], ["nonsense"])]
            if version == 5:
                filters += [{"types_filter": names} for names in (["Classic"], ["consumer"], ["nonsense"])]
            for given in filters:
                answer = client.call(ApiKey.LIST_GROUPS, version, M.ListGroupsRequest(**given))
                listed = sorted(repr(each) for each in answer.groups if each.group_id.startswith(a.group))
                a.said.append((version, answer.error_code, listed))


@story
def coordinators(a: Asker) -> None:
    with a.client() as client:
        for version in versions(ApiKey.FIND_COORDINATOR):
            for keys in ([a.group], [""], [a.group, "other", a.group], []):
                if version >= 4:
                    message = M.FindCoordinatorRequest(coordinator_keys=keys)
                elif len(keys) == 1:
                    message = M.FindCoordinatorRequest(key=keys[0])
                else:
                    continue
                a.ask(client, ApiKey.FIND_COORDINATOR, version, message)


@pytest.mark.parametrize("name", STORIES)
def test_both_answer_the_same(brokers: tuple[BrokerProcess, BrokerProcess], name: str) -> None:
    told = []
    for broker in brokers:
        asker = Asker(broker, name)
        STORIES[name](asker)
        told.append(asker.said)
    theirs, ours = told
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert our == their


# --- what is stored ------------------------------------------------------------------------------------------
def stored(broker: BrokerProcess) -> list[tuple[bytes, bytes | None]]:
    """Return keys and values of all records in `__consumer_offsets`, partition by partition."""
    found = []
    R = M.FetchRequest
    with WireClient("127.0.0.1", broker.port) as client:
        for partition_id in range(int(str(broker.overrides["offsets.topic.num.partitions"]))):
            partition = R.FetchPartition(partition=partition_id, fetch_offset=0, partition_max_bytes=1 << 24)
            topics = [R.FetchTopic(topic=GROUP_OFFSETS_TOPIC, partitions=[partition])]
            message = R(max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=topics)
            answer = client.call(ApiKey.FETCH, 11, message)
            data = answer.responses[0].partitions[0].records
            found += [(record.key or b"", record.value) for record in read_records(data or b"")]
    return found


def remade(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    """Return a record after our reader has read and our writer written it again."""
    about = records.decode_key(key)
    if isinstance(about, OffsetKey):
        again = records.offset_key(*about)
        return again, value and records.offset_value(records.decode_offset_value(value, 0))
    assert isinstance(about, GroupKey)
    if value is None:
        return records.group_key(about.group_id), None
    read = records.decode_group_value(value)
    group = Group.restore(about.group_id, *read[:4], read.members)
    assignments = {member.member_id: member.assignment for member in read.members}
    return records.group_key(about.group_id), records.group_value(group, assignments, read.state_timestamp_ms)


def some_groups(broker: BrokerProcess, prefix: str) -> None:
    with WireClient("127.0.0.1", broker.port) as client:
        form(client, f"{prefix}-static", group_instance_id="i")
        member_id = form(client, f"{prefix}-gone")
        client.call(ApiKey.LEAVE_GROUP, 0, leaving(f"{prefix}-gone", member_id, 0))
        commit(client, f"{prefix}-simple", {(TOPIC, 0): 5, (TOPIC, 1): 2**40})
        commit(client, f"{prefix}-aged", {(TOPIC, 0): 6}, version=4, retention_time_ms=10**9)
        commit(client, f"{prefix}-deleted", {(TOPIC, 0): 7})
        client.call(ApiKey.DELETE_GROUPS, 2, M.DeleteGroupsRequest(groups_names=[f"{prefix}-deleted"]))


def test_records_of_both_are_the_same_bytes_but_for_ids_and_times(brokers: tuple[BrokerProcess, BrokerProcess]) -> None:
    kinds = []
    for broker in brokers:
        some_groups(broker, "stored")
        mine = [record for record in stored(broker) if b"stored-" in record[0]]
        for key, value in mine:
            assert remade(key, value) == (key, value)
        kinds.append(sorted(((key, value and (value[:2], len(value))) for key, value in mine), key=repr))
    assert kinds[0] == kinds[1]


def test_groups_that_kafka_stored_are_replayed(brokers: tuple[BrokerProcess, BrokerProcess]) -> None:
    kafka, _ = brokers
    some_groups(kafka, "replayed")
    topic = MemoryOffsetsTopic(1)
    topic.replicas[0].put(encode_batch([(1, key, value) for key, value in stored(kafka)]))
    home = Home(topic)
    groups = {each.group_id: each for each in home.coordinator.list_groups()[1] if "replayed" in each.group_id}
    assert {name: each.state for name, each in groups.items()} == {
        "replayed-static": "Stable", "replayed-gone": "Empty", "replayed-simple": "Empty", "replayed-aged": "Empty",
    }  # fmt: skip
    assert home.fetch("replayed-simple") == {f"{TOPIC}-0": 5, f"{TOPIC}-1": 2**40}
    with WireClient("127.0.0.1", kafka.port) as client:
        described = client.call(ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=["replayed-static"])).groups[
            0
        ]
    (theirs,), (ours,) = described.members, home.coordinator.describe("replayed-static").members
    assert (ours.member_id, ours.instance_id, ours.client_id, ours.client_host, ours.metadata, ours.assignment) == (
        theirs.member_id, theirs.group_instance_id, theirs.client_id, theirs.client_host, theirs.member_metadata,
        theirs.member_assignment,
    )  # fmt: skip


def tool(*arguments: str) -> str:
    """Return what one of Kafka's own tools prints."""
    command = [*java(KafkaInMemory.classpath()), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_kafkas_own_tools_read_what_is_stored(brokers: tuple[BrokerProcess, BrokerProcess]) -> None:
    _, ours = brokers
    some_groups(ours, "read")
    formatter = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
    printed = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", ours.address, "--topic",
        GROUP_OFFSETS_TOPIC, "--from-beginning", "--formatter", formatter, "--timeout-ms", "5000",
    )  # fmt: skip
    decoder, at, seen = json.JSONDecoder(), printed.index("{"), []
    while printed[at:].startswith("{"):  # one behind the other, nothing between them
        read, at = decoder.raw_decode(printed, at)
        seen.append(read)
    offsets = {
        (each["key"]["data"]["group"], each["key"]["data"]["partition"]): each["value"] and each["value"]["data"]
        for each in seen
        if each["key"]["data"]["group"].startswith("read-")
    }
    assert offsets["read-simple", 1]["offset"] == 2**40 and offsets["read-simple", 0]["metadata"] == "m"
    assert offsets["read-aged", 0]["expireTimestamp"] > 0
    assert offsets["read-deleted", 0] is None
    logs = sorted(str(path) for path in ours.data.glob(f"{GROUP_OFFSETS_TOPIC}-*/*.log"))
    dumped = tool("kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", ",".join(logs))
    assert "read-static" in dumped and "isvalid: false" not in dumped
