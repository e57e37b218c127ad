"""What a member of a group subscribes to: topics by name, or all topics that a filter lets through."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kbroker.coordination.paths import StoreCorrupt

STATIC, WHITE_LIST, BLACK_LIST = "static", "white_list", "black_list"
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
MOST_STREAMS = 100_000
"""The most streams of one member for one topic; a larger number must be a mistake, or malicious."""
_COMMAS = str.maketrans({",": "|", " ": None})


def filter_of(pattern: str) -> str:
    """Return the regular expression of a filter, written as in Kafka.

    Commas stand for `|`; blanks, and quotes around the filter, are dropped. Raises ValueError when it is empty or not a
    regular expression.
    """
    cleaned = pattern.strip().translate(_COMMAS).strip("\"'")
    try:
        re.compile(cleaned)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if not cleaned:
        raise ValueError("a filter that is empty")
    return cleaned


@dataclass(frozen=True)
class Subscription:
    """A member's subscription. `pattern` is STATIC, WHITE_LIST or BLACK_LIST.

    `counts` has the number of streams by topic; with a filter, by its regular expression.
    """

    pattern: str
    counts: Mapping[str, int]

    @property
    def is_filter(self) -> bool:
        return self.pattern != STATIC

    def topics(self, existing: Collection[str], *, exclude_internal: bool) -> dict[str, int]:
        """Return the number of streams of each topic that is read. A topic subscribed to by name need not exist."""
        if not self.is_filter:
            return dict(self.counts)
        wanted: dict[str, int] = {}
        for expression, count in self.counts.items():
            matches = re.compile(expression).fullmatch
            for topic in existing:
                if exclude_internal and topic in INTERNAL_TOPICS:
                    continue
                if (matches(topic) is not None) == (self.pattern == WHITE_LIST):
                    wanted[topic] = count
        return wanted

    def encode(self, timestamp_ms: int) -> bytes:
        fields = {
            "version": 1,
            "subscription": dict(self.counts),
            "pattern": self.pattern,
            "timestamp": str(timestamp_ms),
        }
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode_subscription(path: str, data: bytes) -> Subscription:
    """Parse the data of a member's node. Raises StoreCorrupt if the bytes are not a subscription."""
    try:
        fields: Any = json.loads(data.decode())
        pattern, counts = fields["pattern"], fields["subscription"]
        if pattern not in (STATIC, WHITE_LIST, BLACK_LIST):
            raise ValueError(f"pattern {pattern!r}")
        found = Subscription(pattern, {str(name): int(count) for name, count in counts.items()})
        if found.is_filter:
            for expression in found.counts:
                re.compile(expression)
        if any(not 0 < count <= MOST_STREAMS for count in found.counts.values()):
            raise ValueError("a count of streams")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, re.error) as error:
        raise StoreCorrupt(path, f"no subscription of a consumer: {error!r}") from None
    return found
