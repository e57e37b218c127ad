"""List, describe and delete consumer groups, move and delete their offsets."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from kbroker.cli import arguments as args
from kbroker.cli.client_options import add_cluster, connect
from kbroker.cli.offset_plan import Bounds, Target
from kbroker.cli.outcome import USAGE
from kbroker.cli.output import counted, print_json, print_note, print_table, remind_of_execute
from kbroker.cli.topic_facts import (
    chosen_partitions,
    described_and_error,
    end_offsets,
    first_offsets,
    led_partitions,
    topic_partitions,
)
from kbroker.client import OffsetAndMetadata
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import GroupDescription, MemberDescription
from kbroker.client.errors import BrokerError, PartialFailure
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import TopicPartition
from kbroker.rules.group_state import GroupState
from kbroker.rules.nearest import nearest

EXAMPLES = """examples:
  kbroker groups list
  kbroker groups describe readers writers
  kbroker groups describe --all --json
  kbroker groups reset-offsets readers --topic views --to-earliest
  kbroker groups reset-offsets readers --topic views:0,2 --to-time 2026-01-31T12:00:00 --execute
  kbroker groups reset-offsets newcomers --new-group --topic views --to-latest --execute
  kbroker groups delete-offsets readers --topic views
  kbroker groups delete readers
  kbroker groups list --json -b broker.example.com:9093 --command-config client.properties
"""

STATES = tuple(state.value for state in GroupState)
GROUP_TYPES = ("classic", "consumer")
GONE_STATES = frozenset({"Dead"})
EMPTY_STATES = GONE_STATES | {"Empty"}


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all groups and their states")
    listing.add_argument(
        "--state",
        type=_state,
        action="append",
        default=[],
        metavar="STATE",
        help=f"only these: {', '.join(STATES)} (Kafka 2.6)",
    )
    listing.add_argument(
        "--type",
        action="append",
        default=[],
        choices=GROUP_TYPES,
        help="only of this protocol; consumer is that of KIP-848 (Kafka 3.8)",
    )
    describing = actions.add_parser("describe", help="members, offsets and lag")
    describing.add_argument("group", nargs="*", default=[])
    describing.add_argument("--all", action="store_true", help="every group")
    describing.add_argument("--members", action="store_true", help="a row for each member, instead of the offsets")
    resetting = actions.add_parser(
        "reset-offsets", help="show where the offsets of a group without members would go; with --execute move them"
    )
    resetting.add_argument("group")
    what = resetting.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--topic",
        type=topic_partitions,
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
    resetting.add_argument("--new-group", action="store_true", help="the group need not be there: it is made")
    args.add_execution(resetting)
    forgetting = actions.add_parser("delete-offsets", help="delete a group's offsets of topics that it does not read")
    forgetting.add_argument("group")
    forgetting.add_argument(
        "--topic",
        type=topic_partitions,
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
    if arguments.action == "describe" and bool(arguments.group) == arguments.all:
        print("kbroker groups describe: name groups, or --all", file=sys.stderr)
        return USAGE
    with connect(arguments) as admin:
        actions[arguments.action](admin, arguments)
    return 0


def _state(text: str) -> str:
    """Parse a group state, in upper or lower case. Raises ArgumentTypeError."""
    for state in STATES:
        if text.lower() == state.lower():
            return state
    like = nearest(text, STATES)
    advice = f"; did you mean {like}?" if like else ""
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(STATES)}{advice}")


def _list(admin: AdminClient, arguments: argparse.Namespace) -> None:
    failure: PartialFailure | None = None
    try:
        listed = admin.list_groups(states=arguments.state, types=arguments.type)
    except PartialFailure as error:
        failure = error
        listed = sorted(chain.from_iterable(error.results.values()), key=lambda group: group.group_id)
    groups = [
        {
            "group": group.group_id,
            "state": group.state,
            "type": group.group_type,
            "protocol_type": group.protocol_type,
        }
        for group in listed
    ]
    if arguments.json:
        print_json(groups)
    else:
        print_table(["group", "state", "type", "protocol type"], ([*group.values()] for group in groups))
    if failure is not None:
        raise failure


def _describe(admin: AdminClient, arguments: argparse.Namespace) -> None:
    wanted = [each.group_id for each in admin.list_groups()] if arguments.all else arguments.group
    found, error = _descriptions(admin, wanted)
    offsets = {group_id: _committed(admin, group_id) for group_id in found}
    there = {
        group_id: group for group_id, group in found.items() if group.state not in GONE_STATES or offsets[group_id]
    }
    if not arguments.all and (missing := [group_id for group_id in found if group_id not in there]):
        error = error or _no_group(admin, missing)
    ends = _ends(admin, {*chain.from_iterable(_partitions_of(there[each], offsets[each]) for each in there)})
    shown = [_as_dict(group, offsets[group_id], ends) for group_id, group in there.items()]
    if arguments.json:
        print_json(shown)
    else:
        _print_groups(shown, with_members=arguments.members)
        if not shown and error is None:
            print_note("there are no groups")
    if error is not None:
        raise error


def _print_groups(shown: Iterable[dict[str, Any]], *, with_members: bool) -> None:
    for number, group in enumerate(shown):
        if number:
            print()
        protocol = f", {group['protocol']}" if group["protocol"] else ""
        print(f"{group['group']}  {group['state']}, {counted(len(group['members']), 'member')}{protocol}")
        if with_members:
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


def _descriptions(
    admin: AdminClient, group_ids: Sequence[str]
) -> tuple[dict[str, GroupDescription], KbrokerError | None]:
    """Return the descriptions of the groups that can be described, and the error of the others, if any."""
    try:
        found, error = admin.describe_groups(group_ids), None
    except PartialFailure as failure:
        found, error = failure.results, failure
    return {group_id: found[group_id] for group_id in dict.fromkeys(group_ids) if group_id in found}, error


def _no_group(admin: AdminClient, missing: Sequence[str]) -> KbrokerError:
    known = [each.group_id for each in admin.list_groups()]
    like = [found for group_id in missing if (found := nearest(group_id, known))]
    advice = f"; did you mean {', '.join(dict.fromkeys(like))}?" if like else ""
    return KbrokerError(f"there is no group {', '.join(map(repr, missing))}{advice}")


def _owners(group: GroupDescription) -> dict[TopicPartition, MemberDescription]:
    return {partition: member for member in group.members for partition in member.partitions}


def _partitions_of(group: GroupDescription, offsets: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Return the partitions that the group has offsets for, or that its members read."""
    return sorted({*offsets, *_owners(group)})


