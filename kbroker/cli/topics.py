"""List, create, describe, alter, shorten and delete topics."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kbroker.cli import arguments as args
from kbroker.cli.client_options import add_cluster, connect
from kbroker.cli.known_settings import TOPIC, unknown_settings_named
from kbroker.cli.offset_plan import Bounds, Target
from kbroker.cli.output import counted, print_json, print_note, print_table, remind_of_execute
from kbroker.cli.progress import in_units
from kbroker.cli.replication_warnings import min_in_sync_of, print_warnings, replication_warnings
from kbroker.cli.topic_facts import (
    chosen_partitions,
    described_and_error,
    end_offsets,
    first_offsets,
    led_partitions,
    missing_topics_named,
    replica_sizes,
    topic_partitions,
    without_missing,
)
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import ConfigEntry, TopicDescription
from kbroker.client.errors import BrokerError, ClientError, PartialFailure
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import TopicPartition

EXAMPLES = """examples:
  kbroker topics list
  kbroker topics create views --partitions 4 --config retention.ms=86400000
  kbroker topics describe views --json
  kbroker topics alter views --partitions 8
  kbroker topics create views --replication-factor 3 --config min.insync.replicas=2
  kbroker topics delete views
  kbroker topics elect-leaders
  kbroker topics delete-records views:0,2 --before-offset 1000
  kbroker topics delete-records views --before-time 2026-01-31T12:00:00 --execute
