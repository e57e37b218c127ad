"""Documents that name tests: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.build import ROOT

NAMED = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if NAMED.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_document_names_is_there(page: Path) -> None:
    for file, test in NAMED.findall(page.read_text()):
        path = ROOT / file
        assert path.exists(), f"{page.name} names {file}"
        assert re.search(rf"^def {test}\(", path.read_text(), re.MULTILINE), f"{page.name} names {file}::{test}"


def test_every_promise_names_a_test() -> None:
    text = (ROOT / "docs" / "DURABILITY.md").read_text()
    rows = [line for line in text.split("| promise | tests |")[1].splitlines() if line.startswith("| ")]
    assert len(rows) > 30
    assert [row for row in rows if not NAMED.search(row)] == []
