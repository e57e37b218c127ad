"""List and describe transactions and producers, find transactions that hang and abort them (KIP-664).

A transaction hangs when its coordinator does not know of it, or not of a partition that it has written to: no marker
will come, and readers of committed messages wait in that partition for ever.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kbroker.cli import arguments as args
from kbroker.cli.output import print_json, print_table
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import TopicPartition
from kbroker.net.blocking_client import BlockingClient, raise_for
from kbroker.protocol import messages as M
from kbroker.rules.transaction import TransactionState

EXAMPLES = """examples:
  kbroker transactions list --state Ongoing
  kbroker transactions describe orders-1
  kbroker transactions describe-producers --topic views --partition 0
  kbroker transactions find-hanging --topic views
  kbroker transactions abort --topic views --partition 0 --start-offset 4711
"""

AT_ONCE = 500  #: partitions or ids in a request
NO_OFFSET, NO_TIME = -1, -1
MINUTE_MS = 60_000
ENDED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class Open(NamedTuple):
    """A transaction that is open in one partition."""

    partition: TopicPartition
    producer: Any


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
        args.add_bootstrap(action)
    for action in (listing, describing, producers, finding):
        args.add_json(action)


def _connect(arguments: argparse.Namespace) -> BlockingClient:
    address = arguments.bootstrap_server or args.DEFAULT_BOOTSTRAP
    return BlockingClient(address, client_id="kbroker-cli", timeout_s=arguments.timeout)


def run(arguments: argparse.Namespace) -> int:
    actions = {
        "list": _list,
        "describe": _describe,
        "describe-producers": _describe_producers,
        "abort": _abort,
        "find-hanging": _find_hanging,
    }
    with _connect(arguments) as client:
        actions[arguments.action](client, arguments)
    return 0


# --- what coordinators know ------------------------------------------------------------------------------
def _list(client: BlockingClient, arguments: argparse.Namespace) -> None:
    asked = M.ListTransactionsRequest(state_filters=arguments.state, producer_id_filters=arguments.producer_id)
    if arguments.running_longer_than is not None:
        asked.duration_filter = arguments.running_longer_than
    listed = [
        {
            "transactional_id": one.transactional_id,
            "coordinator": node_id,
            "producer_id": one.producer_id,
            "state": one.transaction_state,
        }
        for node_id, one in _listed(client, asked)
    ]
    listed.sort(key=lambda one: str(one["transactional_id"]))
    if arguments.json:
        print_json(listed)
    else:
        print_table(["transactional id", "coordinator", "producer id", "state"], ([*one.values()] for one in listed))


def _listed(client: BlockingClient, asked: M.ListTransactionsRequest) -> Iterator[tuple[int, Any]]:
    """What every broker coordinates, with its node id."""
    for broker in client.metadata([]).brokers:

        def attempt(node_id: int = broker.node_id) -> Any:
            answer = client.call(asked, node_id)
            raise_for(answer.error_code, None, f"broker {node_id}")
            return answer

        answer = client.retried(attempt)
        if answer.unknown_state_filters:
            raise KbrokerError(f"broker {broker.node_id} knows no state {', '.join(answer.unknown_state_filters)}")
        for one in answer.transaction_states:
            yield broker.node_id, one


def _describe(client: BlockingClient, arguments: argparse.Namespace) -> None:
    described = []
    for transactional_id in arguments.transactional_id:
        coordinator, found = _described(client, transactional_id)
        began_ms = found.transaction_start_time_ms
        is_open = began_ms != NO_TIME and found.transaction_state not in ENDED
        described.append(
            {
                "transactional_id": transactional_id,
                "coordinator": coordinator,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "state": found.transaction_state,
                "timeout_ms": found.transaction_timeout_ms,
                "start_time_ms": None if began_ms == NO_TIME else began_ms,
                "duration_ms": _now_ms() - began_ms if is_open else None,
                "partitions": [str(partition) for partition in sorted(_partitions(found))],
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


def _described(client: BlockingClient, transactional_id: str) -> tuple[int, Any]:
    """The coordinator, and what it knows. ProtocolError with TRANSACTIONAL_ID_NOT_FOUND when that is nothing."""

    def attempt() -> tuple[int, Any]:
        coordinator = client.transaction_coordinator(transactional_id)
        (found,) = client.call(
            M.DescribeTransactionsRequest(transactional_ids=[transactional_id]), coordinator
        ).transaction_states
        raise_for(found.error_code, None, f"transactional id {transactional_id!r}")
        return coordinator, found

    return client.retried(attempt)


def _partitions(described: Any) -> set[TopicPartition]:
    return {TopicPartition(topic.topic, partition) for topic in described.topics for partition in topic.partitions}


# --- what partitions know --------------------------------------------------------------------------------
def _describe_producers(client: BlockingClient, arguments: argparse.Namespace) -> None:
    partition = TopicPartition(arguments.topic, arguments.partition)
    producers = _producers(client, [partition], arguments.broker_id)[partition]
    listed = [
        {
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "coordinator_epoch": one.coordinator_epoch,
            "last_sequence": one.last_sequence,
            "last_timestamp": one.last_timestamp,
            "current_transaction_start_offset": _known(one.current_txn_start_offset),
        }
        for one in sorted(producers, key=lambda one: int(one.producer_id))
    ]
    if arguments.json:
        print_json(listed)
        return
    heads = ["producer id", "epoch", "coordinator epoch", "last sequence", "last timestamp", "open since offset"]
    print_table(heads, ([*one.values()] for one in listed))


def _producers(
    client: BlockingClient, partitions: Sequence[TopicPartition], node_id: int | None = None
) -> dict[TopicPartition, list[Any]]:
    """What each partition's leader, or broker `node_id`, knows of its producers."""

    def attempt() -> dict[TopicPartition, list[Any]]:
        asked = _by_leader(client, partitions) if node_id is None else {node_id: partitions}
        found: dict[TopicPartition, list[Any]] = {}
        for broker_id, led in asked.items():
            for first in range(0, len(led), AT_ONCE):
                found |= _producers_of_broker(client, broker_id, led[first : first + AT_ONCE])
        return found

    return client.retried(attempt)


