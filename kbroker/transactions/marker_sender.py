"""Writes markers to the leaders of their partitions: this broker's own, and other brokers' by WriteTxnMarkers.

Markers for one broker are sent together, one request at a time. A marker that cannot be written is not tried again
here: its transaction does that (`endings.py`), with the leader that the metadata names then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from kbroker.client.errors import error_of
from kbroker.cluster.peers import PeerError, Peers
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.transactions.markers import Marker, MarkerWriter

LOG = logging.getLogger(__name__)

HIGHEST_VERSION = 2
"""The newest version of WriteTxnMarkers. A Kafka 3.9 has version 1, in which its markers are not told from those of
transactions of version 1: a marker that comes late could end the next transaction."""

MOST_MARKERS = 5_000
"""Most markers in one request. It takes under a megabyte."""

Done = Callable[[ErrorCode], None]
_Place = tuple[int, TopicPartition]
"""What an answer names a marker by: the producer id and the partition."""


class _Entry(NamedTuple):
    partition: TopicPartition
    marker: Marker
    done: Done

    @property
    def place(self) -> _Place:
        return self.marker.producer_id, self.partition


class _Node:
    """What is to be sent to one broker."""

    __slots__ = ("queue", "under_way")

    def __init__(self) -> None:
        self.queue: list[_Entry] = []
        self.under_way: dict[_Place, _Entry] | None = None
        """The markers of the request that has no answer yet; None if there is none."""

    def take(self) -> dict[_Place, _Entry]:
        """Take the next request's markers from the queue. A place is in one request only once."""
        taken: dict[_Place, _Entry] = {}
        left = []
        for entry in self.queue:
            if len(taken) < MOST_MARKERS and entry.place not in taken:
                taken[entry.place] = entry
            else:
                left.append(entry)
        self.queue = left
        return taken


class MarkerSender:
    """The `MarkerWriter` of a member of a cluster. May be used by any thread.

    `own` writes to this broker's logs. `leader_of` is the leader's broker id by the metadata: -1 if the partition has
    none now, None if there is no such partition. `hand_over` has another thread call what it is given, in order: the
    peers' thread must not wait.
    """

    def __init__(
        self,
        node_id: int,
        own: MarkerWriter,
        leader_of: Callable[[TopicPartition], int | None],
        peers: Peers,
        hand_over: Callable[[Callable[[], None]], object],
        timeout_ms: int,
    ):
        self._node_id = node_id
        self._own = own
        self._leader_of = leader_of
        self._peers = peers
        self._hand_over = hand_over
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        """Guards `_nodes`. No other lock is taken while it is held."""
        self._nodes: dict[int, _Node] = {}

    def write(self, partition: TopicPartition, marker: Marker, done: Done) -> None:
        """Have `marker` written by the partition's leader; the contract is that of `MarkerWriter.write`."""
        leader = self._leader_of(partition)
        if leader is None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif leader == self._node_id:
            self._own.write(partition, marker, done)
        elif leader < 0:
            done(ErrorCode.LEADER_NOT_AVAILABLE)
        else:
            with self._lock:
                self._nodes.setdefault(leader, _Node()).queue.append(_Entry(partition, marker, done))
            self._send(leader)

    def metadata_changed(self) -> None:
        """Give up on markers that wait for a broker that does not lead their partition any more.

        A broker that is paused would answer only when the request times out.
        """
        moved: list[_Entry] = []
        with self._lock:
            for node_id, node in self._nodes.items():
                stay: list[_Entry] = []
                for entry in node.queue:
                    (stay if self._leader_of(entry.partition) == node_id else moved).append(entry)
                node.queue = stay
                for place, entry in list((node.under_way or {}).items()):
                    if self._leader_of(entry.partition) != node_id:
                        del node.under_way[place]  # type: ignore[union-attr]
                        moved.append(entry)
        self._tell((entry, ErrorCode.NOT_LEADER_OR_FOLLOWER) for entry in moved)

    def _send(self, node_id: int) -> None:
        """Send what waits for the broker, unless a request to it is under way."""
        with self._lock:
            node = self._nodes[node_id]
            if node.under_way is not None or not node.queue:
                return
            node.under_way = node.take()
            entries = list(node.under_way.values())
        answered = partial(self._answered, node_id)
        key = ApiKey.WRITE_TXN_MARKERS
        self._peers.ask(
            node_id, lambda _: _request(entries), key, HIGHEST_VERSION, answered, timeout_ms=self._timeout_ms
        )

    def _answered(self, node_id: int, answer: M.Message | PeerError, _: int) -> None:
        with self._lock:
            node = self._nodes[node_id]
            entries, node.under_way = node.under_way or {}, None
        if isinstance(answer, PeerError):
            if entries:
                LOG.warning("%d markers could not be written: %s", len(entries), answer)
            self._tell((entry, ErrorCode.NETWORK_EXCEPTION) for entry in entries.values())
        else:
            assert isinstance(answer, M.WriteTxnMarkersResponse)
            codes = _codes(answer)
            self._tell((entry, codes.get(place, ErrorCode.UNKNOWN_SERVER_ERROR)) for place, entry in entries.items())
        self._send(node_id)

    def _tell(self, outcomes: Iterable[tuple[_Entry, ErrorCode]]) -> None:
        told = list(outcomes)
        if told:
            self._hand_over(partial(_tell_all, told))


def _tell_all(outcomes: list[tuple[_Entry, ErrorCode]]) -> None:
    for entry, error in outcomes:
        try:
            entry.done(error)
        except Exception:
            LOG.exception("%s: a marker's outcome", entry.partition)


def _request(entries: Iterable[_Entry]) -> M.WriteTxnMarkersRequest:
    R = M.WriteTxnMarkersRequest
    by_marker: dict[Marker, dict[str, list[int]]] = {}
    for entry in entries:
        topics = by_marker.setdefault(entry.marker, {})
        topics.setdefault(entry.partition.topic, []).append(entry.partition.partition_id)
    return R(
        markers=[
            R.WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.commit,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.client_version,
                topics=[
                    R.WritableTxnMarkerTopic(name=name, partition_indexes=partition_ids)
                    for name, partition_ids in topics.items()
                ],
            )
            for marker, topics in by_marker.items()
        ]
    )


def _codes(answer: M.WriteTxnMarkersResponse) -> dict[_Place, ErrorCode]:
    """The outcome of each marker.

    UNKNOWN_TOPIC_OR_PARTITION only says that the other broker's metadata is behind, or ours: it is not final.
    """
    codes: dict[_Place, ErrorCode] = {}
    for marker in answer.markers:
        for topic in marker.topics:
            for each in topic.partitions:
                code = error_of(each.error_code)
                if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                codes[marker.producer_id, TopicPartition(topic.name, each.partition_index)] = code
    return codes
