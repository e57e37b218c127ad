"""Commits in files of their own and in bundles, against the list of all of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.model import TopicPartition
from kbroker.spark.loader.commits import commit_files
from kbroker.spark.loader.commits.commit import Commit, LakeFile, LoadedRange, Part, TopicState
from kbroker.spark.loader.commits.commit_files import (
    FileCommits,
    all_commits,
    bundle_path,
    commit_numbers,
    commit_path,
    files_now,
    fold,
    replaced_by,
)
from kbroker.spark.loader.errors import LakeDamaged, LakeTaken
from kbroker.spark.loader.lake.storage import Directory
from tests.kit.spark.memory_lake import MemoryLake


@pytest.fixture(autouse=True)
def small_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_files, "BUNDLE", 3)


class Lake:
    """Commits that add a file or two and now and then remove one; and what they are, in a list."""

    def __init__(self, storage: Any = None):
        self.storage = storage or MemoryLake()
        self.commits: list[Commit] = []
        self.there: dict[str, LakeFile] = {}
        self._random = random.Random(0)

    def add(self) -> None:
        number = len(self.commits) + 1
        run = f"{self._random.getrandbits(48):012x}"
        added = [f"topic=t/{number}-{i}" for i in range(self._random.randrange(3))]
        files = tuple(
            LakeFile(path, f"{path}.staged", "t", 1, 1, 10, 5, 5, (Part(0, number, number, 1),)) for path in added
        )
        some = self._random.sample(sorted(self.there), min(len(self.there), 5))
        removed = tuple(path for path in some if self._random.random() < 0.1)
        ranges = (LoadedRange("t", 0, number, number + 1, 1),)
        state, next_offsets = {"t": TopicState("id")}, {TopicPartition("t", 0): number + 1}
        commit = Commit(number, run, 1000 + number, state, next_offsets, {}, ranges, files, removed)
        self.storage.write(f"_kbload/prepared/{commit.staging}.json", b"")
        FileCommits(self.storage).add(commit)
        self.commits.append(commit)
        for path in removed:
            del self.there[path]
        self.there |= {file.path: file for file in files}

    def check(self) -> None:
        assert list(all_commits(self.storage)) == self.commits
        for after in (0, 1, len(self.commits) // 2, len(self.commits) - 1, len(self.commits)):
            assert list(all_commits(self.storage, after)) == self.commits[max(0, after) :]
        assert files_now(self.storage) == self.there
        assert FileCommits(self.storage).last() == (self.commits[-1] if self.commits else None)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 9), st.just("fold"), st.tuples(st.just("cut off"), st.integers(1, 12)))))
def test_what_is_folded_is_what_was_there(steps: list[Any]) -> None:
    lake = Lake()
    for step in steps:
        if isinstance(step, int):
            for _ in range(step):
                lake.add()
        elif step == "fold":
            fold(lake.storage)
            assert len(commit_numbers(lake.storage)) < 6
            assert len(lake.storage.names("_kbload/prepared")) < 6
        else:
            lake.storage.cut_off_after(step[1])
            try:
                fold(lake.storage)
            except InterruptedError:
                pass
            lake.storage.cut_off_after(None)
        lake.check()


def test_loads_for_long_leave_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_files, "BUNDLE", 100)
    lake = Lake()
    for _ in range(1250):
        lake.add()
        fold(lake.storage)
        assert len(commit_numbers(lake.storage)) < 200
    assert len(lake.storage.names("_kbload/bundles")) == 11
    lake.storage.calls.clear()
    fold(lake.storage)
    FileCommits(lake.storage).last()
    assert lake.storage.calls == ["names", "names", "read"]  # whatever was loaded before
    lake.storage.calls.clear()
    assert list(all_commits(lake.storage)) == lake.commits
    assert len(lake.storage.calls) == 11 + 150 + 2


@pytest.mark.parametrize("when", ["listed", "read"])
def test_commits_that_are_folded_while_they_are_read(when: str) -> None:
    lake = Lake()
    for _ in range(20):
        lake.add()
    folded = []

    def fold_now(call: str, path: str) -> None:
        if not folded and call == ("names" if when == "listed" else "read") and path != "_kbload/commits":
            folded.append(path)
            fold(lake.storage)

    lake.storage.before = fold_now
    assert list(all_commits(lake.storage)) == lake.commits
    assert folded


def test_several_fold_at_once() -> None:
    lake = Lake()
    for _ in range(30):
        lake.add()
    for step in range(1, 60):
        again = Lake(lake.storage.copy())
        again.commits, again.there = lake.commits, lake.there
        left = [step]

        def other(call: str, path: str, left: list[int] = left, again: Lake = again) -> None:
            left[0] -= 1
            if left[0] == 0:
                again.storage.before = lambda call, path: None
                fold(again.storage)

        again.storage.before = other
        fold(again.storage)
        again.storage.before = lambda call, path: None
        again.check()


def test_a_loader_that_was_away_for_long_cannot_commit_a_number_that_was_folded() -> None:
    lake = Lake()
    for _ in range(20):
        lake.add()
    late = lake.commits[3]
    with pytest.raises(LakeTaken):
        FileCommits(lake.storage).add(late)
    fold(lake.storage)
    with pytest.raises(LakeTaken, match="another loader has committed 4"):
        FileCommits(lake.storage).add(late)
    lake.check()


def test_what_a_late_loader_leaves_when_it_is_killed_is_passed_by() -> None:
    lake = Lake()
    for _ in range(20):
        lake.add()
    fold(lake.storage)
    stray = json.loads(lake.commits[3].encode()) | {"run": "stray", "files": []}
    lake.storage.write(commit_path(4), json.dumps(stray).encode())
    lake.check()
    for _ in range(3):
        lake.add()
    fold(lake.storage)
    lake.check()
    assert 4 not in commit_numbers(lake.storage)


def test_files_that_were_replaced_are_found_in_bundles() -> None:
    lake = Lake()
    for _ in range(40):
        lake.add()
    fold(lake.storage)
    last = next(commit for commit in reversed(lake.commits) if commit.removed)
    assert [file.path for file in replaced_by(lake.storage, last)] == list(last.removed)


def damage(change: Callable[[bytes], bytes], path: str, storage: Any) -> None:
    storage.write(path, change(storage.read(path)))


@pytest.mark.parametrize(
    "harm, match",
    [
        (
            lambda lake: lake.remove([bundle_path(3)]),
            r"not all commits up to 3 are in _kbload/commits.* no .*03\.jsonl",
        ),
        (lambda lake: lake.remove([commit_path(19)]), "not all commits up to 21"),
        (lambda lake: damage(lambda data: data[:-9], bundle_path(3), lake), "03.jsonl.gz is no bundle of commits"),
        (lambda lake: damage(lambda data: b"x" + data, bundle_path(3), lake), "03.jsonl.gz is no bundle of commits"),
        (lambda lake: lake.write(bundle_path(3), lake.read(bundle_path(6))), "has other commits than 1 to 3"),
    ],
)
def test_commits_that_are_gone_or_damaged_are_named(harm: Callable[[Any], None], match: str) -> None:
    lake = Lake()
    for _ in range(20):
        lake.add()
    fold(lake.storage)
    harm(lake.storage)
    with pytest.raises(LakeDamaged, match=match):
        list(all_commits(lake.storage))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Lake]:
    yield Lake(Directory(str(tmp_path)))


def test_a_directory(directory: Lake) -> None:
    for number in range(1, 30):
        directory.add()
        if number % 4 == 0:
            fold(directory.storage)
            directory.check()
    assert len(commit_numbers(directory.storage)) < 6 + 4
