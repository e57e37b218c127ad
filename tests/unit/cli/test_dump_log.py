"""`dump-log`: every kind of file, and any bytes in it. Its words are Kafka's: tests/compat/test_dump_log.py."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.wire.message_set import wrap
from kbroker.cli.main import main
from kbroker.cli.verify_log import WHAT_TO_DO
from kbroker.inspection.binary_files import BINARY_FILES
from kbroker.inspection.text_files import TEXT_FILES
from tests.kit.logs import directory as kit

LOG = "00000000000000000000.log"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = kit.make_log_directory(tmp_path_factory.mktemp("dump") / "data")
    kit.write_state_logs(root)
    return root


@pytest.fixture
def data(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "data"))


def dumped(capsys: Capture, *words: object) -> list[dict[str, Any]]:
    """Entries of what is right."""
    assert main(["dump-log", "--json", *map(str, words)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_whole_directory_is_shown_with_all_kinds_of_files(good: Path, capsys: Capture) -> None:
    kinds = {entry["kind"] for entry in dumped(capsys, "--deep-iteration", good)}
    assert kinds == {
        "log", "batch", "message", "record", "index", "time_index", "aborted_transaction", "producer", "checkpoint",
        "property", "clean_shutdown",
    }  # fmt: skip
    assert main(["dump-log", "--print-data-log", str(good)]) == 0
    text = capsys.readouterr().out
    for words in (
        "Dumping ", "Log starting offset: 12", "endTxnMarker: ABORT coordinatorEpoch: 3", "topic: codecs partition: 0",
        "epoch: 2 startOffset: 3", "broker.id=1", "version: 0 brokerEpoch: -1", "topic_id=", "key: k0 payload: value 0",
    ):  # fmt: skip
        assert words in text, words


def test_entries_have_their_positions_and_fields(good: Path, capsys: Capture) -> None:
    batches = [one for one in dumped(capsys, good / "codecs-0" / LOG) if one["kind"] == "batch"]
    assert [one["codec"] for one in batches] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [one["position"] for one in batches] == [sum(b["size"] for b in batches[:at]) for at in range(5)]
    assert [(one["base_offset"], one["last_offset"], one["count"]) for one in batches] == [
        (at, at + 2, 3) for at in range(0, 15, 3)
    ]
    assert all(one["is_valid"] for one in batches)
    records = [one for one in dumped(capsys, "--print-data-log", good / "codecs-0" / LOG) if one["kind"] == "record"]
    assert [one["offset"] for one in records] == list(range(15))
    assert records[4]["key"] == "k1" and records[4]["headers"] == [["h", {"base64": "/w=="}]]


def test_messages_inside_of_sets_have_absolute_offsets(good: Path, capsys: Capture) -> None:
    for name, first in ((LOG, 0), ("00000000000000000012.log", 12)):
        found = dumped(capsys, "--deep-iteration", good / "old-0" / name)
        offsets = [one["offset"] for one in found if one["kind"] == "record"]
        assert offsets == list(range(first, first + len(offsets))) and len(offsets) >= 12


def test_state_records_are_decoded(good: Path, capsys: Capture) -> None:
    log = good / "__consumer_offsets-0" / LOG
    records = [one for one in dumped(capsys, "--offsets-decoder", log) if one["kind"] == "record"]
    assert json.loads(records[3]["value"]) == {
        "version": "3",
        "data": {"offset": 17, "leaderEpoch": 2, "metadata": "meta ü", "commitTimestamp": 1000},
    }
    log = good / "__transaction_state-0" / LOG
    values = [one["value"] for one in dumped(capsys, "--transaction-log-decoder", log) if one["kind"] == "record"]
    assert "state=PrepareCommit,partitions=[a-0,a-1]" in values[2] and values[-1] == "<DELETE>"


def test_only_the_asked_part_of_a_log_is_read(good: Path, capsys: Capture) -> None:
    log = good / "codecs-0" / LOG
    first = len(kit.batch(0))
    assert [one["kind"] for one in dumped(capsys, "--max-bytes", first, log)] == ["log", "batch"]
    assert [one["kind"] for one in dumped(capsys, "--max-bytes", first - 1, log)] == ["log"]


@pytest.mark.parametrize(
    ("damaged", "position", "says"),
    [
        (lambda data: data[:-1], -1, "cut off"),
        (lambda data: data + bytes(50), None, "zeros where a batch is due"),
        (lambda data: data + b"\xff" * 100, None, "unknown magic 255; 100 bytes from here on are not read"),
        (lambda data: data + b"\1", None, "cut off: 1 bytes"),
        (lambda data: data[:100] + b"?" + data[101:], 0, "CRC does not match"),
    ],
)
def test_damage_is_told_with_its_byte(
    data: Path, capsys: Capture, damaged: Any, position: int | None, says: str
) -> None:
    log = data / "codecs-0" / LOG
    old = log.read_bytes()
    log.write_bytes(damaged(old))
    assert main(["dump-log", "--json", str(log)]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    problem = next(one for one in lines if one["kind"] == "problem")
    assert says in problem["what"]
    expected = {None: len(old), -1: len(old) - len(kit.batch(12, codec=4))}.get(position, position)
    assert problem["position"] == expected
    assert main(["dump-log", str(log)]) == 1
    captured = capsys.readouterr()
    assert f"{log}: byte {expected}: " in captured.err
    if position != 0:
        assert f"invalid bytes at the end of {LOG}" in captured.out


def test_an_index_is_held_against_its_log(data: Path, capsys: Capture) -> None:
    index = data / "codecs-0" / "00000000000000000000.index"
    index.write_bytes(struct.pack(">iiii", 3, 0, 5, 221))
    assert main(["dump-log", str(index)]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1:] == ["offset: 3 position: 0", "offset: 5 position: 221"]
    assert captured.err.splitlines() == [
        f"{index}: byte 0: offset 3, but the batch there ends at offset 2",
        f"{index}: byte 8: no batch begins at byte 221 of the log",
    ]
    assert main(["dump-log", "--index-sanity-check", str(index)]) == 0
    assert "passed sanity check" in capsys.readouterr().out
    index.write_bytes(struct.pack(">iiii", 3, 0, 1, 221) + b"\0")
    assert main(["dump-log", "--index-sanity-check", str(index)]) == 1


def test_what_cannot_be_shown_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("x")
    link = tmp_path / LOG
    link.symlink_to(LOG)
    pipe = tmp_path / "00000000000000000001.log"
    os.mkfifo(pipe)
    kraft = tmp_path / "__cluster_metadata-0"
    kraft.mkdir()
    (kraft / LOG).write_bytes(b"")
    for command in ("dump-log", "verify-log"):
        for path, says in (
            (notes, "no file of a log directory has this name"),
            (tmp_path / "nothing", "no such file or directory"),
            (tmp_path / "__cluster_metadata-0", "KRaft"),
            (kraft / LOG, "KRaft"),
            (pipe, "not a regular file"),
            (link, "no such file or directory"),
        ):
            assert main([command, str(path)]) == 1
            captured = capsys.readouterr()
            lines = (captured.out + captured.err).splitlines()
            lines = [line for line in lines if not line.startswith("Dumping") and WHAT_TO_DO not in line]
            assert any(says in line for line in lines) and len(lines) <= 2, (command, path, lines)
    (tmp_path / "plain").mkdir()
    assert main(["dump-log", str(tmp_path / "plain")]) == 1
    assert "neither a log directory nor a partition's" in capsys.readouterr().err
    assert main(["dump-log"]) == 2


NOBODY = 65534


def test_a_file_without_permission_is_one_line(good: Path, capsys: Capture) -> None:
    """Root may read everything, so it is nobody who asks; pytest's own directories are closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        log = Path(folder) / "codecs-0" / LOG
        shutil.copytree(good / "codecs-0", log.parent)
        log.chmod(0)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(NOBODY)
        try:
            for command in ("dump-log", "verify-log"):
                for path in (log, log.parent):
                    assert main([command, str(path)]) == 1
                    captured = capsys.readouterr()
                    lines = [line for line in (captured.out + captured.err).splitlines() if str(log) in line]
                    assert any("permission denied" in line for line in lines), lines
        finally:
            if is_root:
                os.seteuid(0)


