"""Generated documents are what their tools would write now."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import build

WRITERS = sorted((build.ROOT / "tools").glob("make_*_docs.py"))


@pytest.mark.parametrize("writer", WRITERS, ids=lambda path: path.name)
def test_a_generated_document_is_current(writer: Path) -> None:
    checked = subprocess.run([sys.executable, str(writer), "--check"], cwd=build.ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, f"run make docs\n{checked.stderr}"


FOLDERS = [build.ROOT / "docs", build.ROOT / "examples"]
PAGES = [build.ROOT / "README.md", *(page for folder in FOLDERS for page in sorted(folder.rglob("*.md")))]
SAYING = [*PAGES, *sorted(path for path in (build.ROOT / "kbroker").rglob("*") if path.suffix in (".py", ".pyx"))]
FROM_AN_INDEX = re.compile(r"pip install [^`\n]*?(?<![\w./-])kbroker(?![\w./-]*\.whl|-\*)")


def test_nobody_is_told_to_install_kbroker_from_an_index() -> None:
    """kbroker is on no package index: the installation that the documents describe must work as written."""
    assert FROM_AN_INDEX.search("pip install 'kbroker[spark]'")
    assert not FROM_AN_INDEX.search("pip install dist/kbroker-0.1.0-cp311.whl")
    assert [path.name for path in SAYING if FROM_AN_INDEX.search(path.read_text())] == []
