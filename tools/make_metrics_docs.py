"""Writes docs/METRICS.md from the table of metrics."""

from __future__ import annotations

import generated_page

from kbroker.metrics.definitions import METRICS

HEAD = """# Metrics

Made by `make docs` from `kbroker/metrics/definitions.py`; do not edit.

Served in Prometheus' text formats at `/metrics` of `kbroker.http.address`, with what the system knows of the process
(`process_*`: memory, CPU seconds, descriptors). Beside it are `/health` (200 while no log directory has failed, else
503 and what is wrong) and `/ready` (200 while requests are served, and in a cluster while the broker is registered, the
controller knows it, and all replicas of the partitions here are in sync). No part of it runs until somebody asks.

| metric | kind | labels | what it is |
|---|---|---|---|
"""


def document() -> str:
    """Return the whole text of docs/METRICS.md."""
    rows = (
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.help} |"
        for metric in METRICS.values()
    )
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    raise SystemExit(generated_page.write("METRICS.md", document()))
