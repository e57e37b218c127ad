"""Kafka's small text files, good and damaged."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from kbroker.errors import DiskDamaged
from kbroker.fs import RealFileSystem
from kbroker.model import TopicPartition
from kbroker.storage import checkpoints
from kbroker.storage.directory import parse_partition_directory
from kbroker.storage.leader_epochs import LeaderEpochs

FS = RealFileSystem()


def test_offsets_come_back(tmp_path: Path) -> None:
    path = str(tmp_path / "offsets")
    offsets = {TopicPartition("b.c-d", 11): 1 << 40, TopicPartition("a", 0): 0}
    checkpoints.store_offsets(FS, path, offsets)
    assert (tmp_path / "offsets").read_text() == f"0\n2\na 0 0\nb.c-d 11 {1 << 40}\n"
    assert checkpoints.load_offsets(FS, path) == offsets
    assert [at.name for at in tmp_path.iterdir()] == ["offsets"]


def test_a_missing_or_empty_checkpoint_holds_nothing(tmp_path: Path) -> None:
    assert checkpoints.load_offsets(FS, str(tmp_path / "none")) == {}
    (tmp_path / "empty").write_text("")
    assert checkpoints.load_offsets(FS, str(tmp_path / "empty")) == {}


@pytest.mark.parametrize(
    "text", ["1\n0\n", "0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na 0 x\n", "x", "0\n-1\n", "0\n0\na 0 1\n"]
)
def test_a_damaged_checkpoint_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad").write_text(text)
    with pytest.raises(DiskDamaged, match="bad"):
        checkpoints.load_offsets(FS, str(tmp_path / "bad"))
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    with pytest.raises(DiskDamaged, match="not text"):
        checkpoints.load_offsets(FS, str(tmp_path / "bad"))


@pytest.mark.parametrize("text", ["", "version: 0\n", "version: 0\ntopic_id: !\n", "version: 1\ntopic_id: AA\n", "x"])
def test_a_torn_partition_metadata_tells_no_topic_id(tmp_path: Path, text: str) -> None:
    path = tmp_path / "partition.metadata"
    path.write_text(text)
    assert checkpoints.load_topic_id(FS, str(path)) is None
    checkpoints.store_topic_id(FS, str(path), UUID(int=5))
    assert checkpoints.load_topic_id(FS, str(path)) == UUID(int=5)


def test_names_of_partitions_and_of_what_is_on_its_way_out() -> None:
    assert parse_partition_directory("a-b-3") == TopicPartition("a-b", 3)
    for name in ("a", "a-", "-3", "a-03", "a-b", "a-0.deadbeef-delete", "a-0.deadbeef-stray", "a-0.x-future", "a b-0"):
        assert parse_partition_directory(name) is None


def test_leader_epochs_that_contradict_a_new_one_go(tmp_path: Path) -> None:
    epochs = LeaderEpochs(FS, str(tmp_path))
    epochs.assign(0, 0)
    epochs.assign(1, 10)
    epochs.assign(2, 20)
    epochs.assign(2, 25)
    assert epochs.entries == [(0, 0), (1, 10), (2, 20)]
    epochs.assign(4, 20)
    assert epochs.entries == [(0, 0), (1, 10), (4, 20)]
    epochs.truncate_from_start(15)
    assert epochs.entries == [(1, 15), (4, 20)]
    epochs.truncate_from_end(20)
    assert epochs.entries == [(1, 15)]
    epochs.begin_at(12)
    epochs.replace_from(12, [(0, 12), (3, 14)], 100)
    assert epochs.entries == [(0, 12), (3, 14)]
    again = LeaderEpochs(FS, str(tmp_path))
    assert again.load()
    assert again.entries == [(0, 12), (3, 14)]


@pytest.mark.parametrize("entry", ["a 0 x", "a 0 -1", f"a 0 {1 << 63}", f"a {1 << 31} 0", "a 0 " + "9" * 5000, "a 0 ²"])
def test_an_entry_whose_numbers_are_none_is_told_with_its_place(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "bad"
    path.write_text(f"0\n2\nb 1 2\n{entry}\n")
    with pytest.raises(DiskDamaged) as told:
        checkpoints.load_offsets(FS, str(path))
    assert told.value.position == len("0\n2\nb 1 2\n")
    path.write_text(f"0\n1\n{1 << 31} 0\n")
    with pytest.raises(DiskDamaged, match="at byte 4"):
        checkpoints.load_epochs(FS, str(path))
