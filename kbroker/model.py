"""Plain values that every layer shares. Nothing here does I/O or knows a wire format."""

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
    """One partition of one topic, as people name it."""

    topic: str
    partition_id: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition_id}"


def number_key(number: int) -> bytes:
    """A number that others choose, as a key of a dict or a set.

    An int is its own hash, and a tuple of ints is hashed without a secret: who chooses the numbers chooses where they
    go in a table, and a table whose keys all meet takes a time that grows with the square of their number. The hash of
    bytes is under a secret of the process.
    """
    return number.to_bytes(8, signed=True)


def number_of(key: bytes) -> int:
    """The number of a `number_key`."""
    return int.from_bytes(key, signed=True)


def partition_key(topic: str, partition_id: int) -> tuple[str, bytes]:
    """A partition that may not exist, as a key of a dict or a set.

    A `TopicPartition` is as good where the topic exists: the hash of its name is under the secret. That of no name is
    0, whatever the secret.
    """
    return topic, number_key(partition_id)


class Endpoint(NamedTuple):
    """Where a listener is reached. `host` is a name or address without brackets; port 0 means not bound yet."""

    listener: str
    security_protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"
