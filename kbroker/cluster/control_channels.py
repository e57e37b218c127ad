"""What the controller tells the other brokers: a channel to each, in order, one request at a time.

A request is repeated until it is answered or the broker is removed: a broker that has missed one would never learn what
was in it. Nothing here waits for a broker.

Requests that wait behind another are put together, because a broker that is slow or away would get thousands of them
when the controller elects leaders again and again. What may be put together is said at `_collapse`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable

from kbroker import __version__
from kbroker.clock import Clock
from kbroker.cluster.control_requests import Made, message_of, version_of
from kbroker.cluster.peers import PeerError, Peers
from kbroker.errors import ErrorCode
from kbroker.model import Endpoint
from kbroker.protocol.messages import (
    ApiVersionsRequest,
    LeaderAndIsrResponse,
    Message,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from kbroker.rules.controller.commands import ControlRequest, LeaderAndIsr, StopReplica, UpdateMetadata
from kbroker.rules.controller.values import Broker

log = logging.getLogger(__name__)

RETRY_MS = 100
PROBE_MS = 500
"""The pause between two looks whether somebody listens again at a suspect's address."""
API_VERSIONS_VERSION = 3

Answered = Callable[[int, ControlRequest, Message], None]


class _Channel:
    """One broker in one of its lives."""

    def __init__(self, broker: Broker):
        self.broker = broker
        self.waiting: deque[ControlRequest] = deque()
        self.in_flight: ControlRequest | None = None
        self.retry_at: float | None = None
        """When the request in flight is sent again; None while it is with the broker."""
        self.is_removed = False
        self.is_told_roles = False
        """Whether LeaderAndIsr was sent while this life may have lasted."""
        self.is_past = False
        """Whether another life of the broker has answered."""
        self.failures = 0


class _Suspect:
    """A broker that nobody listens at, although it is registered."""

    def __init__(self, broker: Broker, probe_at: float):
        self.broker = broker
        self.probe_at: float | None = probe_at
        """When it is looked for next; None while an answer is waited for."""


class ControlChannels:
    """The channels of one controller in one epoch. `answered` and `wake` may be called on the peers' thread.

    The lock guards channels and queues. Neither a callback nor the peers are called while it is held.
    """

    def __init__(
        self,
        controller_id: int,
        listener: str,
        control_listener: str,
        peers: Peers,
        clock: Clock,
        *,
        answered: Answered,
        reached: Callable[[int], None],
        wake: Callable[[], None],
        timeout_ms: int,
    ):
        """`listener`: at which brokers reach each other. `control_listener`: at which the controller reaches them.

        `answered` gets a broker's id, the request, and the answer; `reached` the id of a suspect that listens again.
        `wake`: `tick` has something to do later.
        """
        self._controller_id = controller_id
        self._listener = listener
        self._control_listener = control_listener
        self._peers = peers
        self._clock = clock
        self._answered = answered
        self._reached = reached
        self._wake = wake
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        self._channels: dict[int, _Channel] = {}
        self._suspects: dict[int, _Suspect] = {}

    def add(self, broker: Broker) -> None:
        """Open the channel of a broker, or give it a new address."""
        with self._lock:
            channel = self._channels.get(broker.broker_id)
            if channel is None:
                self._channels[broker.broker_id] = _Channel(broker)
            else:
                channel.broker = broker
        self._tell_addresses()

    def remove(self, broker_id: int) -> bool:
        """Close a channel. What the broker was not told is dropped, and an answer that is under way is ignored.

        Returns whether the broker may know roles that it was told on this channel.
        """
        with self._lock:
            channel = self._channels.pop(broker_id, None)
            if channel is not None:
                channel.is_removed = True
                channel.waiting.clear()
        if channel is None:
            return False
        self._tell_addresses()
        return channel.is_told_roles

    def close(self) -> None:
        """Close all channels."""
        with self._lock:
            for channel in self._channels.values():
                channel.is_removed = True
                channel.waiting.clear()
            self._channels.clear()
            self._suspects.clear()
        self._tell_addresses()

    def suspect(self, broker: Broker) -> None:
        """Look again and again whether somebody listens at the address of a broker that has refused."""
        with self._lock:
            if broker.broker_id in self._suspects:
                return
            self._suspects[broker.broker_id] = _Suspect(broker, self._clock.monotonic() + PROBE_MS / 1000)
        self._tell_addresses()

    def trust(self, broker_id: int) -> None:
        """Look for a broker no longer."""
        with self._lock:
            self._suspects.pop(broker_id, None)
        self._tell_addresses()

    def send(self, requests: Iterable[tuple[int, ControlRequest]]) -> None:
        """Queue requests for brokers by their ids. Without a channel to a broker its request is dropped."""
        made = Made()
        for broker_id, request in requests:
            with self._lock:
                channel = self._channels.get(broker_id)
                if channel is not None:
                    _collapse(channel.waiting, request)
            if channel is not None:
                self._send_next(channel, made)

    def tick(self) -> None:
        """Send again what is due, and look for suspects."""
        now = self._clock.monotonic()
        with self._lock:
            due = [each for each in self._channels.values() if each.retry_at is not None and each.retry_at <= now]
            for channel in due:
                channel.retry_at = None
            suspects = [each for each in self._suspects.values() if each.probe_at is not None and each.probe_at <= now]
            for suspect in suspects:
                suspect.probe_at = None
        for channel in due:
            self._send(channel, Made())
        for suspect in suspects:
            self._probe(suspect)

    def due_ms(self) -> int | None:
        """Return the milliseconds until `tick` has something to do; None: it has nothing."""
        with self._lock:
            times = [channel.retry_at for channel in self._channels.values() if channel.retry_at is not None]
            times += [suspect.probe_at for suspect in self._suspects.values() if suspect.probe_at is not None]
        return math.ceil(max(min(times) - self._clock.monotonic(), 0) * 1000) if times else None

    def _tell_addresses(self) -> None:
        with self._lock:
            addresses: dict[int, Endpoint] = {}
            kept = list(self._channels)
            brokers = [channel.broker for channel in self._channels.values()]
            brokers += [each.broker for each in self._suspects.values() if each.broker.broker_id not in self._channels]
        for broker in brokers:
            endpoint = broker.endpoint(self._control_listener)
            if endpoint is not None:
                addresses[broker.broker_id] = endpoint
        self._peers.set_brokers(addresses)
        self._peers.keep(kept)

    def _probe(self, suspect: _Suspect) -> None:
        broker_id = suspect.broker.broker_id

        def answered(answer: Message | PeerError) -> None:
            with self._lock:
                is_current = self._suspects.get(broker_id) is suspect
                suspect.probe_at = self._clock.monotonic() + PROBE_MS / 1000
            if not is_current:
                return
            if isinstance(answer, PeerError):
                self._wake()
            else:
                self._reached(broker_id)

        request = ApiVersionsRequest(client_software_name="kbroker", client_software_version=__version__)
        self._peers.send(broker_id, request, API_VERSIONS_VERSION, answered, timeout_ms=self._timeout_ms)

    def _send_next(self, channel: _Channel, made: Made) -> None:
        with self._lock:
            if channel.is_removed or channel.in_flight is not None or not channel.waiting:
                return
            channel.in_flight = channel.waiting.popleft()
            channel.is_told_roles |= isinstance(channel.in_flight, LeaderAndIsr) and not channel.is_past
        self._send(channel, made)

    def _send(self, channel: _Channel, made: Made) -> None:
        request = channel.in_flight
        assert request is not None, channel.broker
        message = message_of(self._controller_id, self._listener, request, made)

        def answered(answer: Message | PeerError) -> None:
            self._note_answer(channel, request, answer)

        self._peers.send(channel.broker.broker_id, message, version_of(request), answered, timeout_ms=self._timeout_ms)

    def _note_answer(self, channel: _Channel, request: ControlRequest, answer: Message | PeerError) -> None:
        is_answered = not isinstance(answer, PeerError)
        with self._lock:
            if channel.is_removed:
                return
            if is_answered:
                channel.in_flight = None
                channel.failures = 0
                channel.is_past |= _is_stale(answer)
            else:
                channel.retry_at = self._clock.monotonic() + RETRY_MS / 1000
                channel.failures += 1
                is_first = channel.failures == 1
        if isinstance(answer, PeerError):
            if is_first:
                log.warning("a request is repeated until the broker answers it: %s", answer)
            self._wake()
            return
        self._answered(channel.broker.broker_id, request, answer)
        self._send_next(channel, Made())


