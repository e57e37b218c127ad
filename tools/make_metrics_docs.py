"""Writes docs/METRICS.md from the table of metrics."""

from __future__ import annotations

import generated_page

from kbroker.metrics.definitions import METRICS

HEAD = """# Metrics

Made by `make docs` from `kbroker/metrics/definitions.py`; do not edit.

Served in Prometheus' text formats at `/metrics` of `kbroker.http.address`, with what the system knows of the process
(`process_*`: memory, CPU seconds, descriptors). Beside it are `/health` (200 while no log directory has failed, else
503 and what is wrong) and `/ready` (200 while requests are served and no log directory has failed or is full; in a
cluster, while also `kbroker_registered` is 1, the broker leads or follows each partition that has a replica here, and
all replicas of these are in sync). No part of it runs until somebody asks.

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
