"""List, create, describe, alter and delete topics."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kbroker.cli import arguments as args
from kbroker.cli.client_options import add_cluster, connect
from kbroker.cli.output import print_json, print_table
from kbroker.client.admin import AdminClient
from kbroker.client.admin_results import ConfigEntry, TopicDescription
from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode

EXAMPLES = """examples:
  kbroker topics list
  kbroker topics create views --partitions 4 --config retention.ms=86400000
  kbroker topics describe views --json
  kbroker topics alter views --partitions 8
  kbroker topics delete views
"""


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
    describing = actions.add_parser("describe", help="partitions, leaders and settings")
    describing.add_argument("topic", nargs="*", help="default: all but internal ones")
    deleting = actions.add_parser("delete", help="delete topics and their messages")
    deleting.add_argument("topic", nargs="+")
    deleting.add_argument("--if-exists", action="store_true", help="no error for topics that do not exist")
    altering = actions.add_parser("alter", help="add partitions (settings: kbroker configs)")
    altering.add_argument("topic")
    altering.add_argument("-p", "--partitions", type=args.positive, required=True, help="how many there are then")
    for action in (listing, creating, describing, deleting, altering):
        add_cluster(action)
    args.add_json(listing)
    args.add_json(describing)


def run(arguments: argparse.Namespace) -> int:
    actions = {"list": _list, "create": _create, "describe": _describe, "delete": _delete, "alter": _alter}
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
    def create(name: str) -> None:
        admin.create_topic(name, arguments.partitions, arguments.replication_factor, dict(arguments.config))

    _each(arguments.topic, create, ErrorCode.TOPIC_ALREADY_EXISTS if arguments.if_not_exists else None)


def _delete(admin: AdminClient, arguments: argparse.Namespace) -> None:
    _each(
        arguments.topic,
        lambda name: admin.delete_topics([name]),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if arguments.if_exists else None,
    )


def _each(names: Iterable[str], do: Callable[[str], None], forgiven: ErrorCode | None) -> None:
    """All of them, whatever becomes of one; then the first error that is not forgiven is raised."""
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
    admin.create_partitions(arguments.topic, arguments.partitions)


def _describe(admin: AdminClient, arguments: argparse.Namespace) -> None:
    names = arguments.topic or admin.list_topics()
    topics = admin.describe_topics(names)
    configs = admin.describe_topic_configs(names)
    described = [_as_dict(topic, configs[name]) for name, topic in sorted(topics.items())]
    if arguments.json:
        print_json(described)
        return
    for number, topic in enumerate(described):
        if number:
            print()
        given = ", ".join(f"{name}={value}" for name, value in topic["configs"].items())
        print(f"{topic['name']}  {len(topic['partitions'])} partitions{'  ' + given if given else ''}")
        print_table(
            ["partition", "leader", "epoch", "replicas", "isr"],
            (
                [p["partition"], p["leader"], p["leader_epoch"], _words(p["replicas"]), _words(p["isr"])]
                for p in topic["partitions"]
            ),
        )


def _as_dict(topic: TopicDescription, configs: Mapping[str, ConfigEntry]) -> dict[str, Any]:
    """With the settings of its own only."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "internal": topic.is_internal,
        "configs": {each.name: each.value for each in configs.values() if each.source == "DYNAMIC_TOPIC_CONFIG"},
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.in_sync),
            }
            for partition in topic.partitions
        ],
    }


def _words(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
