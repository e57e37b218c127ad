"""The pages of docs/formats/: what their examples say is what our code reads in them, and their tables add up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli.main import main
from kbroker.inspection.entries import Problem
from kbroker.inspection.state_records import decode_offsets, decode_transactions
from kbroker.inspection.text_files import TEXT_FILES
from tests.kit.build import ROOT

FOLDER = ROOT / "docs" / "formats"
PAGES = sorted(FOLDER.glob("*.md"))
BLOCK = re.compile(r"^```(\w+) ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEX_LINE = re.compile(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)")
SIZES = {"int8": 1, "int16": 2, "int32": 4, "uint32": 4, "int64": 8}


def blocks(page: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    for kind, words, body in BLOCK.findall(page.read_text()):
        yield kind, words.split(), body.splitlines()


def bytes_of(lines: list[str]) -> bytes:
    data = b""
    for line in lines:
        match = HEX_LINE.match(line)
        assert match is not None, line
        assert int(match[1], 16) == len(data), f"{line!r} stands at {len(data):04x}"
        data += bytes.fromhex(match[2])
    return data


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_are_read_as_the_page_says(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, words, lines in blocks(page):
        if kind == "hex":
            (tmp_path / words[0]).write_bytes(bytes_of(lines))
        elif kind == "file":
            # partition.metadata has no end of line behind its last one, all the others have.
            data = "\n".join(lines) + ("" if words[0] == "partition.metadata" else "\n")
            (tmp_path / words[0]).write_text(data)
            assert not [item for item in TEXT_FILES[words[0]](data.encode()) if isinstance(item, Problem)]
        elif kind == "dump":
            path = tmp_path / words[0]
            main(["dump-log", *words[1:], str(path)])
            captured = capsys.readouterr()
            assert captured.out.splitlines() == [f"Dumping {path}", *lines]
            assert captured.err == ""
        elif kind == "state":
            decode = {"offsets": decode_offsets, "transactions": decode_transactions}[words[0]]
            parts = {
                name: b"".join(bytes.fromhex(line[7:]) for line in lines if line.startswith(name))
                for name in ("key", "value")
            }
            shown = [line[7:] for line in lines if line.startswith("shows")]
            assert list(decode(0, parts["key"], parts["value"])) == shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_positions_in_tables_add_up(page: Path) -> None:
    for table in re.findall(r"^\| byte \|.*\n\|---.*\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE):
        expected = None
        for row in table.splitlines():
            at, _, kind = (cell.strip() for cell in row.split("|")[1:4])
            if not at.isdigit():
                break
            assert expected in (None, int(at)), row
            expected = int(at) + SIZES[kind] if kind in SIZES else None


def test_every_page_is_in_the_index_and_has_an_example() -> None:
    index = (FOLDER / "README.md").read_text()
    for page in PAGES:
        if page.name == "README.md":
            continue
        assert f"]({page.name})" in index
        assert page.name == "SEGMENT.md" or list(blocks(page)), page.name
