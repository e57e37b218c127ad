"""Writes or checks a generated page of docs/: what the `make_*_docs.py` have in common."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def wrapped(line: str) -> str:
    """Break a paragraph, or an item of a list, into lines of at most 120 characters."""
    hanging = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 120, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)


def write(name: str, text: str) -> int:
    """Write docs/`name`, and return the tool's exit code. With `--check` nothing is written: 1 if the page differs."""
    return write_files({DOCS / name: text})


def write_files(texts: Mapping[Path, str]) -> int:
    """Do the same as `write` for files anywhere in the tree."""
    names = ", ".join(str(path.relative_to(DOCS.parent)) for path in texts)
    parser = argparse.ArgumentParser(description=f"Writes {names}.")
    parser.add_argument("--check", action="store_true", help="only say whether all is current")
    if not parser.parse_args().check:
        for path, text in texts.items():
            path.write_text(text)
        return 0
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(DOCS.parent)} is stale: run make docs", file=sys.stderr)
    return 1 if stale else 0
