"""`kbroker verify-log --replicas`: compares the replicas of partitions, on running brokers or in directories."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from kbroker.cli.client_options import add_cluster, connect
from kbroker.cli.outcome import FAILED
from kbroker.cli.output import counted
from kbroker.cli.topic_facts import chosen_partitions, described, topic_partitions
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.errors import ClientError
from kbroker.inspection.replica_check import Difference, Replica, compare, replica_on, replicas_in
from kbroker.model import TopicPartition

CLEANUP = "cleanup.policy"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replicas",
        action="store_true",
        help="compare what all replicas of a partition have below the high watermark, byte by byte: in log directories "
        "of stopped brokers if these are given, else on running brokers (TOPIC[:PARTITIONS]; default: all topics)",
    )
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    paths = [Path(each) for each in arguments.path]
    if paths and all(each.is_dir() for each in paths):
        found = _in_directories(paths, compacted=arguments.compacted)
    else:
        found = _on_brokers(arguments)
    differences = 0
    for each in found:
        differences += 1
        if arguments.json:
            print(json.dumps({**each._asdict(), "partition": str(each.partition)}))
        else:
            print(each)
    return FAILED if differences else 0


def _in_directories(paths: list[Path], *, compacted: bool) -> Iterator[Difference]:
    found = replicas_in(paths)
    for partition, replicas in sorted(found.items()):
        yield from compare(partition, replicas, compacted=compacted)
    _tell(sum(len(each) > 1 for each in found.values()))


def _on_brokers(arguments: argparse.Namespace) -> Iterator[Difference]:
    with connect(arguments) as admin:
        chosen = [topic_partitions(each) for each in arguments.path]
        names = list(dict.fromkeys(name for name, _ in chosen)) or admin.list_topics(internal=True)
        wanted = set(chosen_partitions(admin, chosen)) if chosen else None
        configs = admin.describe_topic_configs(names) if names else {}
        count = 0
        for topic in described(admin, names).values():
            policy = configs[topic.name].get(CLEANUP)
            compacted = policy is not None and "compact" in (policy.value or "")
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition)
                if wanted is None or partition in wanted:
                    replicas, errors = _replicas_on(admin, partition, each.replicas)
                    yield from errors
                    count += len(replicas) > 1
                    yield from compare(partition, replicas, compacted=compacted)
    _tell(count)


def _replicas_on(
    admin: AdminClient, partition: TopicPartition, node_ids: tuple[int, ...]
) -> tuple[Mapping[str, Replica], list[Difference]]:
    """Return the replicas that can be read, and what keeps the others from being read."""
    replicas: dict[str, Replica] = {}
    errors: list[Difference] = []
    for node_id in node_ids:
        try:
            replicas[f"broker {node_id}"] = replica_on(admin, partition, node_id)
        except ClientError as error:
            errors.append(Difference(partition, f"broker {node_id}", None, f"it cannot be read: {error}"))
    return replicas, errors


def _tell(count: int) -> None:
    print(f"kbroker: {counted(count, 'partition')} with more than one replica compared", file=sys.stderr)
