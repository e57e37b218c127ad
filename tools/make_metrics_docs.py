"""Writes docs/METRICS.md from the table of metrics. `--check` only says whether it is current (exit code 1: not)."""

from __future__ import annotations

import sys
from pathlib import Path

from kbroker.metrics.definitions import METRICS

PATH = Path(__file__).parent.parent / "docs" / "METRICS.md"
HEAD = """# Metrics

Made by `make docs` from `kbroker/metrics/definitions.py`; do not edit.

Served in Prometheus' text formats at `/metrics` of `kbroker.http.address`, with what the system knows of the process
(`process_*`: memory, CPU seconds, descriptors). Beside it are `/health` (200 while no log directory has failed, else
503 and what is wrong) and `/ready` (200 while requests are served). No part of it runs until somebody asks.

| metric | kind | labels | what it is |
|---|---|---|---|
"""


def document() -> str:
    """The whole text of docs/METRICS.md."""
    rows = (
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.help} |"
        for metric in METRICS.values()
    )
    return HEAD + "\n".join(rows) + "\n"


def main() -> int:
    text = document()
    if "--check" in sys.argv[1:]:
        return 0 if PATH.exists() and PATH.read_text() == text else 1
    PATH.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
