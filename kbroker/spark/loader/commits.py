"""What a lake has, as a sequence of commits: the files that a load adds, and the offsets where the next one begins.

A commit is one file that is created or not: whoever has linked `commits/N.json` has committed, and nobody else can.
On disk. Do not rename fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from kbroker.spark.loader.errors import LakeDamaged, LakeTaken
from kbroker.spark.loader.lake import COMMITS, Directory, Storage
from kbroker.spark.offsets import Offsets, checkpointed, offsets_of

NAME = re.compile(r"(\d{10})\.json")


class Part(NamedTuple):
    """The rows of one partition in a file: offsets from `first` to `last`, both with rows."""

    partition: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True)
class LakeFile:
    """`staged`: where it is before it gets its name."""

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
    """`generation` counts how often a topic of this name was deleted and made again since it was loaded first."""

    topic_id: str
    generation: int = 0


@dataclass(frozen=True)
class Commit:
    """`next_offsets`, `newest_ms`, `topics` and `open_hours` are of all topics ever loaded, not of this load alone."""

    number: int
    run: str
    loaded_at_ms: int
    topics: dict[str, TopicState]
    next_offsets: Offsets
    newest_ms: Offsets
    """The latest timestamp of each partition."""
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


class FileCommits:
    """Of a lake that is a directory."""

    def __init__(self, storage: Directory):
        self._storage = storage

    def last(self) -> Commit | None:
        numbers = commit_numbers(self._storage)
        return read_commit(self._storage, numbers[-1]) if numbers else None

    def add(self, commit: Commit) -> None:
        if not self._storage.create(commit_path(commit.number), commit.encode()):
            raise LakeTaken(
                f"{self._storage.name}: another loader has committed {commit.number} meanwhile; "
                "what this one has read is given up, and nothing is lost"
            )

    def close(self) -> None:
        """Nothing is held."""


def commit_path(number: int) -> str:
    return f"{COMMITS}/{number:010}.json"


def commit_numbers(storage: Storage) -> list[int]:
    return sorted(int(found[1]) for name in storage.names(COMMITS) if (found := NAME.fullmatch(name)))


def read_commit(storage: Storage, number: int) -> Commit:
    path = commit_path(number)
    return decode_commit(storage.read(path), f"{storage.name}/{path}")


def all_commits(storage: Storage, after: int = 0) -> Iterator[Commit]:
    """Those with greater numbers than that, the oldest first."""
    for number in commit_numbers(storage):
        if number > after:
            yield read_commit(storage, number)


def replaced_by(storage: Storage, commit: Commit) -> list[LakeFile]:
    """The files in whose place those of the commit are."""
    found: dict[str, LakeFile] = {}
    if commit.removed:
        for before in all_commits(storage):
            if before.number < commit.number:
                found |= {file.path: file for file in before.files}
    return [found[path] for path in commit.removed]


def files_now(storage: Storage) -> dict[str, LakeFile]:
    """What the commits say that there is, by path."""
    found: dict[str, LakeFile] = {}
    for commit in all_commits(storage):
        change(found, commit)
    return found


def change(files: dict[str, LakeFile], commit: Commit) -> None:
    """From what was there before it to what is there after it, by path."""
    for path in commit.removed:
        files.pop(path, None)
    files |= {file.path: file for file in commit.files}
