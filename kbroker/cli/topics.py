"""List, create, describe, alter and delete topics."""

from __future__ import annotations

import argparse
from typing import Any

from kbroker.cli import arguments as args
from kbroker.cli.output import print_json, print_table
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.net.blocking_client import BlockingClient, raise_for
from kbroker.protocol import messages as M

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
        args.add_bootstrap(action)
    args.add_json(listing)
    args.add_json(describing)


def run(arguments: argparse.Namespace) -> int:
    actions = {"list": _list, "create": _create, "describe": _describe, "delete": _delete, "alter": _alter}
    with args.connect(arguments) as client:
        actions[arguments.action](client, arguments)
    return 0


def _list(client: BlockingClient, arguments: argparse.Namespace) -> None:
    topics = client.metadata(None).topics
    names = sorted(topic.name for topic in topics if arguments.internal or not topic.is_internal)
    if arguments.json:
        print_json(names)
    else:
        for name in names:
            print(name)


def _create(client: BlockingClient, arguments: argparse.Namespace) -> None:
    request = M.CreateTopicsRequest
    configs = [request.CreatableTopicConfig(name=name, value=value) for name, value in arguments.config]
    answer = client.call_controller(
        request(
            topics=[
                request.CreatableTopic(
                    name=name,
                    num_partitions=arguments.partitions,
                    replication_factor=arguments.replication_factor,
                    configs=configs,
                )
                for name in arguments.topic
            ],
            timeout_ms=int(arguments.timeout * 1000),
        )
    )
    for topic in answer.topics:
        if topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and arguments.if_not_exists:
            continue
        raise_for(topic.error_code, topic.error_message, f"topic {topic.name!r}")


def _delete(client: BlockingClient, arguments: argparse.Namespace) -> None:
    answer = client.call_controller(
        M.DeleteTopicsRequest(topic_names=arguments.topic, timeout_ms=int(arguments.timeout * 1000))
    )
    for topic in answer.responses:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and arguments.if_exists:
            continue
        raise_for(topic.error_code, topic.error_message, f"topic {topic.name!r}")


def _alter(client: BlockingClient, arguments: argparse.Namespace) -> None:
    request = M.CreatePartitionsRequest
    topic = request.CreatePartitionsTopic(name=arguments.topic, count=arguments.partitions, assignments=None)
    answer = client.call_controller(request(topics=[topic], timeout_ms=int(arguments.timeout * 1000)))
    for result in answer.results:
        raise_for(result.error_code, result.error_message, f"topic {result.name!r}")


def _describe(client: BlockingClient, arguments: argparse.Namespace) -> None:
    answer = client.metadata(arguments.topic or None)
    topics = [topic for topic in answer.topics if arguments.topic or not topic.is_internal]
    for topic in topics:
        raise_for(topic.error_code, None, f"topic {topic.name!r}")
    configs = topic_configs(client, [topic.name for topic in topics])
    described = [_as_dict(topic, configs[topic.name]) for topic in sorted(topics, key=lambda topic: str(topic.name))]
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


def topic_configs(client: BlockingClient, topics: list[str]) -> dict[str, dict[str, str | None]]:
    """For each topic the settings of its own: name -> value."""
    if not topics:
        return {}
    request = M.DescribeConfigsRequest
    resources = [
        request.DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None)
        for topic in topics
    ]
    found: dict[str, dict[str, str | None]] = {}
    for result in client.call(request(resources=resources)).results:
        raise_for(result.error_code, result.error_message, f"topic {result.resource_name!r}")
        # Source 1: set on the topic itself (KIP-226).
        found[result.resource_name] = {c.name: c.value for c in result.configs if c.config_source == 1}
    missing = set(topics) - set(found)
    if missing:
        raise KbrokerError(f"the broker did not describe {', '.join(sorted(missing))}")
    return found


def _as_dict(topic: Any, configs: dict[str, str | None]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "internal": topic.is_internal,
        "configs": configs,
        "partitions": [
            {
                "partition": partition.partition_index,
                "leader": partition.leader_id,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replica_nodes,
                "isr": partition.isr_nodes,
            }
            for partition in sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
        ],
    }


def _words(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
