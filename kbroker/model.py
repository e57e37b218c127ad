"""Plain values that all layers share. Nothing here does I/O or knows a wire format."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

NO_UUID = UUID(int=0)
NO_PRODUCER_ID = -1
NO_LEADER_EPOCH = -1
EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5

GROUP_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})


class TopicPartition(NamedTuple):
    """One partition, by its topic's name and its number. Its str() is "topic-number"."""

    topic: str
    partition_id: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition_id}"


def topic_ids_differ(one: UUID, other: UUID) -> bool:
    """Return whether both ids are known and not the same."""
    return one != other and NO_UUID not in (one, other)


def number_key(number: int) -> bytes:
    """Return a key of dicts and sets for a number that a peer chooses.

    Python hashes ints, and tuples of ints, without a secret. A peer that chooses the numbers could make all keys of a
    table collide; filling it then takes time that grows with the square of their number. The hash of bytes depends on a
    secret of the process.
    """
    return number.to_bytes(8, signed=True)


def number_of(key: bytes) -> int:
    """Return the number that a `number_key` was made of."""
    return int.from_bytes(key, signed=True)


def partition_key(topic: str, partition_id: int) -> tuple[str, bytes]:
    """Return a key of dicts and sets for a partition that a peer names and that may not exist. See `number_key`.

    For a topic that exists a `TopicPartition` is as good, because the hash of its name depends on the secret. The hash
    of an empty name is always 0.
    """
    return topic, number_key(partition_id)


def bracketed(host: str) -> str:
    """Return the host as it stands before a port or in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


class Endpoint(NamedTuple):
    """The address where a listener is reached. `host` is without brackets; port 0: not bound yet."""

    listener: str
    security_protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{bracketed(self.host)}:{self.port}"
