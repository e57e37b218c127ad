"""List, describe and delete consumer groups, and move their offsets."""

from __future__ import annotations

import argparse
from typing import Any

from kbroker.cli import arguments as args
from kbroker.cli.offsets import end_offsets, resolve_offsets
from kbroker.cli.output import print_json, print_table
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from kbroker.net.blocking_client import BlockingClient, raise_for
from kbroker.protocol import messages as M

EXAMPLES = """examples:
  kbroker groups list
  kbroker groups describe readers
  kbroker groups reset-offsets readers --topic views --to-earliest
  kbroker groups reset-offsets readers --topic views:0,2 --to-time 2026-01-31T12:00:00 --dry-run
  kbroker groups delete readers
"""

EMPTY_STATES = frozenset({"Empty", "Dead"})


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all groups and their states")
    describing = actions.add_parser("describe", help="members, offsets and lag")
    describing.add_argument("group", nargs="+")
    resetting = actions.add_parser("reset-offsets", help="move the offsets of a group that has no members")
    resetting.add_argument("group")
    what = resetting.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--topic",
        type=_topic_partitions,
        action="append",
        default=[],
        metavar="TOPIC[:PARTITIONS]",
        help="a topic, or some partitions of it, as in views:0,2-4",
    )
    what.add_argument("--all-topics", action="store_true", help="every topic that the group has offsets of")
    where = resetting.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-earliest", action="store_true", help="the first message that is there")
    where.add_argument("--to-latest", action="store_true", help="behind the last message")
    where.add_argument("--to-offset", type=int, metavar="N")
    where.add_argument("--shift-by", type=int, metavar="N", help="so many messages on, or back if negative")
    where.add_argument("--to-time", type=args.moment, metavar="TIME", help="milliseconds, or as in 2026-01-31T12:00:00")
    resetting.add_argument("--dry-run", action="store_true", help="only show where it would go")
    deleting = actions.add_parser("delete", help="delete groups that have no members, with their offsets")
    deleting.add_argument("group", nargs="+")
    for action in (listing, describing, resetting, deleting):
        args.add_bootstrap(action)
    for action in (listing, describing, resetting):
        args.add_json(action)


def run(arguments: argparse.Namespace) -> int:
    actions = {"list": _list, "describe": _describe, "reset-offsets": _reset, "delete": _delete}
    with args.connect(arguments) as client:
        actions[arguments.action](client, arguments)
    return 0


def _topic_partitions(text: str) -> tuple[str, list[int] | None]:
    topic, colon, partitions = text.partition(":")
    return topic, args.partition_list(partitions) if colon else None


def _list(client: BlockingClient, arguments: argparse.Namespace) -> None:
    groups: list[dict[str, Any]] = []
    for broker in client.metadata([]).brokers:
        answer = client.call(M.ListGroupsRequest(), broker.node_id)
        raise_for(answer.error_code, None, f"broker {broker.node_id}")
        groups += [
            {"group": group.group_id, "state": group.group_state, "protocol_type": group.protocol_type}
            for group in answer.groups
        ]
    groups.sort(key=lambda group: str(group["group"]))
    if arguments.json:
        print_json(groups)
    else:
        print_table(["group", "state", "type"], ([g["group"], g["state"], g["protocol_type"]] for g in groups))


def _describe(client: BlockingClient, arguments: argparse.Namespace) -> None:
    described = [_described(client, group_id) for group_id in arguments.group]
    if arguments.json:
        print_json(described)
        return
    for number, group in enumerate(described):
        if number:
            print()
        protocol = f", {group['protocol']}" if group["protocol"] else ""
        print(f"{group['group']}  {group['state']}, {len(group['members'])} members{protocol}")
        if group["partitions"]:
            print_table(
                ["topic", "partition", "offset", "end", "lag", "member", "host"],
                (
                    [p["topic"], p["partition"], p["offset"], p["end_offset"], p["lag"], p["client_id"], p["host"]]
                    for p in group["partitions"]
                ),
            )


def _described(client: BlockingClient, group_id: str) -> dict[str, Any]:
    group = _find(client, group_id)
    offsets = _committed(client, group_id)
    if group.group_state == "Dead" and not offsets:
        raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
    owners = {partition: member for member in group.members for partition in _assignment(member)}
    partitions = sorted({*offsets, *owners})
    ends = end_offsets(client, partitions)
    rows = []
    for partition in partitions:
        member, offset, end = owners.get(partition), offsets.get(partition), ends.get(partition)
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition_id,
                "offset": offset,
                "end_offset": end,
                "lag": end - offset if end is not None and offset is not None else None,
                "member_id": member.member_id if member else None,
                "client_id": member.client_id if member else None,
                "host": member.client_host if member else None,
            }
        )
    return {
        "group": group_id,
        "state": group.group_state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol_data,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "partitions": [str(partition) for partition in _assignment(member)],
            }
            for member in group.members
        ],
        "partitions": rows,
    }


def _find(client: BlockingClient, group_id: str) -> Any:
    def attempt() -> Any:
        answer = client.call(M.DescribeGroupsRequest(groups=[group_id]), client.coordinator(group_id))
        (group,) = answer.groups
        # Kafka 4 says so where earlier ones describe a dead group (KIP-1043).
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return M.DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state="Dead")
        raise_for(group.error_code, None, f"group {group_id!r}")
        return group

    found = client.retried(attempt)
    newer = _find_newer(client, group_id) if found.group_state == "Dead" else None
    return found if newer is None else newer