def _producers_of_broker(
    client: BlockingClient, node_id: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[Any]]:
    topics: dict[str, list[int]] = {}
    for topic, partition_id in partitions:
        topics.setdefault(topic, []).append(partition_id)
    request = M.DescribeProducersRequest
    wanted = [request.TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
    found = {}
    for topic in client.call(request(topics=wanted), node_id).topics:
        for one in topic.partitions:
            partition = TopicPartition(topic.name, one.partition_index)
            raise_for(one.error_code, one.error_message, str(partition))
            found[partition] = list(one.active_producers)
    return found


# --- transactions that hang ------------------------------------------------------------------------------
def _find_hanging(client: BlockingClient, arguments: argparse.Namespace) -> None:
    if arguments.partition is not None and arguments.topic is None:
        raise KbrokerError("--partition is one of a topic: say which with --topic")
    oldest_ms = _now_ms() - arguments.max_transaction_timeout * MINUTE_MS
    candidates = [
        Open(partition, producer)
        for partition, producers in _producers(client, _searched(client, arguments), arguments.broker_id).items()
        for producer in producers
        if producer.current_txn_start_offset != NO_OFFSET and producer.last_timestamp < oldest_ms
    ]
    hanging = [
        {
            "topic": one.partition.topic,
            "partition": one.partition.partition_id,
            "producer_id": one.producer.producer_id,
            "producer_epoch": one.producer.producer_epoch,
            "coordinator_epoch": one.producer.coordinator_epoch,
            "start_offset": one.producer.current_txn_start_offset,
            "last_timestamp": one.producer.last_timestamp,
            "minutes": (_now_ms() - one.producer.last_timestamp) // MINUTE_MS,
        }
        for one in sorted(_without_a_coordinator(client, candidates), key=lambda one: one.partition)
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


def _searched(client: BlockingClient, arguments: argparse.Namespace) -> list[TopicPartition]:
    """The partitions to look at; those that have no leader now are left out unless they were asked for."""
    if arguments.partition is not None:
        return [TopicPartition(arguments.topic, arguments.partition)]
    if arguments.broker_id is not None:
        client.connection(arguments.broker_id)  # an error where there is no such broker
    topics = client.metadata(None if arguments.topic is None else [arguments.topic]).topics
    searched = []
    for topic in topics:
        raise_for(topic.error_code, None, f"topic {topic.name!r}")
        searched += [
            TopicPartition(topic.name, one.partition_index)
            for one in topic.partitions
            if (one.leader_id >= 0 if arguments.broker_id is None else arguments.broker_id in one.replica_nodes)
        ]
    return searched


def _without_a_coordinator(client: BlockingClient, candidates: Sequence[Open]) -> list[Open]:
    """Those that no coordinator has on its list of partitions to write markers to."""
    producer_ids = sorted({one.producer.producer_id for one in candidates})
    ids: dict[int, str] = {}
    for first in range(0, len(producer_ids), AT_ONCE):
        asked = M.ListTransactionsRequest(producer_id_filters=producer_ids[first : first + AT_ONCE])
        ids |= {one.producer_id: one.transactional_id for _, one in _listed(client, asked)}
    awaited: dict[int, set[TopicPartition]] = {}
    for producer_id, transactional_id in ids.items():
        try:
            awaited[producer_id] = _partitions(_described(client, transactional_id)[1])
        except ProtocolError as error:
            if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
    return [one for one in candidates if one.partition not in awaited.get(one.producer.producer_id, ())]


def _abort(client: BlockingClient, arguments: argparse.Namespace) -> None:
    partition = TopicPartition(arguments.topic, arguments.partition)
    if arguments.start_offset is not None:
        found = [
            one for one in _producers(client, [partition])[partition]
            if one.current_txn_start_offset == arguments.start_offset
        ]  # fmt: skip
        if not found:
            raise KbrokerError(f"{partition} has no open transaction that begins at offset {arguments.start_offset}")
        producer = (found[0].producer_id, found[0].producer_epoch, found[0].coordinator_epoch)
    else:
        producer = (arguments.producer_id, arguments.producer_epoch, arguments.coordinator_epoch)
        if None in producer:
            raise KbrokerError(
                "say which transaction: with --start-offset, or with --producer-id, --producer-epoch and "
                "--coordinator-epoch"
            )
    _write_abort_marker(client, partition, *producer)
    print(f"aborted the transaction of producer {producer[0]} in {partition}")


def _write_abort_marker(
    client: BlockingClient, partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    request = M.WriteTxnMarkersRequest
    marker = request.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[request.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition_id])],
        # Of a producer whose first transaction hangs the partition knows no coordinator; 0 is above none that there is.
        coordinator_epoch=max(coordinator_epoch, 0),
    )

    def attempt() -> None:
        (node_id,) = _by_leader(client, [partition])
        for of_producer in client.call(request(markers=[marker]), node_id).markers:
            for topic in of_producer.topics:
                for one in topic.partitions:
                    raise_for(one.error_code, None, str(partition))

    client.retried(attempt)


def _known(offset: int) -> int | None:
    return None if offset == NO_OFFSET else offset


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _by_leader(client: BlockingClient, partitions: Sequence[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """`partitions` by the node that leads them. ProtocolError for one that does not exist."""
    by_leader: dict[int, list[TopicPartition]] = {}
    leaders = {topic: client.leaders(topic) for topic in {partition.topic for partition in partitions}}
    for partition in partitions:
        node_id = leaders[partition.topic].get(partition.partition_id)
        if node_id is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")
        by_leader.setdefault(node_id, []).append(partition)
    return by_leader
