"""List, describe and delete consumer groups, move and delete their offsets."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from kbroker.cli import arguments as args
from kbroker.cli.client_options import add_cluster, connect
from kbroker.cli.output import print_json, print_table
from kbroker.client import OffsetAndMetadata
from kbroker.client.admin import EARLIEST, LATEST, AdminClient
from kbroker.errors import KbrokerError
from kbroker.model import TopicPartition

EXAMPLES = """examples:
  kbroker groups list
  kbroker groups describe readers
  kbroker groups reset-offsets readers --topic views --to-earliest
  kbroker groups reset-offsets readers --topic views:0,2 --to-time 2026-01-31T12:00:00 --dry-run
  kbroker groups delete-offsets readers --topic views
  kbroker groups delete readers
  kbroker groups list --json -b broker.example.com:9093 --command-config client.properties
"""

GROUP_TYPES = ("classic", "consumer")
EMPTY_STATES = frozenset({"Empty", "Dead"})


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all groups and their states")
    listing.add_argument("--state", action="append", default=[], help="only these, as in --state Empty (Kafka 2.6)")
    listing.add_argument(
        "--type",
        action="append",
        default=[],
        choices=GROUP_TYPES,
        help="only of this protocol; consumer is that of KIP-848 (Kafka 3.8)",
    )
    describing = actions.add_parser("describe", help="members, offsets and lag")
    describing.add_argument("group", nargs="+")
    describing.add_argument("--members", action="store_true", help="a row for each member, instead of the offsets")
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
    forgetting = actions.add_parser("delete-offsets", help="delete a group's offsets of topics that it does not read")
    forgetting.add_argument("group")
    forgetting.add_argument(
        "--topic",
        type=_topic_partitions,
        action="append",
        required=True,
        metavar="TOPIC[:PARTITIONS]",
        help="a topic, or some partitions of it",
    )
    deleting = actions.add_parser("delete", help="delete groups that have no members, with their offsets")
    deleting.add_argument("group", nargs="+")
    for action in (listing, describing, resetting, forgetting, deleting):
        add_cluster(action)
    for action in (listing, describing, resetting):
        args.add_json(action)


def run(arguments: argparse.Namespace) -> int:
    actions = {
        "list": _list,
        "describe": _describe,
        "reset-offsets": _reset,
        "delete-offsets": _delete_offsets,
        "delete": _delete,
    }
    with connect(arguments) as admin:
        actions[arguments.action](admin, arguments)
    return 0


def _topic_partitions(text: str) -> tuple[str, list[int] | None]:
    topic, colon, partitions = text.partition(":")
    return topic, args.partition_list(partitions) if colon else None


def _list(admin: AdminClient, arguments: argparse.Namespace) -> None:
    groups = [
        {
            "group": group.group_id,
            "state": group.state,
            "type": group.group_type,
            "protocol_type": group.protocol_type,
        }
        for group in admin.list_groups(states=arguments.state, types=arguments.type)
    ]
    if arguments.json:
        print_json(groups)
    else:
        print_table(["group", "state", "type", "protocol type"], ([*group.values()] for group in groups))


def _describe(admin: AdminClient, arguments: argparse.Namespace) -> None:
    described = [_described(admin, group_id) for group_id in arguments.group]
    if arguments.json:
        print_json(described)
        return
    for number, group in enumerate(described):
        if number:
            print()
        protocol = f", {group['protocol']}" if group["protocol"] else ""
        print(f"{group['group']}  {group['state']}, {len(group['members'])} members{protocol}")
        if arguments.members:
            print_table(
                ["member", "client", "host", "instance", "partitions"],
                (
                    [m["member_id"], m["client_id"], m["host"], m["instance_id"], " ".join(m["partitions"])]
                    for m in group["members"]
                ),
            )
        elif group["partitions"]:
            print_table(
                ["topic", "partition", "offset", "end", "lag", "member", "host"],
                (
                    [p["topic"], p["partition"], p["offset"], p["end_offset"], p["lag"], p["client_id"], p["host"]]
                    for p in group["partitions"]
                ),
            )


def _described(admin: AdminClient, group_id: str) -> dict[str, Any]:
    group = admin.describe_group(group_id)
    offsets = _committed(admin, group_id)
    if group.state == "Dead" and not offsets:
        raise KbrokerError(f"there is no group {group_id!r}")
    owners = {partition: member for member in group.members for partition in member.partitions}
    partitions = sorted({*offsets, *owners})
    topics = set(admin.list_topics(internal=True))
    ends = _offsets(admin, [partition for partition in partitions if partition.topic in topics], LATEST)
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
                "host": member.host if member else None,
            }
        )
    return {
        "group": group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.assignor,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [str(partition) for partition in member.partitions],
            }
            for member in group.members
        ],
        "partitions": rows,
    }


def _committed(admin: AdminClient, group_id: str) -> dict[TopicPartition, int]:
    """Those that it has."""
    found: Mapping[TopicPartition, OffsetAndMetadata] = admin.committed(group_id)
    return {partition: each.offset for partition, each in found.items() if each.offset >= 0}


def _offsets(admin: AdminClient, partitions: Collection[TopicPartition], at: int) -> dict[TopicPartition, int]:
    """The first offset at or after that time, else where the partition ends."""
    if not partitions:
        return {}
    found = {partition: each.offset for partition, each in admin.list_offsets(partitions, at).items()}
    beyond = [partition for partition in partitions if found[partition] < 0]
    return {**found, **_offsets(admin, beyond, LATEST)}


def _reset(admin: AdminClient, arguments: argparse.Namespace) -> None:
    group_id = arguments.group
    state = admin.describe_group(group_id).state
    if state not in EMPTY_STATES:
        raise KbrokerError(f"group {group_id!r} is {state}: stop its members first")
    committed = _committed(admin, group_id)
    if arguments.all_topics:
        partitions = sorted(committed)
    else:
        partitions = []
        described = admin.describe_topics([topic for topic, _ in arguments.topic])
        for topic, wanted in arguments.topic:
            known = [each.partition for each in described[topic].partitions]
            args.require_known_partitions(topic, wanted or [], known)
            partitions += [TopicPartition(topic, partition_id) for partition_id in (wanted or known)]
    if not partitions:
        raise KbrokerError(f"group {group_id!r} has no offsets to move")
    targets = _targets(admin, arguments, partitions, committed)
    if not arguments.dry_run:
        admin.alter_offsets(group_id, targets)
    rows = [(p.topic, p.partition_id, committed.get(p), targets[p]) for p in partitions]
    if arguments.json:
        print_json([dict(zip(("topic", "partition", "offset", "new_offset"), row, strict=True)) for row in rows])
    else:
        print_table(["topic", "partition", "offset", "new offset"], rows)


def _targets(
    admin: AdminClient,
    arguments: argparse.Namespace,
    partitions: list[TopicPartition],
    committed: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Where each partition's offset goes; never outside of what is there."""
    if arguments.to_time is not None:
        return _offsets(admin, partitions, arguments.to_time)
    earliest = _offsets(admin, partitions, EARLIEST)
    if arguments.to_earliest:
        return earliest
    latest = _offsets(admin, partitions, LATEST)
    if arguments.to_latest:
        return latest
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


def _delete_offsets(admin: AdminClient, arguments: argparse.Namespace) -> None:
    """Of topics that are gone, too."""
    committed = _committed(admin, arguments.group)
    for topic, wanted in arguments.topic:
        chosen = [each for each in committed if each.topic == topic and (wanted is None or each.partition_id in wanted)]
        if not chosen:
            raise KbrokerError(f"group {arguments.group!r} has no offsets there of topic {topic!r}")
        admin.delete_offsets(arguments.group, chosen)


def _delete(admin: AdminClient, arguments: argparse.Namespace) -> None:
    for group_id in arguments.group:
        admin.delete_group(group_id)
