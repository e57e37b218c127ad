"""`make bench`: every row of the speed table next to its peer; `make bench ROWS="start connections"` for some.

Writes perf/results/<row>.json and prints the table; `--record` puts the table into perf/RESULTS.md between its markers.
With `--before CHECKOUT`, rows that have Apache Kafka as their peer have the kbroker of that checkout instead, and no
bounds: that is how a change is measured. Nothing else may run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from perf import (
    asyncio_rows,
    client_consume_rows,
    client_rows,
    cluster_rows,
    compaction_rows,
    consume_rows,
    conversion_rows,
    life_rows,
    log_rows,
    machine,
    produce_rows,
    spark_rows,
    transaction_rows,
)
from perf.duel import Duel, Figure

ROWS: dict[str, Callable[[], list[Figure]]] = {
    "start": life_rows.start,
    "connections": life_rows.connections,
    "ping-pong": produce_rows.ping_pong,
    "small-requests": produce_rows.small_requests,
    "two-processors": produce_rows.two_processors,
    "durable": produce_rows.durable_acks,
    "produce-loop": produce_rows.against_the_loop,
    "produce": produce_rows.throughput,
    "variants": produce_rows.variants,
    "consume": consume_rows.throughput,
    "long-polls": consume_rows.long_polls,
    "end-to-end": consume_rows.end_to_end,
    "client-consume": client_consume_rows.against_confluent,
    "rebalance": life_rows.rebalance,
    "undisturbed": consume_rows.undisturbed,
    "recovery": log_rows.recovery,
    "loading": log_rows.loading,
    "clean-start": log_rows.clean_start,
    "lookups": log_rows.lookups,
    "compaction": compaction_rows.compaction,
    "old-messages": conversion_rows.old_messages,
    "down-conversion": conversion_rows.down_conversion,
    "up-conversion": conversion_rows.up_conversion,
    "asyncio": asyncio_rows.against_aiokafka,
    "client-produce": client_rows.produce,
    "client-columns": client_rows.columns,
    "client-latency": client_rows.latency,
    "client-begin": client_rows.begin,
    "transactions": transaction_rows.throughput,
    "read-committed": transaction_rows.read_committed,
    "transaction-memory": transaction_rows.memory,
    "cluster-produce": cluster_rows.produce_rows,
    "cluster-latency": cluster_rows.latency_rows,
    "cluster-idle": cluster_rows.idle_rows,
    "cluster-catch-up": cluster_rows.catch_up_rows,
    "cluster-failover": cluster_rows.failover_rows,
    "spark-read": spark_rows.read,
    "spark-load": spark_rows.lake,
    "spark-write": spark_rows.write,
    "spark-latency": spark_rows.latency,
}
BESIDE_BEFORE = (
    "small-requests", "produce", "variants", "consume", "long-polls", "end-to-end", "rebalance", "undisturbed",
    "compaction", "down-conversion", "up-conversion", "transactions", "read-committed",
)  # fmt: skip
"""The rows that `--before` measures: two brokers are loaded in turn."""
GROUPS = {"cluster": [name for name in ROWS if name.startswith("cluster-")]}
"""Names for several rows."""
HERE = Path(__file__).parent
START, END = "<!-- table -->", "<!-- /table -->"


HEAD = ["| figure | kbroker | peer | ratio or figure | must | aim | reached |", "|---|---|---|---|---|---|---|"]


def line(f: Figure) -> str:
    return f"| {f.what} | {f.ours} | {f.other} | {f.ratio:.3g} | {f.must} | {f.aim} | {f.verdict} |"


def table(figures: list[Figure]) -> str:
    return "\n".join([*HEAD, *map(line, figures)])


def record(page: Path, figures: list[Figure]) -> None:
    """Replace the figures of the same names in the page's table. New figures come behind the others."""
    before, _, rest = page.read_text().partition(START)
    measured, _, after = rest.partition(END)
    lines = {each.split(" | ")[0]: each for each in measured.splitlines() if each.startswith("| ")}
    lines |= {each.split(" | ")[0]: each for each in map(line, figures)}
    del lines["| figure"]
    shown = "\n".join([*HEAD, *lines.values()])
    page.write_text(f"{before}{START}\n\n{machine.describe()}\n\n{shown}\n\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="perf.bench", description="Measure kbroker next to its peers.")
    parser.add_argument("rows", nargs="*", metavar="row", help=", ".join(ROWS))
    parser.add_argument("--record", action="store_true", help="write the table into perf/RESULTS.md")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="the peer is the kbroker built there")
    arguments = parser.parse_args()
    known = BESIDE_BEFORE if arguments.before else tuple(ROWS)
    rows = [row for name in arguments.rows or known for row in GROUPS.get(name, [name])]
    unknown = [row for row in rows if row not in known]
    if unknown:
        parser.error(f"unknown row {unknown[0]}; rows are: {', '.join(known)}")
    if arguments.before:
        if arguments.record:
            parser.error("--record takes figures beside Apache Kafka only")
        Duel.before = arguments.before.resolve()
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    figures: list[Figure] = []
    complete = True
    for row in rows:
        started = time.monotonic()
        try:
            found = ROWS[row]()
        except Exception as error:
            print(f"{row}: {type(error).__name__}: {error}", file=sys.stderr)
            complete = False
            continue
        if arguments.before:
            found = [replace(figure, must="", aim="") for figure in found]
        (results / f"{row}.json").write_text(json.dumps([asdict(f) for f in found], indent=1) + "\n")
        print(f"\n{row} ({time.monotonic() - started:.0f} s)\n{table(found)}", flush=True)
        figures += found
    if arguments.record:
        record(HERE / "RESULTS.md", figures)
    return 0 if complete and all(f.holds(f.must) for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
