"""What a lake has, as a sequence of commits: the files that a load adds, and the offsets where the next one begins.

A commit is one file that is created or not: whoever has linked `commits/N.json` has committed, and nobody else can.
On disk. Do not rename fields.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from kbroker.spark.loader.errors import LakeDamaged
from kbroker.spark.offsets import Offsets, checkpointed, offsets_of

COMMITS_TOPIC = re.compile("kbroker-load-[0-9a-f]{24}")
"""Where lakes in object stores have theirs."""


class Part(NamedTuple):
    """The rows of one partition in a file: offsets from `first` to `last`, both with rows."""

    partition: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True)
class LakeFile:
    """`staged`: where it is before it gets its name. `undated`: of how many rows the timestamp is no date."""

    path: str
    staged: str
    topic: str
    hour: int
    rows: int
    size: int
    first_ms: int
    last_ms: int
    parts: tuple[Part, ...]
    generation: int = 0
    is_quarantine: bool = False
    undated: int = 0


class LoadedRange(NamedTuple):
    """Offsets that a load has read: `rows` of them had a record, and some of those could not be decoded."""

    topic: str
    partition: int
    start: int
    until: int
    rows: int
    undecodable: int = 0


@dataclass(frozen=True)
class TopicState:
    """`generation` counts how often a topic of this name was deleted and made again since it was loaded first.

    `value_format`: binary, string, json or avro; empty in commits of before it was kept.
    """

    topic_id: str
    generation: int = 0
    value_format: str = ""


@dataclass(frozen=True)
class Commit:
    """`next_offsets`, `newest_ms`, `topics` and `open_hours` are of all topics ever loaded, not of this load alone."""

    number: int
    run: str
    loaded_at_ms: int
    topics: dict[str, TopicState]
    next_offsets: Offsets
    newest_ms: Offsets
    """The latest timestamp of each partition that was not from the future."""
    ranges: tuple[LoadedRange, ...] = ()
    files: tuple[LakeFile, ...] = ()
    removed: tuple[str, ...] = ()
    """Files of earlier commits in whose place these are."""
    open_hours: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Hours with rows that may get more."""
    complete_hours: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Those that are marked complete with this commit."""
    lost: tuple[str, ...] = ()
    """What the brokers no longer had, in words."""

    @property
    def staging(self) -> str:
        """The name of its folder of staged files."""
        return run_name(self.number, self.run)

    def encode(self) -> bytes:
        found = asdict(self)
        found["next_offsets"] = checkpointed(self.next_offsets)
        found["newest_ms"] = checkpointed(self.newest_ms)
        return json.dumps(found, separators=(",", ":")).encode()


def run_name(number: int, run: str) -> str:
    return f"{number:010}-{run}"


def decode_commit(data: bytes, named: str) -> Commit:
    """LakeDamaged: it is none."""
    try:
        found: dict[str, Any] = json.loads(data)
        return Commit(
            **{
                **found,
                "topics": {name: TopicState(**each) for name, each in found["topics"].items()},
                "next_offsets": offsets_of(found["next_offsets"]),
                "newest_ms": offsets_of(found["newest_ms"]),
                "ranges": tuple(LoadedRange(*each) for each in found["ranges"]),
                "files": tuple(
                    LakeFile(**{**each, "parts": tuple(Part(*part) for part in each["parts"])})
                    for each in found["files"]
                ),
                "removed": tuple(found["removed"]),
                "open_hours": {name: tuple(hours) for name, hours in found["open_hours"].items()},
                "complete_hours": {name: tuple(hours) for name, hours in found["complete_hours"].items()},
                "lost": tuple(found["lost"]),
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LakeDamaged(f"{named} is no commit of kbroker load: {error!r}") from None


class CommitLog(Protocol):
    """Who commits to a lake. One at a time succeeds."""

    def last(self) -> Commit | None: ...
    def add(self, commit: Commit) -> None:
        """LakeTaken: another has been first."""

    def close(self) -> None: ...
