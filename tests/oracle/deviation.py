"""What a deviation is, and reasons that many deviations have. The list is in `deviations.py`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kbroker.protocol.api import ApiKey
from tests.oracle.answers import Tree


def matches(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern, in which `*` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


@dataclass(frozen=True)
class Anything:
    """Any value at all."""


ANYTHING = Anything()


@dataclass(frozen=True)
class Deviation:
    """One deviation: where it shows, what differs, and why."""

    scenarios: tuple[str, ...]
    paths: tuple[str, ...]
    what: str
    why: str
    kafka: Tree = ANYTHING
    ours: Tree = ANYTHING
    since: int = 0
    until: int = 99

    @property
    def api(self) -> ApiKey:
        return ApiKey[self.scenarios[0].split(".")[0].upper()]

    def is_about(self, scenario: str, version: int) -> bool:
        return self.since <= version <= self.until and any(matches(one, scenario) for one in self.scenarios)

    def covers(self, path: str, kafka: Tree, ours: Tree) -> bool:
        return (
            any(matches(one, path) for one in self.paths)
            and (isinstance(self.kafka, Anything) or self.kafka == kafka)
            and (isinstance(self.ours, Anything) or self.ours == ours)
        )


@dataclass(frozen=True)
class OtherDeviation:
    """A deviation that no answer of the matrix shows. `test`: the test that covers it."""

    subject: str
    what: str
    why: str
    test: str


LARGE_ANSWERS = "A small request could have an answer that no memory holds."
TWICE = (
    "A client that names a partition twice in a request has a bug; "
    "kbroker does what each entry says, in order, and answers each."
)
KAFKA_FAILS = "Kafka fails inside; kbroker says what is wrong with the request."
NEVER_ANSWERS = "Kafka fails inside and leaves the client without an answer until its request times out."
NO_FEATURES = "Features are those of KRaft's metadata log, which kbroker does not have."
STRICT = "What a field cannot mean is refused with its connection, rather than guessed at."
CUT_SHORT = "What is not there in full would be lost without anybody knowing."
STATIC = "These settings are read at start only."
OWN_DEFAULT = "A default of its own, for one small machine. A member of a cluster has it too."
