import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._core.crc import crc32c_of
from kbroker.cli.log_files import Entry, Problem, read_file
from kbroker.cli.main import main
from kbroker.errors import KbrokerError
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import Record, encode_batch


def batch(base_offset: int, count: int = 2, codec: int = Codec.NONE, timestamp: int = 1000) -> bytes:
    records = [
        Record(base_offset + i, timestamp + base_offset + i, b"k", b"v%d" % i, [("h", b"\xff")]) for i in range(count)
    ]
    return encode_batch(records, base_offset=base_offset, codec=codec, leader_epoch=3)


def old_message(offset: int, magic: int, value: bytes) -> bytes:
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 77) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def entries(path: Path, with_records: bool = False) -> list[Entry]:
    found = read_file(path, with_records)
    assert found is not None
    return [item for item in found if isinstance(item, Entry)]


def problems(path: Path) -> list[tuple[int, str]]:
    found = read_file(path)
    assert found is not None
    return [(item.position, item.what) for item in found if isinstance(item, Problem)]


LOG = "00000000000000000000.log"


def test_batches_of_every_codec_are_listed_with_their_positions(tmp_path: Path) -> None:
    parts = [batch(2 * codec, codec=codec) for codec in Codec]
    path = write(tmp_path, LOG, b"".join(parts))
    found = entries(path)
    assert [entry.fields["codec"] for entry in found] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [entry.position for entry in found] == [sum(map(len, parts[:i])) for i in range(5)]
    assert [entry.fields["last_offset"] for entry in found] == [1, 3, 5, 7, 9]
    assert problems(path) == []


def test_records_are_listed_when_asked_for(tmp_path: Path) -> None:
    found = [entry.fields for entry in entries(write(tmp_path, LOG, batch(0)), with_records=True)[1:]]
    assert [(r["offset"], r["key"], r["value"], r["headers"]) for r in found] == [
        (0, b"k", b"v0", (("h", b"\xff"),)),
        (1, b"k", b"v1", (("h", b"\xff"),)),
    ]


def test_messages_of_magic_0_and_1_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path, LOG, old_message(0, 0, b"a") + old_message(1, 1, b"b") + batch(2))
    assert [(e.kind, e.fields["base_offset"], e.fields["base_timestamp"]) for e in entries(path)] == [
        ("message", 0, -1),
        ("message", 1, 77),
        ("batch", 2, 1002),
    ]
    assert problems(path) == []


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-1], r"bytes from here on are not read"),
        (lambda data: data[:200] + b"\xff" + data[201:], r"CRC"),
        (lambda data: data + b"\0" * 50, "50 bytes of zeros to the end"),
        (lambda data: data + batch(1), "offset 1 where 6 or more is due"),
        (lambda data: data + old_message(6, 1, b"x")[:-1] + b"y", "CRC does not match"),
        (lambda data: data + b"\xff" * 100, "are not read"),
        (lambda data: data + b"\x01", "are not read"),
    ],
)
def test_damage_is_named_with_its_position(tmp_path: Path, damage: Callable[[bytes], bytes], says: str) -> None:
    parts = [batch(0), batch(2), batch(4)]
    path = write(tmp_path, LOG, damage(b"".join(parts)))
    ((position, what),) = problems(path)
    assert says in what
    assert position in {0, len(parts[0]), len(parts[0] + parts[1]), len(b"".join(parts))}


def test_a_log_that_starts_before_its_name_says_is_named(tmp_path: Path) -> None:
    assert problems(write(tmp_path, "00000000000000000005.log", batch(0))) == [(0, "offset 0 where 5 or more is due")]
    assert problems(write(tmp_path, "wrong.log", batch(0)))[0][0] == -1