"""
HEARD_WITHIN_S, ASK_AGAIN_S = 5.0, 0.1
"""How long a leader that was just elected is asked for, and the pause between two questions."""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="names of all topics")
    listing.add_argument("--internal", action="store_true", help="internal topics too")
    creating = actions.add_parser("create", help="create topics")
    creating.add_argument("topic", nargs="+")
    creating.add_argument(
        "-p", "--partitions", type=args.positive, default=-1, help="default: num.partitions of the broker"
    )
    creating.add_argument(
        "--replication-factor", type=args.positive, default=-1, help="default: default.replication.factor of the broker"
    )
    creating.add_argument(
        "-c",
        "--config",
        type=args.setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the topic",
    )
    creating.add_argument("--if-not-exists", action="store_true", help="no error for topics that exist")
    describing = actions.add_parser("describe", help="partitions with leaders, offsets and sizes, and settings")
    describing.add_argument("topic", nargs="*", help="default: all but internal ones")
    deleting = actions.add_parser("delete", help="delete topics and their messages")
    deleting.add_argument("topic", nargs="+")
    deleting.add_argument("--if-exists", action="store_true", help="no error for topics that do not exist")
    altering = actions.add_parser("alter", help="add partitions (settings: kbroker configs)")
    altering.add_argument("topic")
    altering.add_argument("-p", "--partitions", type=args.positive, required=True, help="how many there are then")
    shortening = actions.add_parser(
        "delete-records", help="show which messages at the beginning would go; with --execute delete them"
    )
    shortening.add_argument("topic", nargs="+", type=topic_partitions, metavar="TOPIC[:PARTITIONS]")
    before = shortening.add_mutually_exclusive_group(required=True)
    before.add_argument("--before-offset", type=int, metavar="N", help="what has a lower offset")
    before.add_argument(
        "--before-time", type=args.moment, metavar="TIME", help="what is before the first message of that time or later"
    )
    before.add_argument("--all", action="store_true", help="all that is there now")
    args.add_execution(shortening)
    electing = actions.add_parser("elect-leaders", help="make the preferred replicas the leaders of their partitions")
    electing.add_argument(
        "topic", nargs="*", type=topic_partitions, metavar="TOPIC[:PARTITIONS]", help="default: all, internal ones too"
    )
    electing.add_argument(
        "--unclean",
        action="store_true",
        help="where no replica in sync is alive, elect another: records that only those have are lost",
    )
    for action in (listing, creating, describing, deleting, altering, shortening, electing):
        add_cluster(action)
    for action in (listing, describing, shortening, electing):
        args.add_json(action)


def run(arguments: argparse.Namespace) -> int:
    actions = {
        "list": _list,
        "create": _create,
        "describe": _describe,
        "delete": _delete,
        "alter": _alter,
        "delete-records": _delete_records,
        "elect-leaders": _elect_leaders,
    }
    with connect(arguments) as admin:
        actions[arguments.action](admin, arguments)
    return 0


def _list(admin: AdminClient, arguments: argparse.Namespace) -> None:
    names = admin.list_topics(internal=arguments.internal)
    if arguments.json:
        print_json(names)
    else:
        for name in names:
            print(name)


def _create(admin: AdminClient, arguments: argparse.Namespace) -> None:
    created: list[str] = []

    def create(name: str) -> None:
        with unknown_settings_named(TOPIC, dict(arguments.config)):
            admin.create_topic(name, arguments.partitions, arguments.replication_factor, dict(arguments.config))
        print_note(f"created topic {name!r}")
        created.append(name)

    try:
        _each(arguments.topic, create, ErrorCode.TOPIC_ALREADY_EXISTS if arguments.if_not_exists else None)
    finally:
        _warn_of_few_replicas(admin, created)


def _warn_of_few_replicas(admin: AdminClient, created: Collection[str]) -> None:
    """Print warnings about topics, as far as the cluster tells what they have."""
    if not created:
        return
    try:
        topics = without_missing(lambda: admin.describe_topics(created)).values()
        brokers = len(admin.describe_cluster().brokers)
    except ClientError:
        return  # they are created, whatever happens now
    replicas = [(topic.name, len(each.replicas)) for topic in topics for each in topic.partitions]
    print_warnings(replication_warnings(replicas, min_in_sync_of(admin, created), brokers))


def _delete(admin: AdminClient, arguments: argparse.Namespace) -> None:
    def delete(name: str) -> None:
        admin.delete_topics([name])
        print_note(f"deleted topic {name!r}")

    with missing_topics_named(admin, arguments.topic):
        _each(arguments.topic, delete, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if arguments.if_exists else None)


def _each(names: Iterable[str], do: Callable[[str], None], forgiven: ErrorCode | None) -> None:
    """Call `do` for every name, then raise the first error that is not `forgiven`."""
    first: BrokerError | None = None
    for name in names:
        try:
            do(name)
        except BrokerError as error:
            if error.code != forgiven:
                first = first or error
    if first is not None:
        raise first


def _alter(admin: AdminClient, arguments: argparse.Namespace) -> None:
    with missing_topics_named(admin, [arguments.topic]):
        admin.create_partitions(arguments.topic, arguments.partitions)
    print_note(f"topic {arguments.topic!r} has {counted(arguments.partitions, 'partition')} now")


def _describe(admin: AdminClient, arguments: argparse.Namespace) -> None:
    names = list(dict.fromkeys(arguments.topic or admin.list_topics()))
    topics, error = described_and_error(admin, names) if names else ({}, None)
    configs = admin.describe_topic_configs(topics) if topics else {}
    facts = _Facts(admin, topics.values())
    error = error or facts.error
    shown = [_as_dict(topic, configs[name], facts) for name, topic in sorted(topics.items())]
    if arguments.json:
        print_json(shown)
    else:
        _print_topics(shown)
    if error is not None:
        raise error


def _print_topics(shown: Iterable[dict[str, Any]]) -> None:
    for number, topic in enumerate(shown):
        if number:
            print()
        words = [topic["name"], counted(len(topic["partitions"]), "partition")]
        if topic["messages"] is not None:
            words.append(counted(topic["messages"], "message"))
        if topic["size"] is not None:
            words.append(in_units(topic["size"]))
        if topic["configs"]:
            words.append(", ".join(f"{name}={value}" for name, value in topic["configs"].items()))
        print("  ".join(words))
        print_table(
            ["partition", "leader", "epoch", "replicas", "isr", "start", "end", "messages", "size"],
            (
                [
                    p["partition"],
                    p["leader"],
                    p["leader_epoch"],
                    _words(p["replicas"]),
                    _words(p["isr"]),
                    p["start_offset"],
                    p["end_offset"],
                    p["messages"],
                    None if p["size"] is None else in_units(p["size"]),
                ]
                for p in topic["partitions"]
            ),
        )


class _Facts:
    """Start and end offsets of partitions and sizes of replicas, as far as they are known.

    `error`: why some leaders do not tell; None if all do.
    """

    def __init__(self, admin: AdminClient, topics: Iterable[TopicDescription]):
        led = led_partitions(topics)
        self.error: PartialFailure | None = None
        try:
            self.starts = first_offsets(admin, led)
        except PartialFailure as error:
            self.error, led = error, list(error.results)
            self.starts = {partition: each.offset for partition, each in error.results.items()}
        self.ends = end_offsets(admin, led)
        self.sizes = replica_sizes(admin).sizes if led else {}


def _as_dict(topic: TopicDescription, configs: Mapping[str, ConfigEntry], facts: _Facts) -> dict[str, Any]:
    """Return a topic as JSON data, with only the settings that were set on it.

    `messages` is the end offset less the start offset: messages that compaction removed count, too.
    """
    partitions: list[dict[str, Any]] = []
    for each in topic.partitions:
        partition = TopicPartition(topic.name, each.partition)
        start, end = facts.starts.get(partition), facts.ends.get(partition)
        partitions.append(
            {
                "partition": each.partition,
                "leader": each.leader,
                "leader_epoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.in_sync),
                "start_offset": start,
                "end_offset": end,
                "messages": None if start is None or end is None else end - start,
                "size": facts.sizes.get((each.leader, partition)),
            }
        )
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "internal": topic.is_internal,
        "configs": {each.name: each.value for each in configs.values() if each.source == "DYNAMIC_TOPIC_CONFIG"},
        "messages": _sum(each["messages"] for each in partitions),
        "size": _sum(each["size"] for each in partitions),
        "partitions": partitions,
    }


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the numbers is unknown."""
    found = list(numbers)
    return None if None in found else sum(number for number in found if number is not None)


