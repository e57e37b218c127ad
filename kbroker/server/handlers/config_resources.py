"""Which resources have configs, by the codes of the protocol, and whether a request names one of this broker's."""

from __future__ import annotations

from enum import IntEnum

from kbroker.coordination.paths import DEFAULT_ENTITY
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.rules.topic_names import topic_name_problem


class ResourceType(IntEnum):
    """On the wire. Do not renumber."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    """Subscriptions to clients' metrics, of which there are none here."""
    GROUP = 32


NO_CLIENT_METRICS = "metrics of clients are not collected here"


def check_topic_name(name: str) -> None:
    problem = topic_name_problem(name)
    if problem is not None:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def broker_number(name: str, what: str) -> int:
    """`what` is how the message calls it: Kafka has two words."""
    try:
        return int(name)
    except ValueError:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{what} id must be an integer, but it is: {name}") from None


def broker_entity(name: str, node_id: int) -> str:
    """Whose dynamic configs are to change: this broker's by its id, all brokers' by an empty name."""
    if name == "":
        return DEFAULT_ENTITY
    number = broker_number(name, "Node")
    if number != node_id:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id}, but received {name}")
    return str(number)
