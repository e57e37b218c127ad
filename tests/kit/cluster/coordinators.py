"""When an Apache Kafka took itself for the coordinator of groups, as its log tells."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

LINE = re.compile(
    r"(\d\d:\d\d:\d\d\.\d{3}) INFO (?:\[GroupCoordinator \d+\]: "
    r"(?:(Elected|Resigned) as the group coordinator for partition (\d+) |Shutting down)|starting \(KafkaServer\))"
)
DAY = timedelta(days=1)


class Term(NamedTuple):
    """A time in which a broker took itself for the coordinator of a partition's groups, CLOCK_MONOTONIC in ns."""

    partition_id: int
    began: int
    ended: int


def terms(output: str, now: datetime | None = None, now_ns: int | None = None) -> Iterator[Term]:
    """Yield the terms that a Kafka's log of less than a day tells of. Those that go on end at `now`, which is `now_ns`
    of the monotonic clock. A killed broker's end with its next start."""
    now = now or datetime.now()
    now_ns = time.monotonic_ns() if now_ns is None else now_ns
    began: dict[int, int] = {}
    for line in LINE.finditer(output):
        clock = datetime.strptime(line[1], "%H:%M:%S.%f").time()
        at_ns = now_ns - (now - datetime.combine(now, clock)) % DAY // timedelta(microseconds=1) * 1000
        if line[2] == "Elected":
            began.setdefault(int(line[3]), at_ns)
            continue
        for partition_id in [int(line[3])] if line[2] else [*began]:
            if partition_id in began:
                yield Term(partition_id, began.pop(partition_id), at_ns)
    for partition_id, at_ns in began.items():
        yield Term(partition_id, at_ns, now_ns)
