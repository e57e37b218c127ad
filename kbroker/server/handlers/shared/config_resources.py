"""The types of resources that have configs, and checks of the names that requests give."""

from __future__ import annotations

from enum import IntEnum

from kbroker.coordination.paths import DEFAULT_ENTITY
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.rules.topic_names import topic_name_problem


class ResourceType(IntEnum):
    """Types of resources. On the wire. Do not renumber."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    """Subscriptions to clients' metrics; this broker has none."""
    GROUP = 32


NO_CLIENT_METRICS = "metrics of clients are not collected here"


def check_topic_name(name: str) -> None:
    problem = topic_name_problem(name)
    if problem is not None:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def broker_number(name: str, what: str) -> int:
    """Return the broker id that `name` is. `what` is the word of the error message: Kafka uses "Node" and "Broker".

    Raises ProtocolError (INVALID_REQUEST) if `name` is not an integer.
    """
    try:
        return int(name)
    except ValueError:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{what} id must be an integer, but it is: {name}") from None


def broker_entity(name: str, node_id: int) -> str:
    """The entity whose dynamic configs are to change: this broker by its id, all brokers by an empty name.

    Raises ProtocolError (INVALID_REQUEST) for any other name.
    """
    if name == "":
        return DEFAULT_ENTITY
    number = broker_number(name, "Node")
    if number != node_id:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id}, but received {name}")
    return str(number)