def test_an_empty_file_of_any_kind_is_shown(tmp_path: Path, capsys: Capture) -> None:
    for name in kinds_of_files():
        path = tmp_path / name
        path.write_bytes(b"")
        assert main(["dump-log", str(path)]) in (0, 1)
        assert main(["verify-log", str(path)]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


def kinds_of_files() -> list[str]:
    return [LOG, f"{LOG}.deleted", *(f"00000000000000000000{suffix}" for suffix in BINARY_FILES), *TEXT_FILES]


SPOILS = 250


def spoiled(randomness: random.Random, good: list[bytes]) -> bytes:
    """Rubbish, or a good file with some of its bytes, or of its sizes, made anew."""
    if randomness.random() < 0.2:
        return randomness.randbytes(randomness.randrange(400))
    data = bytearray(randomness.choice(good))
    for _ in range(randomness.randrange(1, 6)):
        at = randomness.randrange(len(data) + 1)
        what = randomness.choice([b"", b"\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", randomness.randbytes(3)])
        data[at : at + len(what)] = what
    return bytes(data[: randomness.randrange(len(data) + 1)] if randomness.random() < 0.3 else data)


def test_any_bytes_in_any_kind_of_file_make_lines_and_no_more(good: Path, tmp_path: Path, capsys: Capture) -> None:
    randomness = random.Random(11)
    samples: dict[str, list[bytes]] = {}
    for path in good.rglob("*"):
        if path.is_file():
            samples.setdefault(path.suffix or path.name, []).append(path.read_bytes())
    home = tmp_path / "spoiled-0"
    home.mkdir()
    tracemalloc.start()
    started = time.process_time()
    for turn in range(SPOILS):
        name = randomness.choice(kinds_of_files())
        known = samples.get(Path(name).suffix or name) or samples.get(name) or samples[".log"]
        (home / name).write_bytes(spoiled(randomness, known))
        flags = randomness.sample(["--deep-iteration", "--print-data-log", "--offsets-decoder", "--json"], 2)
        assert main(["dump-log", *flags, str(home / name)]) in (0, 1), turn
        if turn % 4 == 0:
            assert main(["verify-log", str(home)]) in (0, 1), turn
        capsys.readouterr()
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert time.process_time() - started < 60


def test_a_bomb_is_shown_as_a_problem_in_bounded_memory(tmp_path: Path, capsys: Capture) -> None:
    zeros = kit.deflate(kit.Codec.GZIP, bytes(200 << 20))
    log = tmp_path / LOG
    log.write_bytes(wrap(zeros, kit.Codec.GZIP, 1, 3, kit.NOW))
    for command, says in (
        (["dump-log", "--deep-iteration"], "inflates to more than"),
        (["verify-log"], "do not inflate"),
    ):
        assert main([*command, str(log)]) == 1
        captured = capsys.readouterr()
        assert says in captured.out + captured.err
