"""Documents that name tests: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.build import ROOT

NAMED = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
TESTS = re.compile(r"`tests/[\w/]+\.py[`:]")
"""A test, or a file of them."""
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if NAMED.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_document_names_is_there(page: Path) -> None:
    for file, test in NAMED.findall(page.read_text()):
        path = ROOT / file
        assert path.exists(), f"{page.name} names {file}"
        assert re.search(rf"^def {test}\(", path.read_text(), re.MULTILINE), f"{page.name} names {file}::{test}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_file_of_tests_that_a_document_names_is_there(page: Path) -> None:
    for name in re.findall(r"`(tests/[\w/.-]+)", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


PROMISES = [
    ("DURABILITY.md", "| promise | tests |", NAMED),
    ("REPLICATION.md", "| promise | tests |", NAMED),
    ("EXACTLY_ONCE.md", "| promise | shown by |", TESTS),
]


@pytest.mark.parametrize(("page", "heading", "named"), PROMISES)
def test_every_promise_names_a_test(page: str, heading: str, named: re.Pattern[str]) -> None:
    table = (ROOT / "docs" / page).read_text().split(heading)[1].split("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) > 20
    assert [row for row in rows if not named.search(row)] == []
