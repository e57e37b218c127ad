"""A member of a cluster that only listens: it registers itself in ZooKeeper, says yes to everything, and remembers it.

A controller takes it for a broker. It is never a replica that catches up: it fetches nothing, and what is fetched from
it is empty.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import decode_request, encode_response
from kbroker.protocol.messages import Message
from tests.kit.brokers.hosts import Host
from tests.kit.brokers.scripted import Peer

OF_REPLICAS = (ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH)
"""What followers ask their leaders, and leaders the replicas in the ISR."""
QUIET_S = 0.8
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Received:
    """A request that came."""

    api: ApiKey
    version: int
    client_id: str | None
    message: Any


class StandIn:
    """The member, as a context manager. Call it, and use it, inside of the clients' network."""

    def __init__(self, node_id: int, host: Host, zookeeper: str):
        self.node_id, self.host = node_id, host
        self.received: list[Received] = []
        self.zookeeper = KazooClient(zookeeper, timeout=10)
        self.broker_epoch = -1
        self._heard = time.monotonic()
        self._closed = threading.Event()
        with host.entered():
            self._server = socket.create_server((host.address, 0))
        self.port: int = self._server.getsockname()[1]

    # --- being registered ---------------------------------------------------------------------------------
    def register(self) -> None:
        """Register as a broker with one PLAINTEXT listener. All brokers have racks, or Kafka plans no partition."""
        endpoint = f"PLAINTEXT://{self.host.address}:{self.port}"
        data = {
            "version": 5,
            "host": self.host.address,
            "port": self.port,
            "endpoints": [endpoint],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "jmx_port": -1,
            "rack": f"r{self.node_id}",
            "timestamp": str(int(time.time() * 1000)),
            "features": {},
        }
        path = f"/brokers/ids/{self.node_id}"
        self.zookeeper.create(path, json.dumps(data).encode(), ephemeral=True)
        self.broker_epoch = self.zookeeper.exists(path).czxid

    def unregister(self) -> None:
        self.zookeeper.delete(f"/brokers/ids/{self.node_id}")

    # --- listening ----------------------------------------------------------------------------------------
    def take(self) -> list[Received]:
        """Wait until nothing has come for a while, and return what has come since this was called last. What
        replicas ask, which comes all the time, does not count."""
        self._heard = time.monotonic()
        deadline = self._heard + TIMEOUT_S
        while time.monotonic() - self._heard < QUIET_S:
            assert time.monotonic() < deadline, "the controller does not come to rest"
            time.sleep(0.05)
        taken, self.received = self.received, []
        return taken

    def _accept(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(Peer(connection),), daemon=True).start()

    def _serve(self, peer: Peer) -> None:
        peer.socket.settimeout(None)
        with contextlib.suppress(EOFError, OSError):
            while not self._closed.is_set():
                header, message = decode_request(peer.frame())
                api = ApiKey(header.request_api_key)
                if api not in OF_REPLICAS:
                    self.received.append(Received(api, header.request_api_version, header.client_id, message))
                    self._heard = time.monotonic()
                elif api is ApiKey.FETCH:
                    self._closed.wait(0.1)
                answer = answer_to(message)
                peer.socket.sendall(encode_response(api, header.request_api_version, header.correlation_id, answer))

    def __enter__(self) -> Self:
        self.zookeeper.start(TIMEOUT_S)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.zookeeper.stop()
        self.zookeeper.close()


def answer_to(message: Message) -> Message:
    """Return the answer of a broker that has done what it was asked. KeyError for what none is asked here."""
    return ANSWERS[type(message).__name__](message)


def _leader_and_isr(asked: Any) -> Message:
    R = M.LeaderAndIsrResponse
    return R(
        topics=[
            R.LeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=[
                    R.LeaderAndIsrPartitionError(partition_index=each.partition_index)
                    for each in topic.partition_states
                ],
            )
            for topic in asked.topic_states
        ]
    )


def _stop_replica(asked: Any) -> Message:
    R = M.StopReplicaResponse
    return R(
        partition_errors=[
            R.StopReplicaPartitionError(topic_name=topic.topic_name, partition_index=each.partition_index)
            for topic in asked.topic_states
            for each in topic.partition_states
        ]
    )


def _fetch(asked: Any) -> Message:
    R = M.FetchResponse
    return R(
        responses=[
            R.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    R.PartitionData(partition_index=each.partition, high_watermark=0, records=b"")
                    for each in topic.partitions
                ],
            )
            for topic in asked.topics
        ]
    )


def _epoch_ends(asked: Any) -> Message:
    """A follower tells no ends, and says so in the epoch in which it is asked: it knows of no newer leader."""
    R = M.OffsetForLeaderEpochResponse
    return R(
        topics=[
            R.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    R.EpochEndOffset(partition=each.partition, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    for each in topic.partitions
                ],
            )
            for topic in asked.topics
        ]
    )


def _api_versions(asked: Any) -> Message:
    R = M.ApiVersionsResponse
    served = {4: 7, 5: 4, 6: 8, 7: 3, 1: 17, 2: 9, 18: 4, 23: 4, 24: 5, 27: 1, 56: 3, 67: 0}
    return R(api_keys=[R.ApiVersion(api_key=key, max_version=version) for key, version in served.items()])


ANSWERS: dict[str, Any] = {
    "LeaderAndIsrRequest": _leader_and_isr,
    "StopReplicaRequest": _stop_replica,
    "UpdateMetadataRequest": lambda asked: M.UpdateMetadataResponse(),
    "FetchRequest": _fetch,
    "OffsetForLeaderEpochRequest": _epoch_ends,
    "ApiVersionsRequest": _api_versions,
}
