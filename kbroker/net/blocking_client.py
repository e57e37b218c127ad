"""A small blocking client: one request at a time, for `kbroker transactions` and kbroker.testing, without threads.

Versions are negotiated with each broker (KIP-35, KIP-511): the highest that both sides speak and that a caller of this
module knows how to fill in (`HIGHEST`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from kbroker.errors import ErrorCode, KbrokerError, MalformedBytes, NotNow, ProtocolError
from kbroker.net.addresses import parse_bootstrap
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import decode_response, encode_request

T = TypeVar("T")

LARGEST_RESPONSE = 1 << 30
TRANSACTION_KEY = 1  #: what a coordinator is looked for by
FIRST_BACKOFF_S = 0.02
LONGEST_BACKOFF_S = 1.0

# The last versions before an API turned to topic ids or to lists of keys.
HIGHEST = {ApiKey.FIND_COORDINATOR: 3, ApiKey.METADATA: 12}
RETRIABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class Unreachable(NotNow):
    """A broker cannot be connected to, or the connection broke. The message names its address."""

    code = ErrorCode.NETWORK_EXCEPTION


def raise_for(error_code: int, message: str | None = None, what: str = "") -> None:
    """ProtocolError for any code but NONE; `what` names the thing that was refused."""
    if error_code == ErrorCode.NONE:
        return
    try:
        code = ErrorCode(error_code)
    except ValueError:
        raise KbrokerError(f"{what}: the broker answered with the unknown error code {error_code}") from None
    text = f"{code.name}: {message}" if message and message != code.name else code.name
    raise ProtocolError(code, f"{what}: {text}" if what else text)


class BrokerConnection:
    """One connection, its versions negotiated. Every wait is bounded by `timeout_s`."""

    def __init__(self, host: str, port: int, client_id: str, timeout_s: float):
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._client_id = client_id
        self._correlation_id = 0
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise Unreachable(f"cannot connect to {self.address}: {_reason(error)}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._versions = self._negotiate()
        except BaseException:
            self._socket.close()
            raise

    def version_of(self, api_key: ApiKey) -> int:
        """The version of `api_key` that is spoken here; ProtocolError when there is none."""
        message = getattr(M, f"{api_key.label}Request")
        lowest, highest = self._versions.get(api_key, (0, -1))
        version: int = min(highest, message.MAX_VERSION, HIGHEST.get(api_key, message.MAX_VERSION))
        if version < max(lowest, message.MIN_VERSION):
            raise ProtocolError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} serves no version of {api_key.label} that this command speaks",
            )
        return version

    def call(self, message: M.Message) -> Any:
        """Send one request, wait for its response. Unreachable when the connection breaks."""
        api_key = ApiKey(message.API_KEY)  # type: ignore[arg-type]
        return self._exchange(api_key, self.version_of(api_key), message)

    def close(self) -> None:
        self._socket.close()

    def _negotiate(self) -> dict[int, tuple[int, int]]:
        asked = M.ApiVersionsRequest(client_software_name="kbroker", client_software_version="0")
        for version in (3, 0):
            answer = self._exchange(ApiKey.API_VERSIONS, version, asked if version else M.ApiVersionsRequest())
            if answer.error_code != ErrorCode.UNSUPPORTED_VERSION:
                raise_for(answer.error_code, None, self.address)
                return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not answer ApiVersions")

    def _exchange(self, api_key: ApiKey, version: int, message: M.Message) -> Any:
        self._send(api_key, version, message)
        frame = self._read_frame()
        if api_key is ApiKey.API_VERSIONS and version and frame[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2):
            version = 0  # the body is one of version 0 whatever was asked (KIP-511)
        correlation_id, response = decode_response(api_key, version, frame)
        if correlation_id != self._correlation_id:
            raise MalformedBytes(f"{self.address} answered request {correlation_id} instead of {self._correlation_id}")
        return response

    def _send(self, api_key: ApiKey, version: int, message: M.Message) -> None:
        self._correlation_id += 1
        try:
            self._socket.sendall(encode_request(api_key, version, self._correlation_id, self._client_id, message))
        except OSError as error:
            raise Unreachable(f"lost the connection to {self.address}: {_reason(error)}") from None

    def _read_frame(self) -> bytes:
        size = int.from_bytes(self._read(4), signed=True)
        if not 4 <= size <= LARGEST_RESPONSE:
            raise MalformedBytes(f"{self.address} announced a response of {size} bytes; it may not be a Kafka listener")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except OSError as error:
                raise Unreachable(f"no answer from {self.address}: {_reason(error)}") from None
            if not part:
                raise Unreachable(f"{self.address} closed the connection")
            data += part
        return bytes(data)


class BlockingClient:
    """Connections to the brokers of one cluster, opened when first needed. Not for several threads."""

    def __init__(self, bootstrap: str, client_id: str = "kbroker", timeout_s: float = 30.0):
        self._bootstrap = parse_bootstrap(bootstrap)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._any: BrokerConnection | None = None
        self._by_node: dict[int, BrokerConnection] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self.controller_id = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in (self._any, *self._by_node.values()):
            if connection is not None:
                connection.close()
        self._any = None
        self._by_node.clear()

    def call(self, message: M.Message, node_id: int | None = None) -> Any:
        """The response of broker `node_id`, or of whichever bootstrap address answers first."""
        return self.connection(node_id).call(message)

    def connection(self, node_id: int | None = None) -> BrokerConnection:
        """A connection to broker `node_id`, or to any."""
        if node_id is None:
            if self._any is None:
                self._any = self._connect_to_any()
            return self._any
        connection = self._by_node.get(node_id)
        if connection is None:
            if node_id not in self._addresses:
                self.metadata([])
            if node_id not in self._addresses:
                raise ProtocolError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id} is not in the cluster")
            host, port = self._addresses[node_id]
            try:
                connection = BrokerConnection(host, port, self._client_id, self._timeout_s)
            except Unreachable as error:
                raise Unreachable(f"broker {node_id} is advertised where it is not reached: {error}") from None
            self._by_node[node_id] = connection
        return connection

    def metadata(self, topics: Sequence[str] | None, allow_auto_creation: bool = False) -> Any:
        """MetadataResponse for `topics` (None: all), errors of topics inside. Remembers where the brokers are."""
        wanted = None if topics is None else [M.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        # Brokers before 0.11 cannot be asked not to create.
        may_create = allow_auto_creation or self.connection().version_of(ApiKey.METADATA) < 4
        answer = self.call(M.MetadataRequest(topics=wanted, allow_auto_topic_creation=may_create))
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self.controller_id = answer.controller_id
        return answer

    def leaders(self, topic: str, allow_auto_creation: bool = False) -> dict[int, int]:
        """Partition id -> node id of its leader, waiting until each has one. ProtocolError for an unknown topic."""

        def attempt() -> dict[int, int]:
            (found,) = self.metadata([topic], allow_auto_creation).topics
            # A topic that is just being created is unknown for a moment.
            creating = allow_auto_creation and found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise_for(ErrorCode.LEADER_NOT_AVAILABLE if creating else found.error_code, None, f"topic {topic!r}")
            for partition in found.partitions:
                raise_for(partition.error_code, None, f"{topic}-{partition.partition_index}")
            return {partition.partition_index: partition.leader_id for partition in found.partitions}

        return self.retried(attempt)

    def call_controller(self, message: M.Message) -> Any:
        """The response of the controller."""
        if self.controller_id < 0:
            self.metadata([])
        return self.call(message, self.controller_id if self.controller_id >= 0 else None)

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Node id of the transactional id's coordinator, waiting until there is one."""

        def attempt() -> int:
            answer = self.call(M.FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION_KEY))
            raise_for(answer.error_code, answer.error_message, f"transactional id {transactional_id!r}")
            self._addresses[answer.node_id] = (answer.host, answer.port)
            return int(answer.node_id)

        return self.retried(attempt)

    def retried(self, attempt: Callable[[], T]) -> T:
        """What `attempt` returns, tried again while it raises a retriable ProtocolError and there is time."""
        deadline = time.monotonic() + self._timeout_s
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                return attempt()
            except ProtocolError as error:
                if error.code not in RETRIABLE or time.monotonic() + backoff_s > deadline:
                    raise
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    def _connect_to_any(self) -> BrokerConnection:
        problems = []
        for host, port in self._bootstrap:
            try:
                return BrokerConnection(host, port, self._client_id, self._timeout_s)
            except Unreachable as error:
                problems.append(str(error))
        raise Unreachable("; ".join(problems))


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror or str(error)).lower()
