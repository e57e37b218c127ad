"""Options of the consumer: those of every client, and its own."""

from __future__ import annotations

from typing import Any

from kbroker.client.assignors.assignor import Assignor
from kbroker.client.assignors.assignors import ASSIGNORS
from kbroker.client.config.kinds import MS, filled, flag, one_of, text, texts, whole
from kbroker.client.config.network import NETWORK
from kbroker.client.config.option import Option, Options, table_of

INT32_MAX = (1 << 31) - 1


def assignors(given: Any) -> tuple[Assignor, ...]:
    """Parse partition.assignment.strategy: names and Assignor objects, the preferred one first.

    One, a list of several, or names separated by commas. Raises ValueError for anything else.
    """
    if isinstance(given, str):
        given = texts(given)
    elif isinstance(given, Assignor):
        given = (given,)
    found = []
    for each in given:
        if isinstance(each, str):
            each = ASSIGNORS.get(each)
        if not isinstance(each, Assignor):
            raise ValueError(f"Assignor objects or of {', '.join(ASSIGNORS)}")
        found.append(each)
    if not found or len({each.name for each in found}) < len(found):
        raise ValueError("at least one, and each once")
    return tuple(found)


OF_ONE_PROTOCOL = {
    "classic": ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"),
    "consumer": ("group.remote.assignor",),
}


def check_protocol(options: Options) -> None:
    """Raise ValueError when an option is set that only the other group.protocol has."""
    protocol = options["group.protocol"]
    other = "classic" if protocol == "consumer" else "consumer"
    for name in OF_ONE_PROTOCOL[other]:
        if options.is_given(name):
            why = "; the brokers decide about it" if protocol == "consumer" else ""
            raise ValueError(f"{name} cannot be set with group.protocol={protocol}{why}")


CONSUMER = NETWORK | table_of(
    Option(
        "auto.offset.reset",
        one_of(
            "earliest",
            "latest",
            "none",
            also={"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest"},
        ),
        "latest",
        "where to begin without a position, or when it is no longer there; none: an error. Also smallest, beginning, "
        "largest, end, of older clients and librdkafka",
        ("autooffset.reset",),
    ),
    Option(
        "isolation.level",
        one_of("read_uncommitted", "read_committed"),
        "read_uncommitted",
        "read_committed: records of transactions that have been committed only, up to the first that is open",
    ),
    Option("max.poll.records", whole(1, INT32_MAX), 10_000, "the most that one poll gives"),
    Option("fetch.min.bytes", whole(0, INT32_MAX), 1, "a broker waits until it has so much"),
    Option("fetch.max.wait.ms", whole(0, INT32_MAX), 500, "and no longer than this", ("fetch.wait.max.ms",)),
    Option("fetch.max.bytes", whole(1, 1 << 30), 50 << 20, "about the most of one answer"),
    Option(
        "max.partition.fetch.bytes",
        whole(1, 1 << 30),
        1 << 20,
        "about the most of one partition in an answer",
        ("fetch.message.max.bytes",),
    ),
    Option("queued.max.bytes", whole(1), 64 << 20, "no more is fetched while so much waits to be polled"),
    Option("inflated.max.bytes", whole(1, 1 << 31), 128 << 20, "the most that one compressed batch may become"),
    Option("check.crcs", flag, True, "whether the check sums of batches are looked at"),
    Option("group.id", filled, None, "the group whose members share the partitions of what they subscribe to"),
    Option("group.instance.id", filled, None, "a name of this member that outlives it: static membership"),
    Option(
        "enable.auto.commit",
        flag,
        True,
        "whether polls commit what earlier ones have handed out",
        ("autocommit.enable", "auto.commit.enable"),
    ),
    Option("auto.commit.interval.ms", MS, 5_000, "how often they do", ("autocommit.interval.ms",)),
    Option(
        "group.protocol",
        one_of("classic", "consumer"),
        "classic",
        "consumer: the brokers share the partitions and nobody waits for all others (KIP-848, Kafka 4.0 and later)",
    ),
    Option(
        "group.remote.assignor",
        filled,
        None,
        "how they share them, by the name of one of their assignors; the first of theirs if not given",
    ),
    Option("session.timeout.ms", whole(1, INT32_MAX), 45_000, "a member that is silent for so long is dead"),
    Option(
        "heartbeat.interval.ms", whole(1, INT32_MAX), 3_000, "how often it says that it is alive, in the background"
    ),
    Option(
        "max.poll.interval.ms",
        whole(1, INT32_MAX),
        300_000,
        "a member that does not poll for so long leaves its group; how long a rebalance waits for one",
    ),
    Option(
        "partition.assignment.strategy",
        assignors,
        (ASSIGNORS["range"], ASSIGNORS["cooperative-sticky"]),
        "how partitions are shared, the most wanted first: those that all members have count",
    ),
    Option(
        "allow.auto.create.topics",
        flag,
        False,
        "whether the broker may make a topic that is subscribed to or assigned and is not there; Java's consumer: true",
    ),
    Option("exclude.internal.topics", flag, True, "whether a pattern leaves out the topics of the brokers themselves"),
    Option(
        "client.rack", text, "", "where it is: it reads from a replica there, and its group gives it what has one there"
    ),
)
