"""List and describe transactions and producers, find transactions that hang and abort them (KIP-664).

A transaction hangs in a partition if its coordinator does not know the transaction, or does not know that it has
written to the partition: no marker will come, and readers of committed messages wait in that partition for ever.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kbroker.cli import arguments as args
from kbroker.cli.client_options import add_cluster, connect
from kbroker.cli.output import print_json, print_table
from kbroker.cli.topic_facts import described as described_topics
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import ProducerState
from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import TopicPartition
from kbroker.rules.transaction import TransactionState

EXAMPLES = """examples:
  kbroker transactions list --state Ongoing
  kbroker transactions describe orders-1
  kbroker transactions describe-producers --topic views --partition 0
  kbroker transactions find-hanging --topic views
  kbroker transactions abort --topic views --partition 0 --start-offset 4711
"""

NO_OFFSET, NO_TIME = -1, -1
MINUTE_MS = 60_000
ENDED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class Open(NamedTuple):
    """A transaction that is open in one partition."""

    partition: TopicPartition
    producer: ProducerState


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all transactional ids and their states")
    states = tuple(state.value for state in TransactionState)
    listing.add_argument(
        "--state", action="append", default=[], choices=states, metavar="STATE", help=f"only these: {', '.join(states)}"
    )
    listing.add_argument(
        "--producer-id", type=int, action="append", default=[], metavar="N", help="only of this producer"
    )
    listing.add_argument("--running-longer-than", type=args.positive, metavar="MS", help="only what is open for longer")
    describing = actions.add_parser("describe", help="producer, state and partitions")
    describing.add_argument("transactional_id", nargs="+", metavar="TRANSACTIONAL_ID")
    producers = actions.add_parser("describe-producers", help="the producers that a partition knows")
    aborting = actions.add_parser("abort", help="abort a transaction that hangs, in one partition")
    for action in (producers, aborting):
        action.add_argument("--topic", required=True)
        action.add_argument("--partition", type=int, required=True, metavar="N")
    aborting.add_argument("--start-offset", type=int, metavar="N", help="where the transaction begins")
    older = aborting.add_argument_group("of brokers before Kafka 3.0, which cannot be asked for producers")
    older.add_argument("--producer-id", type=int, metavar="N")
    older.add_argument("--producer-epoch", type=int, metavar="N")
    older.add_argument("--coordinator-epoch", type=int, metavar="N")
    finding = actions.add_parser("find-hanging", help="transactions that no coordinator will end")
    finding.add_argument("--topic", help="only in this topic")
    finding.add_argument("--partition", type=int, metavar="N", help="only in this partition of it")
    finding.add_argument(
        "--max-transaction-timeout",
        type=args.positive,
        default=15,
        metavar="MINUTES",
        help="the longest that transactions may be open here: younger ones are not looked at (default %(default)s)",
    )
    for action in (producers, finding):
        action.add_argument("--broker-id", type=int, metavar="N", help="ask this broker, instead of the leaders")
    for action in (listing, describing, producers, aborting, finding):
        add_cluster(action)
    for action in (listing, describing, producers, finding):
        args.add_json(action)


def run(arguments: argparse.Namespace) -> int:
    actions = {
        "list": _list,
        "describe": _describe,
        "describe-producers": _describe_producers,
        "abort": _abort,
        "find-hanging": _find_hanging,
    }
    with connect(arguments) as admin:
        actions[arguments.action](admin, arguments)
    return 0


# --- what coordinators know ------------------------------------------------------------------------------
def _list(admin: AdminClient, arguments: argparse.Namespace) -> None:
    older_than_ms = -1 if arguments.running_longer_than is None else arguments.running_longer_than
    listed: list[dict[str, Any]] = [
        {
            "transactional_id": one.transactional_id,
            "coordinator": one.coordinator,
            "producer_id": one.producer_id,
            "state": one.state,
        }
        for one in admin.list_transactions(
            arguments.state, producer_ids=arguments.producer_id, older_than_ms=older_than_ms
        )
    ]
    if arguments.json:
        print_json(listed)
    else:
        print_table(["transactional id", "coordinator", "producer id", "state"], ([*one.values()] for one in listed))


def _describe(admin: AdminClient, arguments: argparse.Namespace) -> None:
    described: list[dict[str, Any]] = []
    by_id = admin.describe_transactions(arguments.transactional_id)
    for found in (by_id[transactional_id] for transactional_id in arguments.transactional_id):
        is_open = found.started_ms != NO_TIME and found.state not in ENDED
        described.append(
            {
                "transactional_id": found.transactional_id,
                "coordinator": found.coordinator,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "state": found.state,
                "timeout_ms": found.timeout_ms,
                "start_time_ms": None if found.started_ms == NO_TIME else found.started_ms,
                "duration_ms": _now_ms() - found.started_ms if is_open else None,
                "partitions": [str(partition) for partition in sorted(found.partitions)],
            }
        )
    if arguments.json:
        print_json(described)
        return
    for number, one in enumerate(described):
        if number:
            print()
        word = "open since" if one["duration_ms"] is not None else "began"
        began = "" if one["start_time_ms"] is None else f", {word} {_moment(one['start_time_ms'])}"
        print(
            f"{one['transactional_id']}  {one['state']}, producer {one['producer_id']} epoch {one['producer_epoch']}, "
            f"coordinator {one['coordinator']}, timeout {one['timeout_ms']} ms{began}"
        )
        for partition in one["partitions"]:
            print(f"  {partition}")


# --- what partitions know --------------------------------------------------------------------------------
def _describe_producers(admin: AdminClient, arguments: argparse.Namespace) -> None:
    partition = _partition(admin, arguments)
    producers = admin.describe_producers([partition], node_id=arguments.broker_id)[partition]
    listed: list[dict[str, Any]] = [
        {
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "coordinator_epoch": one.coordinator_epoch,
            "last_sequence": one.last_sequence,
            "last_timestamp": one.last_timestamp,
            "current_transaction_start_offset": None if one.transaction_start == NO_OFFSET else one.transaction_start,
        }
        for one in sorted(producers, key=lambda one: one.producer_id)
    ]
    if arguments.json:
        print_json(listed)
        return
    heads = ["producer id", "epoch", "coordinator epoch", "last sequence", "last timestamp", "open since offset"]
    print_table(heads, ([*one.values()] for one in listed))


def _partition(admin: AdminClient, arguments: argparse.Namespace) -> TopicPartition:
    """Return the partition of `--topic` and `--partition`. Raises KbrokerError if it does not exist."""
    topic = described_topics(admin, [arguments.topic])[arguments.topic]
    known = [each.partition for each in topic.partitions]
    args.require_known_partitions(arguments.topic, [arguments.partition], known)
    return TopicPartition(arguments.topic, arguments.partition)


# --- transactions that hang ------------------------------------------------------------------------------
def _find_hanging(admin: AdminClient, arguments: argparse.Namespace) -> None:
    if arguments.partition is not None and arguments.topic is None:
        raise KbrokerError("--partition is one of a topic: say which with --topic")
    oldest_ms = _now_ms() - arguments.max_transaction_timeout * MINUTE_MS
    known = admin.describe_producers(_searched(admin, arguments), node_id=arguments.broker_id)
    candidates = [
        Open(partition, producer)
        for partition, producers in known.items()
        for producer in producers
        if producer.transaction_start != NO_OFFSET and producer.last_timestamp < oldest_ms
    ]
    hanging: list[dict[str, Any]] = [
        {
            "topic": one.partition.topic,
            "partition": one.partition.partition_id,
            "producer_id": one.producer.producer_id,
            "producer_epoch": one.producer.producer_epoch,
            "coordinator_epoch": one.producer.coordinator_epoch,
            "start_offset": one.producer.transaction_start,
            "last_timestamp": one.producer.last_timestamp,
            "minutes": (_now_ms() - one.producer.last_timestamp) // MINUTE_MS,
        }
        for one in sorted(_without_a_coordinator(admin, candidates), key=lambda one: one.partition)
    ]
    if arguments.json:
        print_json(hanging)
        return
    heads = [
        "topic",
        "partition",
        "producer id",
        "epoch",
        "coordinator epoch",
        "start offset",
        "last timestamp",
        "minutes",
    ]
    print_table(heads, ([*one.values()] for one in hanging))


def _searched(admin: AdminClient, arguments: argparse.Namespace) -> list[TopicPartition]:
    """Return the partitions to search. A partition without a leader is left out, unless the user named it."""
    if arguments.partition is not None:
        return [_partition(admin, arguments)]
    if arguments.broker_id not in (None, *(broker.node_id for broker in admin.describe_cluster().brokers)):
        raise KbrokerError(f"broker {arguments.broker_id} is not in the cluster")
    names = admin.list_topics(internal=True) if arguments.topic is None else [arguments.topic]
    return [
        TopicPartition(name, each.partition)
        for name, topic in described_topics(admin, names).items()
        for each in topic.partitions
        if (each.leader >= 0 if arguments.broker_id is None else arguments.broker_id in each.replicas)
    ]


def _without_a_coordinator(admin: AdminClient, candidates: Sequence[Open]) -> list[Open]:
    """Return the open transactions whose partition no coordinator has on its list for markers."""
    if not candidates:
        return []
    awaited: dict[int, tuple[TopicPartition, ...]] = {}
    for one in admin.list_transactions(producer_ids={one.producer.producer_id for one in candidates}):
        try:
            awaited[one.producer_id] = admin.describe_transaction(one.transactional_id).partitions
        except BrokerError as error:
            if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
    return [one for one in candidates if one.partition not in awaited.get(one.producer.producer_id, ())]


def _abort(admin: AdminClient, arguments: argparse.Namespace) -> None:
    partition = _partition(admin, arguments)
    if arguments.start_offset is not None:
        found = [
            one for one in admin.describe_producers([partition])[partition]
            if one.transaction_start == arguments.start_offset
        ]  # fmt: skip
        if not found:
            raise KbrokerError(f"{partition} has no open transaction that begins at offset {arguments.start_offset}")
        producer = found[0]
    else:
        epochs = (arguments.producer_id, arguments.producer_epoch, arguments.coordinator_epoch)
        if None in epochs:
            raise KbrokerError(
                "say which transaction: with --start-offset, or with --producer-id, --producer-epoch and "
                "--coordinator-epoch"
            )
        producer = ProducerState(
            arguments.producer_id,
            arguments.producer_epoch,
            last_sequence=-1,
            last_timestamp=NO_TIME,
            coordinator_epoch=arguments.coordinator_epoch,
            transaction_start=NO_OFFSET,
        )
    admin.abort_transaction(partition, producer)
    print(f"aborted the transaction of producer {producer.producer_id} in {partition}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
