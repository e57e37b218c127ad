"""Generated documents are what their tools would write now."""

from __future__ import annotations

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