def _find_newer(client: BlockingClient, group_id: str) -> Any:
    """A group of the newer protocol (KIP-848), told as one of the classic protocol is; None when there is none."""
    try:
        answer = client.call(M.ConsumerGroupDescribeRequest(group_ids=[group_id]), client.coordinator(group_id))
    except ProtocolError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return None  # a broker of before
        raise
    (group,) = answer.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    raise_for(group.error_code, group.error_message, f"group {group_id!r}")
    D = M.DescribeGroupsResponse
    members = [
        D.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_assignment=_as_assigned(member.assignment.topic_partitions),
        )
        for member in group.members
    ]
    return D.DescribedGroup(
        group_id=group_id,
        group_state=group.group_state,
        protocol_type="consumer",
        protocol_data=group.assignor_name,
        members=members,
    )


def _as_assigned(topics: list[Any]) -> bytes:
    A = M.ConsumerProtocolAssignment
    partitions = [A.TopicPartition(topic=topic.topic_name, partitions=topic.partitions) for topic in topics]
    return b"\0\0" + A(assigned_partitions=partitions).encode(0)


def _committed(client: BlockingClient, group_id: str) -> dict[TopicPartition, int]:
    def attempt() -> dict[TopicPartition, int]:
        request = M.OffsetFetchRequest(group_id=group_id, topics=None)
        answer = client.call(request, client.coordinator(group_id))
        raise_for(answer.error_code, None, f"group {group_id!r}")
        return {
            TopicPartition(topic.name, partition.partition_index): partition.committed_offset
            for topic in answer.topics
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }

    return client.retried(attempt)


def _assignment(member: Any) -> list[TopicPartition]:
    """What a member of the consumer protocol reads; nothing for other kinds of groups."""
    data = bytes(member.member_assignment)
    if len(data) < 2:
        return []
    try:
        assigned = M.ConsumerProtocolAssignment.decode_prefix(data[2:], 0)[0]
    except KbrokerError:
        return []
    return [
        TopicPartition(topic.topic, partition)
        for topic in assigned.assigned_partitions
        for partition in topic.partitions
    ]


def _reset(client: BlockingClient, arguments: argparse.Namespace) -> None:
    group_id = arguments.group
    state = _find(client, group_id).group_state
    if state not in EMPTY_STATES:
        raise KbrokerError(f"group {group_id!r} is {state}: stop its members first")
    committed = _committed(client, group_id)
    if arguments.all_topics:
        partitions = sorted(committed)
    else:
        partitions = []
        for topic, wanted in arguments.topic:
            known = sorted(client.leaders(topic))
            args.require_known_partitions(topic, wanted or [], known)
            partitions += [TopicPartition(topic, partition_id) for partition_id in (wanted or known)]
    if not partitions:
        raise KbrokerError(f"group {group_id!r} has no offsets to move")
    targets = _targets(client, arguments, partitions, committed)
    if not arguments.dry_run:
        _commit(client, group_id, targets)
    rows = [(p.topic, p.partition_id, committed.get(p), offset) for p, offset in targets.items()]
    if arguments.json:
        print_json([dict(zip(("topic", "partition", "offset", "new_offset"), row, strict=True)) for row in rows])
    else:
        print_table(["topic", "partition", "offset", "new offset"], rows)


def _targets(
    client: BlockingClient,
    arguments: argparse.Namespace,
    partitions: list[TopicPartition],
    committed: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Where each partition's offset goes; never outside of what is there."""
    earliest = resolve_offsets(client, partitions, EARLIEST_TIMESTAMP)
    latest = resolve_offsets(client, partitions, LATEST_TIMESTAMP)
    if arguments.to_earliest:
        return earliest
    if arguments.to_latest:
        return latest
    if arguments.to_time is not None:
        return resolve_offsets(client, partitions, arguments.to_time)
    wanted: dict[TopicPartition, int] = {}
    for partition in partitions:
        if arguments.to_offset is not None:
            offset = arguments.to_offset
        elif partition in committed:
            offset = committed[partition] + arguments.shift_by
        else:
            raise KbrokerError(f"the group has no offset of {partition} to shift")
        wanted[partition] = min(max(offset, earliest[partition]), latest[partition])
    return wanted


def _commit(client: BlockingClient, group_id: str, offsets: dict[TopicPartition, int]) -> None:
    request = M.OffsetCommitRequest
    topics: dict[str, list[M.OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
    for partition, offset in offsets.items():
        topics.setdefault(partition.topic, []).append(
            request.OffsetCommitRequestPartition(
                partition_index=partition.partition_id, committed_offset=offset, committed_metadata=""
            )
        )

    def attempt() -> None:
        answer = client.call(
            request(
                group_id=group_id,
                generation_id_or_member_epoch=-1,
                topics=[
                    request.OffsetCommitRequestTopic(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
            ),
            client.coordinator(group_id),
        )
        for topic in answer.topics:
            for partition in topic.partitions:
                raise_for(partition.error_code, None, f"{topic.name}-{partition.partition_index}")

    client.retried(attempt)


def _delete(client: BlockingClient, arguments: argparse.Namespace) -> None:
    for group_id in arguments.group:

        def attempt(group_id: str = group_id) -> None:
            answer = client.call(M.DeleteGroupsRequest(groups_names=[group_id]), client.coordinator(group_id))
            for result in answer.results:
                raise_for(result.error_code, None, f"group {group_id!r}")

        client.retried(attempt)
