"""Options of the consumer, beside those of `client.config.NETWORK`."""

from __future__ import annotations

from kbroker.client.config import NETWORK, Option, flag, one_of, table_of, text, whole

INT32_MAX = (1 << 31) - 1

CONSUMER = NETWORK | table_of(
    Option(
        "auto.offset.reset",
        one_of("earliest", "latest", "none"),
        "latest",
        "where to begin without a position, or when it is no longer there; none: an error",
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
    Option("max.partition.fetch.bytes", whole(1, 1 << 30), 1 << 20, "about the most of one partition in an answer"),
    Option("queued.max.bytes", whole(1), 64 << 20, "no more is fetched while so much waits to be polled"),
    Option("inflated.max.bytes", whole(1, 1 << 31), 128 << 20, "the most that one compressed batch may become"),
    Option("check.crcs", flag, True, "whether the check sums of batches are looked at"),
    Option("client.rack", text, "", "where this client is: a replica there may be read from"),
)
