"""OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.group_members import Member, alone

COMMIT, FETCH, DELETE = ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE
GROUPS_SINCE = 8
Partition = M.OffsetCommitRequest.OffsetCommitRequestPartition


def commit_request(
    group: str, topics: dict[str, list[tuple[int, int]]], metadata: str | None = "m", **fields: object
) -> M.OffsetCommitRequest:
    wanted = [
        M.OffsetCommitRequest.OffsetCommitRequestTopic(
            name=name,
            partitions=[
                Partition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=metadata,
                )
                for index, offset in partitions
            ],
        )
        for name, partitions in topics.items()
    ]
    return M.OffsetCommitRequest(**{"group_id": group, "topics": wanted, **fields})  # type: ignore[arg-type]


def of_member(member: Member) -> dict[str, object]:
    return {
        "generation_id_or_member_epoch": member.generation,
        "member_id": member.member_id,
        "group_instance_id": member.instance,
    }


def committed(t: Talk, group: str, topic: str, partitions: Sequence[int] = (0,)) -> None:
    """Compare the offsets that are committed now."""
    one = M.OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions))
    t.ask(
        M.OffsetFetchRequest(groups=[M.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[one])]),
        version=8,
    )


def store(t: Talk, group: str, topic: str, *partitions: tuple[int, int], **fields: object) -> None:
    """Commit offsets for scenarios of other APIs."""
    answer = t.do(commit_request(group, {topic: list(partitions)}, **fields))
    for partition in answer.topics[0].partitions:
        t.must(partition.error_code, "committing")


# --- OffsetCommit ----------------------------------------------------------------------------------------------------


@scenario(COMMIT)
def without_a_group(t: Talk) -> None:
    """Offsets are committed without a generation to a group that has no members."""
    topic, group = t.topic(partitions=2), t.name("g")
    t.ask(commit_request(group, {topic: [(0, 5), (1, 7)]}))
    committed(t, group, topic, (0, 1))
    t.ask(commit_request(group, {topic: [(0, 3)]}, metadata=None))
    t.ask(commit_request(group, {topic: [(1, 2**62)]}, metadata=""))
    committed(t, group, topic, (0, 1))


@scenario(COMMIT)
def by_a_member(t: Talk) -> None:
    topic, member = t.topic(), alone(t)
    t.ask(commit_request(member.group, {topic: [(0, 5)]}, **of_member(member)))
    committed(t, member.group, topic)


@scenario(COMMIT)
def by_strangers(t: Talk) -> None:
    topic, member = t.topic(), alone(t)
    one = {topic: [(0, 5)]}
    t.ask(commit_request(member.group, one))
    t.ask(commit_request(member.group, one, **{**of_member(member), "member_id": "stranger"}))
    for generation in (0, 2, -1):
        t.ask(commit_request(member.group, one, **{**of_member(member), "generation_id_or_member_epoch": generation}))
    t.ask(commit_request(t.name("nowhere"), one, generation_id_or_member_epoch=3, member_id="stranger"))
    t.ask(commit_request(t.name("nowhere"), one, member_id="stranger"))
    t.ask(commit_request(t.name("nowhere"), one, generation_id_or_member_epoch=-2))
    committed(t, member.group, topic)


@scenario(COMMIT)
def in_a_rebalance(t: Talk) -> None:
    topic, first = t.topic(), alone(t)
    second = Member(t, "b")
    sent = second.send_join()
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    t.ask(commit_request(first.group, {topic: [(0, 5)]}, **of_member(first)))
    first.join()
    second.joined(sent)
    t.ask(commit_request(first.group, {topic: [(0, 6)]}, **of_member(first)))
    t.ask(commit_request(first.group, {topic: [(0, 7)]}, **{**of_member(second), "generation_id_or_member_epoch": 1}))
    committed(t, first.group, topic)


@scenario(COMMIT)
def to_topics_and_partitions_that_are_not_there(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    t.ask(
        commit_request(
            group, {topic: [(0, 1), (1, 1), (-1, 1)], t.name("nowhere"): [(0, 1)], "a b": [(0, 1)], "": [(0, 1)]}
        )
    )


@scenario(COMMIT)
def metadata_too_large(t: Talk) -> None:
    topic, group = t.topic(partitions=2), t.name("g")
    t.ask(commit_request(group, {topic: [(0, 1)]}, metadata="x" * 100))
    t.ask(commit_request(group, {topic: [(0, 2)]}, metadata="x" * 101))
    t.ask(commit_request(group, {topic: [(0, 3)]}, metadata="ä" * 60))
    committed(t, group, topic)


@scenario(COMMIT)
def offsets_of_any_kind(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    for offset in (0, -1, -2, -(2**63), 2**63 - 1):
        t.ask(commit_request(group, {topic: [(0, offset)]}))
        committed(t, group, topic)


@scenario(COMMIT)
def of_no_group_id(t: Talk) -> None:
    topic = t.topic()
    t.ask(commit_request("", {topic: [(0, 1)]}))
    t.ask(commit_request("", {topic: [(0, 1)]}, generation_id_or_member_epoch=1, member_id="stranger"))


@scenario(COMMIT)
def nothing_to_commit(t: Talk) -> None:
    t.ask(commit_request(t.name("g"), {}))
    t.ask(commit_request(t.name("g"), {t.topic(): []}))


@scenario(COMMIT)
def a_partition_twice(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    t.ask(commit_request(group, {topic: [(0, 5), (0, 3)]}))
    committed(t, group, topic)


@scenario(COMMIT, since=6)
def leader_epochs(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    for epoch in (0, 7, -1, -2):
        one = Partition(partition_index=0, committed_offset=5, committed_leader_epoch=epoch, committed_metadata="")
        entry = M.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[one])
        t.ask(M.OffsetCommitRequest(group_id=group, topics=[entry]))
        committed(t, group, topic)


@scenario(COMMIT, only=1)
def commit_timestamps(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    for timestamp in (-1, 0, 2**62, -(2**63)):
        one = Partition(partition_index=0, committed_offset=5, commit_timestamp=timestamp, committed_metadata="m")
        entry = M.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[one])
        t.ask(M.OffsetCommitRequest(group_id=group, topics=[entry]))
        committed(t, group, topic)


@scenario(COMMIT, until=4)
def retention_times(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    for retention_ms in (-1, 0, 10**9):
        t.ask(commit_request(group, {topic: [(0, 5)]}, retention_time_ms=retention_ms))


@scenario(COMMIT, since=7)
def by_a_static_member(t: Talk) -> None:
    topic, member = t.topic(), alone(t, instance="one")
    one = {topic: [(0, 5)]}
    t.ask(commit_request(member.group, one, **of_member(member)))
    for change in (
        {"group_instance_id": "nobody"},
        {"group_instance_id": None},
        {"member_id": "stranger"},
        {"member_id": ""},
    ):
        t.ask(commit_request(member.group, one, **{**of_member(member), **change}))


@scenario(COMMIT)
def to_an_internal_topic(t: Talk) -> None:
    t.ask(commit_request(t.name("g"), {"__consumer_offsets": [(0, 5)]}))


# --- OffsetFetch -----------------------------------------------------------------------------------------------------


def ask(t: Talk, groups: dict[str, dict[str, list[int]] | None], **fields: Any) -> None:
    """Ask for all groups in one request if the version can, else in one request each."""
    if t.version >= GROUPS_SINCE:
        one = M.OffsetFetchRequest.OffsetFetchRequestTopics
        wanted = [
            M.OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if topics is None
                else [one(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
            )
            for group, topics in groups.items()
        ]
        t.ask(M.OffsetFetchRequest(groups=wanted, **fields))
        return
    old = M.OffsetFetchRequest.OffsetFetchRequestTopic
    for group, topics in groups.items():
        entries = (
            None if topics is None else [old(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
        )
        t.ask(M.OffsetFetchRequest(group_id=group, topics=entries, **fields))


@scenario(FETCH)
def what_was_committed(t: Talk) -> None:
    topic, other, group = t.topic(partitions=3), t.topic("other"), t.name("g")
    store(t, group, topic, (0, 5), (2, 2**40))
    store(t, group, other, (0, 1), metadata="ä metadata")
    ask(t, {group: {topic: [0, 1, 2, 7, -1], other: [0]}})
    ask(t, {group: {topic: []}})
    ask(t, {group: {}})


@scenario(FETCH)
def of_groups_that_are_not_there(t: Talk) -> None:
    topic = t.topic()
    ask(t, {t.name("nowhere"): {topic: [0], t.name("no"): [0]}})
    ask(t, {"": {topic: [0]}})
    ask(t, {t.name("nowhere"): {"a b": [0], "": [0]}})


@scenario(FETCH, since=2)
def all_of_a_group(t: Talk) -> None:
    topic, group = t.topic(partitions=2), t.name("g")
    store(t, group, topic, (0, 5), (1, 6))
    ask(t, {group: None})
    ask(t, {t.name("nowhere"): None})
    ask(t, {"": None})


@scenario(FETCH)
def a_partition_asked_for_twice(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    store(t, group, topic, (0, 5))
    ask(t, {group: {topic: [0, 0]}})


@scenario(FETCH)
def of_a_group_with_members(t: Talk) -> None:
    topic, member = t.topic(), alone(t)
    store(t, member.group, topic, (0, 5), **of_member(member))
    ask(t, {member.group: {topic: [0]}})


@scenario(FETCH, since=7)
def stable_ones(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    store(t, group, topic, (0, 5))
    ask(t, {group: {topic: [0]}}, require_stable=True)


@scenario(FETCH, since=GROUPS_SINCE)
def several_groups(t: Talk) -> None:
    topic, one, two = t.topic(), t.name("one"), t.name("two")
    store(t, one, topic, (0, 5))
    store(t, two, topic, (0, 6))
    ask(t, {one: {topic: [0]}, two: None, t.name("nowhere"): {topic: [0]}, "": {topic: [0]}})
    t.still_waits(t.send(M.OffsetFetchRequest(groups=[]), on="none"))
    group = M.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=one, topics=None)
    t.ask(M.OffsetFetchRequest(groups=[group, group]))


@scenario(FETCH, since=9)
def as_a_member(t: Talk) -> None:
    """A classic group does not look at member epochs: they belong to the new protocol."""
    topic, member = t.topic(), alone(t)
    store(t, member.group, topic, (0, 5), **of_member(member))
    for member_id, epoch in ((member.member_id, 1), ("stranger", 1), (None, 7), ("", -1)):
        group = M.OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=member.group, member_id=member_id, member_epoch=epoch, topics=None
        )
        t.ask(M.OffsetFetchRequest(groups=[group]))


@scenario(FETCH, alone=True)
def of_a_deleted_topic(t: Talk) -> None:
    """The offsets of a deleted topic are deleted."""
    topic, group = t.topic(), t.name("g")
    store(t, group, topic, (0, 5))
    t.do(M.DeleteTopicsRequest(topics=[M.DeleteTopicsRequest.DeleteTopicState(name=topic)], timeout_ms=30000))
    found = M.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
    t.until(lambda: not t.do(M.OffsetFetchRequest(groups=[found])).groups[0].topics, "end of the offsets")
    ask(t, {group: {topic: [0]}})


@scenario(FETCH, only=0)
def of_zookeeper(t: Talk) -> None:
    """Version 0 of both APIs: Kafka refuses it if it has no ZooKeeper."""
    topic, group = t.topic(), t.name("g")
    one = M.OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    t.ask(commit_request(group, {topic: [(0, 5)]}), version=0)
    t.ask(M.OffsetFetchRequest(group_id=group, topics=[one]))


# --- OffsetDelete ----------------------------------------------------------------------------------------------------


def delete(t: Talk, group: str, topics: dict[str, list[int]]) -> None:
    one = M.OffsetDeleteRequest.OffsetDeleteRequestPartition
    wanted = [
        M.OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=name, partitions=[one(partition_index=index) for index in indexes]
        )
        for name, indexes in topics.items()
    ]
    t.ask(M.OffsetDeleteRequest(group_id=group, topics=wanted))


@scenario(DELETE)
def offsets_of_an_empty_group(t: Talk) -> None:
    topic, group = t.topic(partitions=3), t.name("g")
    store(t, group, topic, (0, 5), (1, 6))
    delete(t, group, {topic: [0, 2]})
    committed(t, group, topic, (0, 1, 2))
    delete(t, group, {topic: [0, 1]})


@scenario(DELETE)
def offsets_of_groups_that_are_not_there(t: Talk) -> None:
    topic = t.topic()
    delete(t, t.name("nowhere"), {topic: [0]})
    delete(t, "", {topic: [0]})
    delete(t, t.name("nowhere"), {})


@scenario(DELETE)
def offsets_of_topics_that_are_not_there(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    store(t, group, topic, (0, 5))
    delete(t, group, {topic: [0, 7, -1], t.name("nowhere"): [0], "a b": [0]})
    delete(t, group, {})


@scenario(DELETE)
def offsets_that_are_in_use(t: Talk) -> None:
    """A topic keeps its offsets while members of a consumer group subscribe to it; other topics lose theirs."""
    topic, other = t.topic(), t.topic("other")
    name = topic.encode()
    subscription = b"\0\0\0\0\0\1" + len(name).to_bytes(2) + name + b"\xff\xff\xff\xff"
    member = Member(t, "a", protocols=[("range", subscription)])
    member.join()
    delete(t, member.group, {topic: [0], other: [0]})
    member.sync(member.member_id)
    for one in (topic, other):
        store(t, member.group, one, (0, 5), **of_member(member))
    delete(t, member.group, {topic: [0], other: [0]})
    committed(t, member.group, topic)
    committed(t, member.group, other)


@scenario(DELETE)
def offsets_of_a_group_of_another_kind(t: Talk) -> None:
    topic, member = t.topic(), alone(t, protocol_type="connect")
    store(t, member.group, topic, (0, 5), **of_member(member))
    delete(t, member.group, {topic: [0]})
