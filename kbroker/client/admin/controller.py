"""Requests that the controller has to carry out, and how long they may take."""

from __future__ import annotations

from typing import Any, TypeVar

from kbroker.client.admin.items import value_or_error
from kbroker.client.errors import ClientError, TimedOut
from kbroker.client.network.cluster import Cluster
from kbroker.client.network.connection import Connection
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

V = TypeVar("V")

ANSWER_LATER_MS = 5_000
"""How much longer an answer is waited for than the broker may take: it still has to send that it was not done in time.
"""
LEFT_MS = 50
"""What is left of the caller's time then: less than the pause before another attempt, which would end in its middle."""
LATE = "it is busy, or cannot reach its ZooKeeper: its log says which; what was asked for may still be done"


def given_ms(cluster: Cluster) -> int:
    """Return the time that a broker may take for a request that is sent now, in milliseconds.

    It is shorter than the caller's, so that the broker can still say that it was not done.
    """
    limit_ms: int = cluster.network.options["request.timeout.ms"]
    return max(1, int(min(limit_ms, cluster.left_s() * 900)))


def waited_ms(cluster: Cluster) -> int:
    """Return how long the client waits for the answer to a request with a time (`given_ms`), in milliseconds."""
    return max(1, int(min(given_ms(cluster) + ANSWER_LATER_MS, cluster.left_s() * 1000 - LEFT_MS)))


async def ask_controller(cluster: Cluster, message: M.Message, connection: Connection | None = None) -> Any:
    """Send a request to the controller, over a connection to it if there is one, and return the response.

    Raises TimedOut, which names the broker, if it does not come in time.
    """
    chosen = connection or await cluster.controller()
    limit_ms = waited_ms(cluster)
    try:
        return await chosen.call(message, timeout_ms=limit_ms)
    except TimedOut as error:
        label = ApiKey(message.API_KEY).label  # type: ignore[arg-type]
        raise TimedOut(f"{_named(cluster)} did not answer {label} within {limit_ms / 1000:.3g} s", hint=LATE) from error


def controllers_answer(cluster: Cluster, error_code: int, message: str | None, what: str, value: V) -> V | ClientError:
    """Return `value`, or the BrokerError of `error_code` if that is not NONE. It says who was not done in time."""
    if error_code == ErrorCode.REQUEST_TIMED_OUT and not message:
        message = f"{_named(cluster)} has not done it in time"
    found = value_or_error(error_code, message, what, value)
    if isinstance(found, ClientError) and found.code == ErrorCode.REQUEST_TIMED_OUT:
        found.hint = LATE
    return found


def _named(cluster: Cluster) -> str:
    node = cluster.view.nodes.get(cluster.view.controller_id)
    return "the controller" if node is None else f"broker {node.node_id} at {node.host}:{node.port}, the controller,"