def _words(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _elect_leaders(admin: AdminClient, arguments: argparse.Namespace) -> None:
    chosen = chosen_partitions(admin, arguments.topic) if arguments.topic else None
    if arguments.unclean and chosen is None:
        raise KbrokerError("--unclean loses records: name the partitions, as in views:0,2")
    failure: PartialFailure | None = None
    try:
        elected = admin.elect_leaders(chosen, unclean=arguments.unclean)
    except PartialFailure as error:
        failure, elected = error, error.results
    changed = [at for at, has_changed in elected.items() if has_changed]
    leaders = _new_leaders(admin, changed, unclean=arguments.unclean)
    rows = [{"topic": at.topic, "partition": at.partition_id, "leader": leaders.get(at)} for at in sorted(changed)]
    if arguments.json:
        print_json(rows)
    elif rows:
        print_table(["topic", "partition", "new leader"], ([*row.values()] for row in rows))
    elif failure is None:
        print("every leader is the right one already")
    if failure is not None:
        raise failure


def _new_leaders(
    admin: AdminClient, changed: Collection[TopicPartition], *, unclean: bool
) -> dict[TopicPartition, int]:
    """Return the leaders of partitions after an election that has changed them.

    The broker that describes the partitions may not have heard of the election yet. A preferred leader is the first
    replica. Where another was elected, brokers are asked until one tells a leader; a partition of which none does
    within HEARD_WITHIN_S is left out.
    """
    deadline = time.monotonic() + HEARD_WITHIN_S
    while True:
        topics = admin.describe_topics({at.topic for at in changed}) if changed else {}
        told = {
            TopicPartition(topic.name, each.partition): each.leader if unclean else each.replicas[0]
            for topic in topics.values()
            for each in topic.partitions
        }
        leaders = {at: told[at] for at in changed if told.get(at, -1) >= 0}
        if len(leaders) == len(changed) or time.monotonic() > deadline:
            return leaders
        time.sleep(ASK_AGAIN_S)


def _delete_records(admin: AdminClient, arguments: argparse.Namespace) -> None:
    partitions = chosen_partitions(admin, arguments.topic)
    bounds = Bounds(admin, partitions)
    if arguments.all:
        targets = {partition: Target(offset) for partition, offset in bounds.ends.items()}
    elif arguments.before_time is not None:
        targets = bounds.at_time(arguments.before_time)
    else:
        targets = {partition: bounds.within(partition, arguments.before_offset) for partition in partitions}
    offsets = {partition: target.offset for partition, target in targets.items()}
    if arguments.execute:
        offsets |= admin.delete_records({at: offset for at, offset in offsets.items() if offset > bounds.starts[at]})
    rows: list[dict[str, Any]] = [
        {
            "topic": partition.topic,
            "partition": partition.partition_id,
            "start_offset": bounds.starts[partition],
            "end_offset": bounds.ends[partition],
            "new_start_offset": offsets[partition],
            "messages": max(0, offsets[partition] - bounds.starts[partition]),
            "note": target.note or None,
        }
        for partition, target in targets.items()
    ]
    if arguments.json:
        print_json(rows)
    else:
        heads = ["topic", "partition", "start", "end", "new start", "messages", "note"]
        print_table(heads, ([*row.values()] for row in rows))
    if arguments.execute:
        print_note(f"deleted {counted(sum(row['messages'] for row in rows), 'message')}")
    elif not arguments.dry_run:
        remind_of_execute()