def _is_stale(answer: Message | PeerError) -> bool:
    if not isinstance(answer, LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse):
        return False
    return answer.error_code == ErrorCode.STALE_BROKER_EPOCH


def _collapse(waiting: deque[ControlRequest], request: ControlRequest) -> None:
    """Append a request, or put it together with one of its kind that waits already.

    Two requests of a kind say in one, with the newer state of each partition, what they would say one after the other:
    states only get newer, and a broker takes them by their epochs. What lies between the two is passed:

    * metadata moves to the front, into the earlier request. It is right earlier too: other brokers have it already.
    * roles move to the back, into the later request. A broker must know a leader's address before it is told to follow
      it, and addresses come with the metadata that is in front of them.
    * Nothing passes a StopReplica, which must neither stop a replica too late nor one that was started again.
    """
    if isinstance(request, StopReplica):
        waiting.append(request)
        return
    for index in range(len(waiting) - 1, -1, -1):
        earlier = waiting[index]
        if isinstance(earlier, StopReplica):
            break
        if isinstance(earlier, UpdateMetadata) and isinstance(request, UpdateMetadata):
            waiting[index] = _joined_metadata(earlier, request)
            return
        if isinstance(earlier, LeaderAndIsr) and isinstance(request, LeaderAndIsr):
            del waiting[index]
            waiting.append(_joined_roles(earlier, request))
            return
    waiting.append(request)


def _joined_metadata(earlier: UpdateMetadata, later: UpdateMetadata) -> UpdateMetadata:
    return later._replace(
        partitions={**earlier.partitions, **later.partitions}, topic_ids={**earlier.topic_ids, **later.topic_ids}
    )


def _joined_roles(earlier: LeaderAndIsr, later: LeaderAndIsr) -> LeaderAndIsr:
    partitions = {**earlier.partitions, **later.partitions}
    for partition, told in earlier.partitions.items():
        if told.is_new:
            partitions[partition] = partitions[partition]._replace(is_new=True)
    leaders = {each.broker_id: each for each in (*earlier.leaders, *later.leaders)}
    return later._replace(
        partitions=partitions,
        topic_ids={**earlier.topic_ids, **later.topic_ids},
        leaders=tuple(leaders.values()),
    )
