"""Docstrings, pages and code can be read: how a docstring opens, and how long a line is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.tidy.test_tree import relative, text_of, tracked_files

LONGEST_LINE = 120
LONGEST_ROW = 160
# Openings that leave the reader to guess of what, of whom or like what.
OPENING = re.compile(
    r"(?:Of|Those|That of|That which|Whose|What is none|As|Like|Likewise|Ditto|See|It|They|Its|Their|These)\b"
)
# Tables whose rows are longer than LONGEST_ROW, and why they are not cut.
WIDE_TABLES = {
    "docs/CLIENT.md": "a row has all that one call or option does",
    "docs/CLIENT_OPTIONS.md": "made by make docs: the words on an option are one cell",
    "docs/CLUSTER.md": "a row has a setting and all that one should know of it",
    "docs/CONFIG.md": "made by make docs: the words on a setting are one cell",
    "docs/DURABILITY.md": "a row has a promise and the names of all its tests",
    "docs/EXACTLY_ONCE.md": "a row has a promise and the names of all its tests",
    "docs/GROUPS.md": "a row has a message and all that can be done about it",
    "docs/METRICS.md": "made by make docs: the words on a metric are one cell",
    "docs/OPERATIONS.md": "a row has a line of the log and all that can be done about it",
    "docs/REPLICATION.md": "a row has a promise and the names of all its tests",
    "docs/SPARK.md": "a row has an option and all that it decides",
    "docs/SPARK_OPTIONS.md": "made by make docs: the words on an option are one cell",
    "docs/TESTING.md": "a row has all that one call or fixture does",
    "docs/THREADS.md": "a row has a thread or lock and all that it touches",
    "docs/ZOOKEEPER.md": "a row has a node and all that is in it",
    "docs/formats/INDEXES.md": "a row has a field and what it means in every file",
    "docs/formats/README.md": "a row has a kind of file and who reads it",
    "docs/formats/STATE_RECORDS.md": "a row has a record and its fields",
    "tests/compat/README.md": "a row has a client and all that still fails",
}
SOURCES = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h"}
QUOTED = re.compile(r'^[ \t]*[rR]?"""(.*?)"""', re.DOTALL | re.MULTILINE)
# What a line may be longer by: a marker for a tool stands at its end.
FOR_TOOLS = re.compile(r"  # (?:type: ignore|noqa)\S*(?:.*)$")


def docstrings(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring; C code between triple quotes is not one."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found = ast.get_docstring(node)
                if found:
                    yield node.body[0].lineno, found
    else:
        for match in QUOTED.finditer(text):
            before = text[: match.start()].rstrip().rpartition("\n")[2]
            if "extern from" not in before:
                yield text.count("\n", 0, match.start()) + 1, match[1].strip()


def bad_openings(path: Path, text: str) -> list[str]:
    return [
        f"{path}:{line}: {found.split(chr(10))[0]}" for line, found in docstrings(path, text) if OPENING.match(found)
    ]


def long_code_lines(path: Path, text: str) -> list[str]:
    lines = enumerate(text.split("\n"), start=1)
    return [
        f"{path}:{number}" for number, line in lines if len(FOR_TOOLS.sub("", line)) > LONGEST_LINE and cuttable(line)
    ]


def cuttable(line: str) -> bool:
    """Return whether a line can be broken: it has more than one word behind its indentation and opening quote."""
    return len(line.split()) > 1


def long_page_lines(name: str, lines: Iterable[str], wide_tables: Iterable[str] = WIDE_TABLES) -> list[str]:
    """Return the lines of a page that are too long; blocks of code are left out."""
    found, is_code, before = [], False, ""
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        indented = line.startswith("    ") and (not before.strip() or before.startswith("    "))
        if line.lstrip().startswith("|"):
            limit = LONGEST_ROW if name not in wide_tables else len(line)
        else:
            limit = len(line) if is_code or indented else LONGEST_LINE
        if len(line) > limit and cuttable(line):
            found.append(f"{name}:{number}: {len(line)} characters")
        before = line
    return found


def pages() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".md"]


def test_docstrings_name_their_subject_from_the_first_word() -> None:
    sources = [path for path in tracked_files() if path.suffix in {".py", ".pyx", ".pxd", ".pyi"}]
    assert len(sources) > 1000
    assert [found for path in sources for found in bad_openings(path, text_of(path))] == []


def test_no_line_of_code_is_too_long_to_be_read() -> None:
    sources = [path for path in tracked_files() if path.suffix in SOURCES]
    assert [found for path in sources for found in long_code_lines(path, text_of(path))] == []


def test_no_line_of_a_page_is_too_long_to_be_read() -> None:
    found = [line for path in pages() for line in long_page_lines(relative(path), text_of(path).split("\n"))]
    assert found == []


def test_every_explained_table_still_has_a_long_row() -> None:
    wide = {
        relative(path) for path in pages() if long_page_lines(relative(path), text_of(path).split("\n"), wide_tables=())
    }
    assert set(WIDE_TABLES) - wide == set()


@pytest.mark.parametrize("suffix", [".py", ".pyx"])
@pytest.mark.parametrize(
    "opening", ["Of a reader.", "Those that stay.", "That of clients.", "As `open`.", "What is none."]
)
def test_the_scan_finds_a_docstring_that_opens_badly(suffix: str, opening: str) -> None:
    text = f'"""Good."""\n\n\ndef f():\n    """{opening}"""\n'
    assert bad_openings(Path(f"made_up{suffix}"), text) == [f"made_up{suffix}:5: {opening}"]
    assert bad_openings(Path(f"made_up{suffix}"), text.replace(opening, "Offsets of a reader.")) == []


def test_the_scan_knows_code_in_c_from_a_docstring() -> None:
    text = 'cdef extern from *:\n    """\n    These are C.\n    """\n    int f()\n'
    assert bad_openings(Path("made_up.pxd"), text) == []


def test_the_scan_finds_lines_that_are_too_long() -> None:
    long = "word " * 25
    assert long_code_lines(Path("made_up.py"), f"x = 1\n# {long}\n") == ["made_up.py:2"]
    assert long_code_lines(Path("made_up.py"), f"x = 1  # type: ignore[{'a' * 120}]\n" + "y" * 130) == []
    row = f"| {long * 2} |"
    page = ["# Title", long, "", f"    {long}", "```", long, "```", row]
    assert long_page_lines("made_up.md", page) == [
        "made_up.md:2: 125 characters",
        f"made_up.md:8: {len(row)} characters",
    ]
    assert long_page_lines("made_up.md", page, ["made_up.md"]) == ["made_up.md:2: 125 characters"]
