"""Calling a request handler as the dispatcher does, without a socket. Request and response go through their codec."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, cast

from kbroker._core.server.peer import Connection
from kbroker.clock import SystemClock
from kbroker.cluster.broker_configs import BrokerConfigs
from kbroker.cluster.consumer_offsets import ConsumerOffsets
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.config.broker_config import Given, config_of
from kbroker.config.definitions import SETTINGS
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import Endpoint
from kbroker.protocol.api import ApiKey, request_class, response_class
from kbroker.protocol.error_responses import error_response
from kbroker.protocol.messages import Message
from kbroker.replication.acks import ReplicationWaits
from kbroker.server.dispatch import ROUTES
from kbroker.server.handlers.shared.services import Services
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import StorageOptions
from kbroker.transactions.verifier import LocalVerifier
from tests.kit.parts.cluster import NODE_ID, Cluster


@dataclass
class Caller:
    """The sender of a request: what handlers read of `_core.request.Connection`."""

    listener: str = "PLAINTEXT"
    local_host: str = "127.0.0.1"
    local_port: int = 9092
    peer: str = "127.0.0.1:50000"
    peer_host: str = "127.0.0.1"
    principal: str = "User:ANONYMOUS"
    session: dict[str, Any] = field(default_factory=dict)


@dataclass
class Call:
    """What handlers use of `_core.request.Request`."""

    api_version: int
    connection: Caller
    client_id: str | None = None
    answers: list[bytes] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    """Why the connection was closed."""

    def respond_with(self, message: Message) -> None:
        self.respond(message.encode(self.api_version))

    def respond(self, body: bytes) -> None:
        self.answers.append(bytes(body))

    def close(self, reason: str) -> None:
        self.closed.append(reason)

    def count_error(self, code: int) -> None:
        self.errors.append(code)


def services_on(cluster: Cluster, *, groups: Any = None, transactions: Any = None, **settings: str) -> Services:
    """Return a broker's parts around `cluster`, with logs that are not started. log_dirs="/x" sets log.dirs."""
    given = {name.replace("_", "."): text for name, text in settings.items()}
    config = config_of([Given(name, text, "test") for name, text in given.items()])

    def endpoint_for(connection: Connection) -> Endpoint:
        return Endpoint(connection.listener, "PLAINTEXT", connection.local_host, connection.local_port)

    return Services(
        config=config,
        clock=SystemClock(),
        node_id=NODE_ID,
        cluster_id=cluster.topics.cluster_id,
        cluster=cluster.topics,
        broker_configs=BrokerConfigs(NODE_ID, SETTINGS, {**given, "broker.id": "1"}, config.with_dynamic),
        logs=LogManager(StorageOptions(directories=())),
        groups=lambda: groups,
        transactions=lambda: transactions,
        markers=cast(Any, None),
        verifier=LocalVerifier(lambda: transactions),
        waits=ReplicationWaits(),
        consumer_offsets=ConsumerOffsets(cluster.session),
        producer_ids=ProducerIds(cluster.session, NODE_ID),
        endpoints_for=endpoint_for,
    )


def call(services: Any, api_key: ApiKey, version: int, message: Any, caller: Caller | None = None) -> Any:
    """Return the response to `message`, as a client decodes it."""
    handler = importlib.import_module(f"kbroker.server.handlers.{ROUTES[api_key].module}")
    received: Any = request_class(api_key).decode(message.encode(version), version)
    request = Call(version, caller or Caller())
    try:
        response = handler.handle(services, request, received)
    except KbrokerError as error:
        response = error_response(api_key, version, received, ErrorCode(error.code), str(error))
    if response is not None:
        request.respond_with(response)
    (body,) = request.answers
    return response_class(api_key).decode(body, version)
