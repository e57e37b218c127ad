"""`verify-log`: what is right is not complained of, and what is wrong is found where it is."""

from __future__ import annotations

import random
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._core.wire.message_set import wrap
from kbroker.errors import KbrokerError
from kbroker.inspection.directory_check import Verifier
from kbroker.inspection.entries import Finding
from kbroker.model import TopicPartition
from kbroker.server.own_store import mark_as_members
from kbroker.storage import checkpoints, directory
from tests.kit.logs import directory as kit

FLIPS = 300
Place = tuple[Path, int]


def findings(path: Path, **options: bool) -> list[Finding]:
    return list(Verifier(**options).check(path))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.make_log_directory(tmp_path_factory.mktemp("verify") / "data")


@pytest.fixture
def data(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "data"))


def files_in(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_a_good_directory_has_no_findings_as_a_whole_and_in_its_parts(good: Path) -> None:
    assert findings(good) == []
    for path in (*files_in(good), *(path for path in good.iterdir() if path.is_dir())):
        assert findings(path) == [], path


def end_of_line(data: bytes, at: int) -> bytes:
    return data[data.rfind(b"\n", 0, at) + 1 :].split(b"\n")[0]


def is_another_truth(path: Path, old: bytes, new: bytes, at: int) -> bool:
    """Whether what a file says after a flip cannot be told from what it might say."""
    if path.name.endswith("-offset-checkpoint"):
        # A smaller offset than it was, of the same partition.
        was, now = end_of_line(old, at).split(), end_of_line(new, at).split()
        return was[:2] == now[:2] and len(was) == len(now) == 3 and now[2].isdigit() and int(now[2]) <= int(was[2])
    if path.name == checkpoints.LEADER_EPOCHS:
        # The first epoch begins where the log does, and records may have been deleted up to there.
        was, now = old.split(b"\n")[2].split(), new.split(b"\n")[2].split()
        return was[0] == now[0] and now[1:2] > was[1:2] and now[1].isdigit() and at < old.index(b"\n", 4)
    if path.suffix == ".timeindex":
        # Any offset of the batch; those of this directory have up to three.
        entry = at // 12 * 12
        (was,), (now,) = (struct.unpack_from(">i", data, entry + 8) for data in (old, new))
        return at % 12 >= 8 and 0 < abs(was - now) < 3
    if path.suffix == ".index":
        # The last offset of a batch behind the one at the position: one append may bring several.
        entry = at // 8 * 8
        (was,), (now,) = (struct.unpack_from(">i", data, entry) for data in (old, new))
        return at % 8 < 4 and was < now and (now - was) % 3 == 0
    if path.name == "partition.metadata":
        return at > new.index(b"topic_id: ") + 9 and re.fullmatch(rb"[\w-]{22}", new[21:]) is not None
    if path.name == "meta.properties":
        line = end_of_line(new, at)
        return line.startswith(b"#") or re.fullmatch(rb"(broker\.id=\d+|cluster\.id=[\w.-]+)", line) is not None
    return path.name == directory.CLEAN_MARK and re.fullmatch(rb'{"version":0,"brokerEpoch":-?\d+}', new) is not None


def flips(files: list[Path]) -> Iterator[tuple[Path, int, int]]:
    """The first bytes of every file, the rest at random."""
    randomness = random.Random(3)
    for path in files:
        size = path.stat().st_size
        for at in range(min(size, 16)):
            yield path, at, randomness.randrange(1, 256)
    big = [path for path in files if path.stat().st_size > 16]
    for _ in range(FLIPS):
        path = randomness.choice(big)
        yield path, randomness.randrange(path.stat().st_size), 1 << randomness.randrange(8)


def test_a_flip_is_found_in_its_file_and_not_behind_its_place(data: Path) -> None:
    passed = 0
    for path, at, mask in flips(files_in(data)):
        old = path.read_bytes()
        new = old[:at] + bytes([old[at] ^ mask]) + old[at + 1 :]
        path.write_bytes(new)
        found = findings(data)
        right = [one for one in found if one.path == str(path) and one.position <= at]
        # Where two files disagree, one of them is told of and the other one named.
        right += [one for one in found if path.name in one.what]
        if not right and is_another_truth(path, old, new, at):
            passed += 1
        else:
            assert right, (path.name, at, mask, found)
        path.write_bytes(old)
    assert passed < FLIPS / 5
    assert findings(data) == []


def may_be_shorter(path: Path, size: int) -> bool:
    """Whether a file of this size is what it might have been a while ago."""
    if path.name.endswith("checkpoint") or path.name == directory.CLEAN_MARK:
        return size == 0
    if path.suffix == ".index":
        return size % 8 == 0
    if path.suffix == ".timeindex":
        return size % 12 == 0 and path.stem == max(one.stem for one in path.parent.glob("*.log"))
    return False


def test_a_file_cut_at_any_length_is_found(data: Path) -> None:
    for path in files_in(data):
        old = path.read_bytes()
        step = max(1, len(old) // 25)
        for size in range(0, len(old), step):
            path.write_bytes(old[:size])
            found = findings(data)
            if not may_be_shorter(path, size):
                near = [one for one in found if one.path == str(path) or path.parent.name in one.path + one.what]
                assert near, (path.name, size, found)
        path.write_bytes(old)


def test_the_place_of_damage_is_told_to_the_byte(data: Path) -> None:
    log = data / "codecs-0" / "00000000000000000000.log"
    old = log.read_bytes()
    second = len(kit.batch(0))
    log.write_bytes(old[: second + 80] + bytes([old[second + 80] ^ 1]) + old[second + 81 :])
    assert findings(data) == [Finding(str(log), second, "CRC does not match")]
    log.write_bytes(old[:-1])
    (found,) = findings(log)
    assert found.position == len(old) - len(kit.batch(12, codec=4)) and "cut off" in found.what
    log.write_bytes(old + bytes(1000))
    assert Finding(str(log), len(old), "1000 bytes of zeros to the end") in findings(data)


@pytest.mark.parametrize(
    ("suffix", "entry", "left"),
    [
        (".index", ">ii", [(900, 90_000), (950, 95_000)]),
        (".timeindex", ">qi", [(kit.NOW * 2, 7), (kit.NOW * 2 + 1, 900)]),
    ],
)
def test_what_a_truncation_leaves_behind_the_end_of_a_preallocated_index_is_no_finding(
    data: Path, suffix: str, entry: str, left: list[tuple[int, int]]
) -> None:
    """Apache Kafka moves the end of a mapped index and leaves the bytes; the file has zeros up to its size."""
    path = data / "codecs-0" / f"{15:020}{suffix}"
    old = path.read_bytes()
    remnants = b"".join(struct.pack(entry, *each) for each in left)
    size, zeros = struct.calcsize(entry), bytes(4800)
    path.write_bytes(old + remnants + zeros)
    assert findings(data) == []
    path.write_bytes(old + remnants)
    assert {one.position for one in findings(data)} == {len(old), len(old) + size}
    backwards = remnants[size:] + remnants[:size]
    path.write_bytes(old + backwards + zeros)
    assert len(old) in {one.position for one in findings(data)}
    path.write_bytes(remnants[:size] + old[size:] + zeros)
    assert 0 in {one.position for one in findings(data)}


def test_messages_inside_a_set_that_lie_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x-0" / "00000000000000000000.log"
    path.parent.mkdir()

    def say(data: bytes) -> list[str]:
        path.write_bytes(data)
        return [what for _, _, what in findings(path)]

    builder = kit.MessageSetBuilder(1)
    for offset in (1, 0, 2):
        builder.append(offset, kit.NOW, None, b"v")
    back = kit.deflate(kit.Codec.GZIP, builder.messages())
    assert say(wrapped(back, 2, 1)) == ["offsets of the messages inside do not ascend within the set's"]
    inner = kit.message_set([0, 1], 1, kit.Codec.SNAPPY)
    nested = kit.deflate(kit.Codec.GZIP, inner)
    assert say(wrapped(nested, 1, 1)) == ["a compressed message inside a compressed one"]
    mixed = kit.deflate(kit.Codec.GZIP, kit.message(0, 0) + kit.message(1, 1))
    assert say(wrapped(mixed, 1, 1)) == ["messages of two formats in one set"]
    assert say(wrapped(kit.deflate(kit.Codec.GZIP, kit.message(9, 0)), 3, 0)) == [
        "offsets of the messages inside do not ascend within the set's"
    ]
    assert say(wrapped(b"no gzip", 3, 0)) == ["the records do not inflate"]


def wrapped(payload: bytes, offset: int, magic: int) -> bytes:
    return wrap(payload, kit.Codec.GZIP, magic, offset, kit.NOW)


def test_gaps_are_found_unless_the_log_was_compacted(data: Path) -> None:
    home = data / "gaps-0"
    kit.write_partition(data, TopicPartition("gaps", 0), [(0, [kit.batch(0), kit.batch(5)]), (20, [kit.batch(20)])])
    assert {(Path(one.path).name, one.position) for one in findings(data)} == {
        ("00000000000000000000.log", len(kit.batch(0))),
        ("00000000000000000020.log", 0),
    }
    assert findings(data, has_gaps=True) == []
    checkpoints.store_offsets(kit.FILES, str(data / "cleaner-offset-checkpoint"), {TopicPartition("gaps", 0): 20})
    assert findings(data) == []
    assert findings(home) == []


def test_files_that_do_not_belong_there_are_named(data: Path) -> None:
    (data / "orders.txt").write_text("x")
    (data / "codecs-0" / "00000000000000000000.log.bak").write_text("x")
    (data / "sub").mkdir()
    (data / "codecs-0" / "00000000000000000099.index").write_bytes(b"")
    (data / "empty-0" / "00000000000000000000.timeindex").unlink()
    (data / "gone-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    assert {(Path(one.path).name, one.what) for one in findings(data)} == {
        ("orders.txt", "no file of a log directory has this name"),
        ("sub", "no directory of a log directory has this name"),
        ("00000000000000000000.log.bak", "no file of a partition has this name"),
        ("00000000000000000099.index", "its .log is not there"),
        ("00000000000000000000.log", "its .timeindex is not there"),
    }


def test_the_mark_of_a_member_of_a_cluster_is_no_finding(data: Path) -> None:
    mark_as_members([data], "127.0.0.1:2181")
    (data / "coordination.sqlite.carried-wal").touch()
    assert list(Verifier().check(data)) == []


def test_ids_must_agree_over_all_directories(data: Path, good: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    directory.ensure_meta_properties(kit.FILES, str(other), 2, "another")
    kit.write_partition(other, TopicPartition("codecs", 0), [(0, [])])
    (other / "codecs-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    verifier = Verifier()
    assert list(verifier.check(data)) == []
    whats = [re.sub(r"/\S*/", "", one.what) for one in verifier.check(other)]
    assert whats == [
        "broker.id 2, but meta.properties has 1",
        "cluster.id another, but meta.properties has kb-K3-kraft-or-not-3wA",
        "codecs-0 is in data, too",
        "topic_id AAAAAAAAAAAAAAAAAAAAAQ, but partition.metadata has EjRWeJq83vASNFZ4mrze8A",
    ]


def test_a_start_offset_that_other_files_contradict_is_found_with_what_can_be_done(data: Path) -> None:
    path = data / checkpoints.LOG_START_OFFSETS
    path.write_bytes(b"0\n2\ncodecs 0 90\nelected 0 9\n")
    found = findings(data)
    assert [(one.path, one.position) for one in found] == [(str(path), 4), (str(path), 16)]
    assert "put the right offset into this line, or remove it" in found[0].what
    assert found[1].what == "elected-0 at 9, its first leader epoch begins at 0: a start takes the less"


def test_checkpoints_that_know_too_much_are_found(data: Path) -> None:
    path = data / checkpoints.RECOVERY_POINTS
    path.write_bytes(b"0\n2\ncodecs 0 31\nnobody 3 1\n")
    assert findings(data) == [
        Finding(str(path), 4, "codecs-0 at 31, its log ends at 30"),
        Finding(str(path), 16, "nobody-3 has no directory"),
    ]
    (data / directory.CLEAN_MARK).unlink()
    assert [one.position for one in findings(data)] == [4]


def test_what_is_no_log_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(KbrokerError, match="no such file"):
        findings(tmp_path / "nothing")
    with pytest.raises(KbrokerError, match="neither a log directory nor a partition's"):
        findings(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(KbrokerError, match=r"notes\.txt: no file of a log directory has this name"):
        findings(tmp_path / "notes.txt")
    metadata = tmp_path / "kraft" / "__cluster_metadata-0"
    metadata.mkdir(parents=True)
    (metadata / "00000000000000000000.log").write_bytes(b"")
    for path in (tmp_path / "kraft", metadata, metadata / "00000000000000000000.log"):
        with pytest.raises(KbrokerError, match="KRaft mode"):
            findings(path)


def test_a_file_that_cannot_be_read_is_a_finding(data: Path) -> None:
    log = data / "codecs-0" / "00000000000000000000.log"
    log.unlink()
    log.symlink_to(log.name)
    (found,) = [one for one in findings(data) if one.path == str(log)]
    assert "symbolic links" in found.what
