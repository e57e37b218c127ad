"""`kbroker verify-log --replicas`: compares the replicas of partitions, on running brokers or in directories."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Collection
from pathlib import Path

from kbroker.cli.client_options import add_cluster, connect, names_cluster
from kbroker.cli.outcome import FAILED
from kbroker.cli.output import counted
from kbroker.cli.topic_facts import chosen_partitions, topic_partitions, without_missing
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import PartitionDescription
from kbroker.client.errors import BrokerError
from kbroker.inspection.replica_check import NotCompared, Replica, Tally, compare, replica_on, replicas_in
from kbroker.inspection.replica_looks import Outcome, ReplicaLooks
from kbroker.model import TopicPartition

CLEANUP, RETENTION, MOST_BYTES = "cleanup.policy", "retention.ms", "retention.bytes"
CLOCKS_DIFFER_MS = 60_000
"""By how much the clocks of brokers may be ahead, where retention by time is computed."""
LOOK_AGAIN_S = 3.0
"""The pause before the second look. A follower asks its leader at least every half second (replica.fetch.wait.max.ms).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replicas",
        action="store_true",
        help="compare what all replicas of a partition have below the high watermark, byte by byte: in log directories "
        "of stopped brokers if these are given, else on running brokers (TOPIC[:PARTITIONS]; default: all topics). "
        "Where brokers are given too, a directory needs a slash: ./views",
    )
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    paths = [Path(each) for each in arguments.path]
    # A directory that happens to have a topic's name has no replicas: that all of them are the same would be said.
    may_be_topics = names_cluster(arguments) and not any(os.sep in each for each in arguments.path)
    if paths and not may_be_topics and all(each.is_dir() for each in paths):
        found = _in_directories(paths, compacted=arguments.compacted)
    else:
        found = _on_brokers(arguments)
    differences = 0
    for each in found:
        if isinstance(each, NotCompared):
            print(f"kbroker: {each}", file=sys.stderr)
            continue
        differences += 1
        if arguments.json:
            print(json.dumps({**each._asdict(), "partition": str(each.partition)}))
        else:
            print(each)
    return FAILED if differences else 0


def _in_directories(paths: list[Path], *, compacted: bool) -> Outcome:
    tally = Tally()
    for partition, replicas in sorted(replicas_in(paths).items()):
        yield from compare(partition, replicas, tally, compacted=compacted)
    _tell(tally)


def _on_brokers(arguments: argparse.Namespace) -> Outcome:
    with connect(arguments) as admin:
        chosen = [topic_partitions(each) for each in arguments.path]
        wanted = set(chosen_partitions(admin, chosen)) if chosen else None
        brokers = _Brokers(admin, [name for name, _ in chosen] or admin.list_topics(internal=True))
        looks = ReplicaLooks(brokers, brokers.is_compacted)
        for partition, described in brokers.describe(brokers.settings).items():
            if wanted is None or partition in wanted:
                yield from looks.first(partition, described)
        if looks.needs_second:
            time.sleep(LOOK_AGAIN_S)
            yield from looks.second()
    _tell(looks.tally)


class _Brokers:
    """The cluster that the command talks to. `settings`: of the topics that are looked at, by their names."""

    def __init__(self, admin: AdminClient, names: Collection[str]):
        self._admin = admin
        self.settings = without_missing(lambda: admin.describe_topic_configs(names)) if names else {}

    def describe(self, topics: Collection[str]) -> dict[TopicPartition, PartitionDescription]:
        found = without_missing(lambda: self._admin.describe_topics(topics)) if topics else {}
        return {
            TopicPartition(name, each.partition): each for name, topic in found.items() for each in topic.partitions
        }

    def replica(self, partition: TopicPartition, node_id: int) -> Replica:
        return replica_on(self._admin, partition, node_id)

    def log_end(self, partition: TopicPartition, node_id: int) -> int | None:
        try:
            return next(iter(self._admin.list_log_end_offsets([(*partition, node_id)]).values()))
        except BrokerError:
            return None

    def is_compacted(self, topic: str) -> bool:
        return "compact" in self._setting(topic, CLEANUP)

    def kept_from(self, partition: TopicPartition) -> int | None:
        if self.is_compacted(partition.topic) or int(self._setting(partition.topic, MOST_BYTES) or -1) >= 0:
            return None
        retention_ms = int(self._setting(partition.topic, RETENTION) or -1)
        if retention_ms < 0:
            return 0
        oldest_ms = int(time.time() * 1000) - retention_ms + CLOCKS_DIFFER_MS
        found = self._admin.list_offsets([partition], oldest_ms)[partition].offset
        return None if found < 0 else found

    def _setting(self, topic: str, name: str) -> str:
        found = self.settings.get(topic, {}).get(name)
        return found.value or "" if found is not None else ""


def _tell(tally: Tally) -> None:
    whole, in_part, none = tally.counts
    told = f"{counted(whole, 'partition')} with more than one replica compared"
    told += f", {in_part:,} in part" if in_part else ""
    told += f", {none:,} not at all" if none else ""
    print(f"kbroker: {told}", file=sys.stderr)
