"""A page of docs/ that a tool writes: what the `make_*_docs.py` have in common."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def write(name: str, text: str) -> int:
    """The tool's exit code. With `--check` nothing is written, and a page that is not `text` gives 1."""
    parser = argparse.ArgumentParser(description=f"Writes docs/{name}.")
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    page = DOCS / name
    if not parser.parse_args().check:
        page.write_text(text)
    elif not page.exists() or page.read_text() != text:
        print(f"docs/{name} is stale: run make docs", file=sys.stderr)
        return 1
    return 0
