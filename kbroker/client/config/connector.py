"""Options of the consumer connector, by the names of Kafka 0.8 and of Kafka 0.7."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from kbroker.client.config.consumer import CONSUMER
from kbroker.client.config.kinds import MS, Kind, flag, one_of, whole
from kbroker.client.config.network import NETWORK
from kbroker.client.config.option import Option, table_of
from kbroker.client.config.zookeeper import ZOOKEEPER

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")


def plain_name(given: Any) -> str:
    """Parse a name that becomes part of node names in ZooKeeper."""
    if not isinstance(given, str) or not _PLAIN.fullmatch(given):
        raise ValueError("letters, digits, '.', '_' and '-'")
    return given


def _reset(given: Any) -> str:
    """Parse earliest, latest or none; smallest and largest are Kafka 0.8's names of the first two."""
    parse: Kind = one_of("smallest", "largest", "earliest", "latest", "none")
    word: str = parse(given)
    return {"smallest": "earliest", "largest": "latest"}.get(word, word)


def _timeout(given: Any) -> int:
    """Parse milliseconds, or -1."""
    found: int = whole(-1, 1 << 40)(given)
    return found


def _also(name: str, *aliases: str, default: Any = None) -> Option:
    """Return an option of the consumer with further names and, if it is given, another default."""
    option = CONSUMER[name]
    return replace(option, aliases=(*option.aliases, *aliases), default=option.default if default is None else default)


SHARED = (
    "isolation.level",
    "fetch.min.bytes",
    "fetch.max.bytes",
    "queued.max.bytes",
    "inflated.max.bytes",
    "check.crcs",
    "exclude.internal.topics",
    "client.rack",
)
"""Options of the consumer that mean the same for the connector."""

CONNECTOR = (
    NETWORK
    | {name: CONSUMER[name] for name in SHARED}
    | ZOOKEEPER
    | table_of(
        Option("group.id", plain_name, None, "the group, which shares its topics; needed", ("groupid",)),
        Option("consumer.id", plain_name, None, "who this is in the group; made up if not given", ("consumerid",)),
        Option(
            "auto.offset.reset",
            _reset,
            "latest",
            "where to begin without an offset, or when it is no longer there: smallest (earliest), largest (latest), "
            "or none: an error",
            ("autooffset.reset",),
        ),
        Option(
            "consumer.timeout.ms",
            _timeout,
            -1,
            "how long a stream waits for a record before it raises ConsumerTimeout; -1 for ever",
        ),
        Option("auto.commit.enable", flag, True, "whether offsets are committed by themselves", ("autocommit.enable",)),
        Option("auto.commit.interval.ms", whole(1, 1 << 40), 60_000, "how often", ("autocommit.interval.ms",)),
        Option(
            "offsets.storage",
            one_of("zookeeper", "kafka"),
            "zookeeper",
            "where offsets are: in ZooKeeper, or with the brokers",
        ),
        Option(
            "dual.commit.enabled",
            flag,
            True,
            "with offsets.storage=kafka: commit to ZooKeeper too, and begin at the larger of both; for a group on its "
            "way from one to the other",
        ),
        Option(
            "queued.max.message.chunks",
            whole(1, 1 << 31),
            2,
            "what was fetched of a partition at once is a chunk; with so many waiting a stream's partitions pause",
            ("queuedchunks.max",),
        ),
        Option(
            "partition.assignment.strategy",
            one_of("range", "roundrobin"),
            "range",
            "who gets what; all members of a group must have the same",
        ),
        Option("rebalance.max.retries", whole(1, 1 << 31), 4, "attempts at a rebalance", ("rebalance.retries.max",)),
        Option("rebalance.backoff.ms", MS, 2_000, "wait between them", ("zookeeper.sync.time.ms", "zk.synctime.ms")),
        _also("max.partition.fetch.bytes", "fetch.message.max.bytes", "fetch.size"),
        _also("fetch.max.wait.ms", "fetch.wait.max.ms", default=100),
        _also("request.timeout.ms", "socket.timeout.ms", "sockettimeout.ms"),
        _also("retry.backoff.ms", "refresh.leader.backoff.ms"),
        _also("receive.buffer.bytes", "socket.buffersize"),
    )
)