def _ends(admin: AdminClient, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end offsets of the partitions that exist and have a leader."""
    topics = {each.topic for each in partitions}.intersection(admin.list_topics(internal=True))
    led = set(led_partitions(described_and_error(admin, sorted(topics))[0].values())) if topics else set()
    return end_offsets(admin, sorted(led.intersection(partitions)))


def _as_dict(
    group: GroupDescription, offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[str, Any]:
    owners = _owners(group)
    rows = []
    for partition in _partitions_of(group, offsets):
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
        "group": group.group_id,
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
    """Return the offsets that the group has committed."""
    found: Mapping[TopicPartition, OffsetAndMetadata] = admin.committed(group_id)
    return {partition: each.offset for partition, each in found.items() if each.offset >= 0}


def _reset(admin: AdminClient, arguments: argparse.Namespace) -> None:
    group_id = arguments.group
    state = admin.describe_group(group_id).state
    if state not in EMPTY_STATES:
        raise KbrokerError(f"group {group_id!r} is {state}: stop its members first")
    committed = _committed(admin, group_id)
    if state in GONE_STATES and not committed and not arguments.new_group:
        raise KbrokerError(f"{_no_group(admin, [group_id])}; --new-group makes it")
    if arguments.all_topics:
        partitions = sorted(committed)
    else:
        partitions = chosen_partitions(admin, arguments.topic)
    if not partitions:
        raise KbrokerError(f"group {group_id!r} has no offsets to move")
    targets = _targets(admin, arguments, partitions, committed)
    if arguments.execute:
        admin.alter_offsets(group_id, {partition: target.offset for partition, target in targets.items()})
    if arguments.json:
        print_json(
            [
                {
                    "topic": partition.topic,
                    "partition": partition.partition_id,
                    "offset": committed.get(partition),
                    "new_offset": target.offset,
                    "note": target.note or None,
                }
                for partition, target in targets.items()
            ]
        )
    else:
        print_table(
            ["topic", "partition", "offset", "new offset", "note"],
            ([*partition, committed.get(partition), *target] for partition, target in targets.items()),
        )
    if arguments.execute:
        print_note(f"group {group_id!r} has these offsets now")
    elif not arguments.dry_run:
        remind_of_execute()


def _targets(
    admin: AdminClient,
    arguments: argparse.Namespace,
    partitions: list[TopicPartition],
    committed: dict[TopicPartition, int],
) -> dict[TopicPartition, Target]:
    """Return where each partition's offset is moved to. Raises KbrokerError if there is no offset to shift."""
    if arguments.to_earliest:
        return {partition: Target(offset) for partition, offset in first_offsets(admin, partitions).items()}
    bounds = Bounds(admin, partitions)
    if arguments.to_latest:
        return {partition: Target(offset) for partition, offset in bounds.ends.items()}
    if arguments.to_time is not None:
        return bounds.at_time(arguments.to_time)
    wanted: dict[TopicPartition, Target] = {}
    for partition in partitions:
        if arguments.to_offset is not None:
            offset = arguments.to_offset
        elif partition in committed:
            offset = committed[partition] + arguments.shift_by
        else:
            raise KbrokerError(f"the group has no offset of {partition} to shift")
        wanted[partition] = bounds.within(partition, offset)
    return wanted


def _delete_offsets(admin: AdminClient, arguments: argparse.Namespace) -> None:
    """Delete a group's offsets, also those of topics that do not exist any more."""
    committed = _committed(admin, arguments.group)
    deleted = 0
    for topic, wanted in arguments.topic:
        chosen = [each for each in committed if each.topic == topic and (wanted is None or each.partition_id in wanted)]
        if not chosen:
            raise KbrokerError(f"group {arguments.group!r} has no offsets there of topic {topic!r}")
        admin.delete_offsets(arguments.group, chosen)
        deleted += len(chosen)
    print_note(f"deleted {counted(deleted, 'offset')} of group {arguments.group!r}")


def _delete(admin: AdminClient, arguments: argparse.Namespace) -> None:
    """Try to delete every group, then raise the first error."""
    errors: dict[str, BrokerError] = {}
    for group_id in arguments.group:
        try:
            admin.delete_group(group_id)
        except BrokerError as error:
            errors[group_id] = error
        else:
            print_note(f"deleted group {group_id!r}")
    missing = [group_id for group_id, error in errors.items() if error.code == ErrorCode.GROUP_ID_NOT_FOUND]
    if errors:
        group_id, why = next(iter(errors.items()))
        raise _no_group(admin, missing) if group_id in missing else why