@settings(max_examples=60)
@given(st.data())
def test_flipped_bytes_never_raise(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    good = batch(0) + old_message(2, 1, b"x") + batch(3, codec=Codec.ZSTD)
    damaged = bytearray(good)
    for position in data.draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
        damaged[position] ^= data.draw(st.integers(1, 255))
    folder = tmp_path_factory.mktemp("flipped")
    path = write(folder, LOG, bytes(damaged[: data.draw(st.integers(0, len(good)))]))
    assert all(isinstance(item, (Entry, Problem)) for item in read_file(path, True) or ())


def test_an_index_is_held_against_its_log(tmp_path: Path) -> None:
    first = batch(0)
    write(tmp_path, LOG, first + batch(2))
    good = struct.pack(">iiii", 1, 0, 3, len(first))
    path = write(tmp_path, "00000000000000000000.index", good + b"\0" * 80)
    assert [entry.fields for entry in entries(path)] == [
        {"offset": 1, "log_position": 0},
        {"offset": 3, "log_position": len(first)},
    ]
    assert problems(path) == []
    path.write_bytes(struct.pack(">iiii", 3, 0, 1, 9) + b"\0")
    whats = [what for _, what in problems(path)]
    assert whats == [
        "the batch at byte 0 of the log does not hold offset 3",
        "entry 1, 9 does not come after 3, 0",
        "no batch begins at byte 9 of the log",
        "the size is no multiple of 8: 1 bytes too many",
    ]


def test_a_time_index_is_held_against_its_log(tmp_path: Path) -> None:
    write(tmp_path, LOG, batch(0) + batch(2))
    path = write(tmp_path, "00000000000000000000.timeindex", struct.pack(">qiqi", 1001, 1, 1003, 3) + b"\0" * 120)
    assert [entry.fields for entry in entries(path)] == [
        {"timestamp": 1001, "offset": 1},
        {"timestamp": 1003, "offset": 3},
    ]
    assert problems(path) == []
    path.write_bytes(struct.pack(">qiqi", 1003, 3, 1002, 4))
    assert [what for _, what in problems(path)] == [
        "entry 1002, 4 does not come after 1003, 3",
        "the log has no batch with offset 4 and largest timestamp 1002",
    ]


def snapshot(*producers: tuple[int, ...]) -> bytes:
    body = struct.pack(">i", len(producers)) + b"".join(struct.pack(">qhiqiqiq", *one) for one in producers)
    return struct.pack(">hI", 1, crc32c_of(body)) + body


def test_a_snapshot_lists_producers_and_its_crc_is_checked(tmp_path: Path) -> None:
    data = snapshot((7, 1, 9, 100, 4, 12345, -1, -1), (8, 0, 0, 3, 0, 1, -1, -1))
    path = write(tmp_path, "00000000000000000101.snapshot", data)
    assert [(e.fields["producer_id"], e.fields["last_offset"]) for e in entries(path)] == [(7, 100), (8, 3)]
    assert problems(path) == []
    path.write_bytes(data[:-1] + b"\x01")
    assert problems(path) == [(2, "CRC does not match")]
    path.write_bytes(snapshot((7, 1, 9, 100, 4, 12345, -1, -1))[:-1])
    assert any("do not fit" in what for _, what in problems(path))
    path.write_bytes(b"\0")
    assert problems(path) == [(0, "1 bytes are too few")]


def test_checkpoints_are_listed_and_their_count_is_checked(tmp_path: Path) -> None:
    path = write(tmp_path, "recovery-point-offset-checkpoint", b"0\n2\nviews 0 17\nviews 1 3\n")
    assert [tuple(entry.fields.values()) for entry in entries(path)] == [("views", 0, 17), ("views", 1, 3)]
    path.write_bytes(b"1\n3\nviews 0\nviews 1 3\n")
    assert [what for _, what in problems(path)] == [
        "version 1, which is not known",
        "'views 0' is not topic partition offset",
        "3 lines are announced, 2 are there",
    ]
    epochs = write(tmp_path, "leader-epoch-checkpoint", b"0\n1\n5 100\n")
    assert entries(epochs)[0].fields == {"epoch": 5, "start_offset": 100}


def test_an_unknown_kind_of_file_and_a_missing_one_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump-log", str(write(tmp_path, "x.txt", b""))]) == 1
    assert "a kind of file that is not known" in capsys.readouterr().err
    assert main(["dump-log", str(tmp_path / "nothing")]) == 1
    assert "no such file or directory" in capsys.readouterr().err


def test_a_directory_is_dumped_whole_and_problems_give_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "views-0"
    folder.mkdir()
    log = write(folder, LOG, batch(0))
    write(tmp_path, "meta.properties", b"#comment\nversion=0\nbroker.id=1\n")
    assert main(["dump-log", "--json", str(tmp_path)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["property", "property", "batch"]
    assert main(["dump-log", "--records", str(tmp_path)]) == 0
    assert 'key "k"  value "v0"' in capsys.readouterr().out
    log.write_bytes(batch(0)[:-1])
    assert main(["dump-log", "--problems", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{log}: byte 0: ") and "1 problem found" in captured.err


def test_an_empty_log_is_fine(tmp_path: Path) -> None:
    path = write(tmp_path, LOG, b"")
    assert entries(path) == [] and problems(path) == []


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / LOG
    path.symlink_to(tmp_path / LOG)
    assert main(["dump-log", str(path)]) == 1
    assert KbrokerError.__name__ not in capsys.readouterr().err
