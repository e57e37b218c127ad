"""Questions about topics and partitions that several commands ask a cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from kbroker.cli import arguments as args
from kbroker.client.admin.admin_client import EARLIEST, LATEST, AdminClient
from kbroker.client.admin.results import LogDirDescription, Reassignment, TopicDescription
from kbroker.client.errors import BrokerError, ClientError, PartialFailure
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import TopicPartition
from kbroker.rules.nearest import nearest

V = TypeVar("V")

Chosen = tuple[str, list[int] | None]
"""A topic and some of its partitions; None: all."""


def topic_partitions(text: str) -> Chosen:
    """Parse `TOPIC` or `TOPIC:0,2-4`, for argparse. Raises ArgumentTypeError."""
    topic, colon, partitions = text.partition(":")
    return topic, args.partition_list(partitions) if colon else None


def described(admin: AdminClient, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Return topics by name. Raises KbrokerError if one does not exist; the message suggests the nearest name."""
    found, error = described_and_error(admin, list(names))
    if error is not None:
        raise error
    return found


def described_and_error(
    admin: AdminClient, names: Sequence[str]
) -> tuple[dict[str, TopicDescription], KbrokerError | None]:
    """Return the topics that exist, and the error about those that do not; None if all exist."""
    try:
        return admin.describe_topics(names), None
    except BrokerError as error:
        found = dict(error.results) if isinstance(error, PartialFailure) else {}
        return found, _with_advice(admin, names, error)


def without_missing(ask: Callable[[], Mapping[str, V]]) -> Mapping[str, V]:
    """Return what `ask` returns about topics, without those that do not exist.

    A topic of a list may be deleted before it is asked for, or be so new that another broker does not know it yet.
    Raises the other errors of `ask`.
    """
    try:
        return ask()
    except BrokerError as error:
        if not _is_of_missing_topics(error):
            raise
        found: Mapping[str, V] = error.results if isinstance(error, PartialFailure) else {}
        return found


@contextmanager
def missing_topics_forgiven() -> Iterator[None]:
    """A context manager around work on topics: the error about a topic that does not exist is passed over."""
    try:
        yield
    except BrokerError as error:
        if not _is_of_missing_topics(error):
            raise


def _is_of_missing_topics(error: BrokerError) -> bool:
    codes = {each.code for each in error.errors.values()} if isinstance(error, PartialFailure) else {error.code}
    return codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@contextmanager
def missing_topics_named(admin: AdminClient, names: Iterable[str]) -> Iterator[None]:
    """A context manager around work on topics: the error about a missing topic suggests the nearest existing name."""
    try:
        yield
    except BrokerError as error:
        raise _with_advice(admin, names, error) from None


def _with_advice(admin: AdminClient, names: Iterable[str], error: BrokerError) -> KbrokerError:
    if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return error
    return KbrokerError(f"{error.message}{similar_topics(admin, names) or '; kbroker topics list has all'}")


def similar_topics(admin: AdminClient, names: Iterable[str]) -> str:
    """Return `; did you mean ...?` for the names that no topic has; empty if no topic has a similar name."""
    known = admin.list_topics(internal=True)
    like = [found for name in names if name not in known and (found := nearest(name, known))]
    return f"; did you mean {', '.join(dict.fromkeys(like))}?" if like else ""


def chosen_partitions(admin: AdminClient, chosen: Sequence[Chosen]) -> list[TopicPartition]:
    """Return the chosen partitions, each once. Raises KbrokerError if a topic or a partition does not exist."""
    topics = described(admin, [topic for topic, _ in chosen])
    found: list[TopicPartition] = []
    for topic, wanted in chosen:
        known = [each.partition for each in topics[topic].partitions]
        args.require_known_partitions(topic, wanted or [], known)
        found += [TopicPartition(topic, number) for number in (wanted or known)]
    return list(dict.fromkeys(found))


def led_partitions(topics: Iterable[TopicDescription]) -> list[TopicPartition]:
    """Return the partitions that have a leader."""
    return [
        TopicPartition(topic.name, each.partition) for topic in topics for each in topic.partitions if each.leader >= 0
    ]


def offsets_at(admin: AdminClient, partitions: Collection[TopicPartition], at: int) -> dict[TopicPartition, int]:
    """Return each partition's first offset at or after a time, or at EARLIEST or LATEST; -1: no record is so late."""
    if not partitions:
        return {}
    return {partition: each.offset for partition, each in admin.list_offsets(partitions, at).items()}


def first_offsets(admin: AdminClient, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    return offsets_at(admin, partitions, EARLIEST)


def end_offsets(admin: AdminClient, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    return offsets_at(admin, partitions, LATEST)


def log_dirs(
    admin: AdminClient,
) -> tuple[Mapping[int, tuple[LogDirDescription, ...]], Mapping[int, ClientError]]:
    """Return the log directories by broker, and the errors of brokers that do not tell."""
    try:
        return admin.describe_log_dirs(), {}
    except PartialFailure as failure:
        return failure.results, failure.errors
    except ClientError as error:
        return {}, {broker.node_id: error for broker in admin.describe_cluster().brokers}


def replicas_at_the_end(replicas: tuple[int, ...], move: Reassignment | None) -> tuple[int, ...]:
    """Return the replicas of a partition when its move is done."""
    return replicas if move is None else tuple(each for each in move.replicas if each not in move.removing)


class ReplicaSizes(NamedTuple):
    """The bytes of each replica, by broker and partition, and why brokers do not tell them, by broker."""

    sizes: dict[tuple[int, TopicPartition], int]
    errors: Mapping[int, ClientError]


def replica_sizes(admin: AdminClient) -> ReplicaSizes:
    """Return the sizes of all replicas, as far as their brokers tell."""
    directories, errors = log_dirs(admin)
    sizes = {
        (node_id, partition): replica.size
        for node_id, found in directories.items()
        for directory in found
        for partition, replica in directory.replicas.items()
        if not replica.is_future
    }
    return ReplicaSizes(sizes, errors)
