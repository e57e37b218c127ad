"""The commits of a lake. Each has the files that a load adds, and the offsets at which the next load begins.

In a directory a commit is one file that is created or not: the loader that has linked `commits/N.json` has committed,
and no other can. On disk. Do not rename fields.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from kbroker.spark.loader.errors import LakeDamaged
from kbroker.spark.options.offsets import Offsets, checkpointed, offsets_of

COMMITS_TOPIC = re.compile("kbroker-load-[0-9a-f]{24}")
"""Names of the topics with the commits of lakes in object stores."""


class Part(NamedTuple):
    """The rows of one partition in a file: offsets from `first` to `last`, both with rows."""

    partition: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True)
class LakeFile:
    """A file of a lake. `staged`: its path before it gets its name. `undated`: rows whose timestamp is not a date."""

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
    """What a lake remembers of a topic.

    `generation`: how often a topic of this name was deleted and made again since it was loaded first. `value_format`:
    binary, string, json or avro; empty in old commits, which did not keep it.
    """

    topic_id: str
    generation: int = 0
    value_format: str = ""


@dataclass(frozen=True)
class Commit:
    """What one load adds to a lake, and what the lake is then.

    `next_offsets`, `newest_ms`, `topics` and `open_hours` are those of all topics ever loaded, not of this load alone.
    """

    number: int
    run: str
    loaded_at_ms: int
    topics: dict[str, TopicState]
    next_offsets: Offsets
    newest_ms: Offsets
    """For each partition, the latest timestamp that was not in the future."""
    ranges: tuple[LoadedRange, ...] = ()
    files: tuple[LakeFile, ...] = ()
    removed: tuple[str, ...] = ()
    """Paths of files of earlier commits that this commit's files replace."""
    open_hours: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Hours with rows that may get more."""
    complete_hours: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Hours that are marked complete with this commit."""
    lost: tuple[str, ...] = ()
    """What the brokers no longer had, in words."""

    @property
    def staging(self) -> str:
        """The name of the commit's folder of staged files."""
        return run_name(self.number, self.run)

    def encode(self) -> bytes:
        found = asdict(self)
        found["next_offsets"] = checkpointed(self.next_offsets)
        found["newest_ms"] = checkpointed(self.newest_ms)
        return json.dumps(found, separators=(",", ":")).encode()


def run_name(number: int, run: str) -> str:
    return f"{number:010}-{run}"


def decode_commit(data: bytes, named: str) -> Commit:
    """Return the commit in `data`. Raises LakeDamaged, with the name `named`, when the bytes are not a commit."""
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
    """The commits of a lake. Of several loaders that commit at once only one succeeds."""

    def last(self) -> Commit | None: ...
    def add(self, commit: Commit) -> None:
        """Commit. Raises LakeTaken when another loader has been first."""

    def close(self) -> None: ...
