"""An hour of mixed load on one broker (`make soak`): nothing may grow, nothing may be lost.

Samples memory, descriptors, threads, disk and the latency of a paced probe (open loop, end to end: `perf/c/drive.c`),
compares the last third of the run with the first, and prints one line that says how it went. Exit code 1 when something
has grown beyond its bound, a record was lost or doubled, a client saw an error, or the broker logged one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from perf import machine
from perf.tools import drive
from tests.kit.brokers.process import BrokerProcess
from tests.soak import mixed_load
from tests.soak.mixed_load import LEDGER, LEDGER_PARTITIONS, Auditor

PROBE = "probe"
PROBE_RATE = 200
WRITER_RATE = 2500.0
SETTINGS: dict[str, object] = {
    "log.retention.check.interval.ms": 3000,
    "log.segment.delete.delay.ms": 1000,
    "offsets.retention.check.interval.ms": 60000,
    "group.initial.rebalance.delay.ms": 0,
}
RETENTION = {"segment.bytes": str(1 << 20), "retention.bytes": str(8 << 20), "flush.ms": "1000"}
BROKER_ERROR = re.compile(r"^\S+ \S+ (?:ERROR|CRITICAL) |^Traceback|^Fatal Python error", re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    at_s: float
    memory_mb: float
    descriptors: float
    threads: float
    disk_mb: float
    cpu_share: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Bound:
    """How far the last third may be above the first; both in the unit of the figure."""

    factor: float
    slack: float

    def limit(self, first: float) -> float:
        return first * self.factor + self.slack


BOUNDS = {
    "memory_mb": Bound(1.15, 8),
    "descriptors": Bound(1.1, 40),
    "threads": Bound(1, 0),
    "disk_mb": Bound(1.5, 150),
    "p99_ms": Bound(2, 15),
}


def grown(samples: list[Sample]) -> tuple[list[str], list[str]]:
    """The table of medians of both thirds, and what has grown beyond its bound."""
    samples = samples[len(samples) // 6 :]  # until retention deletes as much as is written
    third = max(len(samples) // 3, 1)
    table, wrong = ["figure         first third   last third        limit"], []
    for name, bound in BOUNDS.items():
        first = statistics.median(getattr(sample, name) for sample in samples[:third])
        last = statistics.median(getattr(sample, name) for sample in samples[-third:])
        table.append(f"{name:<13} {first:12.2f} {last:12.2f} {bound.limit(first):12.2f}")
        if last > bound.limit(first):
            wrong.append(f"{name} has grown from {first:.2f} to {last:.2f}, beyond {bound.limit(first):.2f}")
    return table, wrong


class Watch:
    """Takes the samples of one broker; each lasts as long as its probe."""

    def __init__(self, broker: BrokerProcess):
        self.broker = broker
        self.started = time.monotonic()
        self.samples: list[Sample] = []
        self.errors: list[str] = []

    def sample(self, seconds: float) -> None:
        pid, cpu, began = self.broker.pid, machine.cpu_seconds(self.broker.pid), time.monotonic()
        try:
            latency = drive(
                "end-to-end", self.broker.port, PROBE, PROBE_RATE, max(int(seconds), 1), timeout_s=seconds + 60
            )
        except RuntimeError as error:
            self.errors.append(f"probe: {error}")
            return
        proc = Path(f"/proc/{pid}")
        self.samples.append(
            Sample(
                at_s=time.monotonic() - self.started,
                memory_mb=machine.memory_mb(pid),
                descriptors=sum(1 for _ in (proc / "fd").iterdir()),
                threads=sum(1 for _ in (proc / "task").iterdir()),
                disk_mb=self.disk_mb(),
                cpu_share=(machine.cpu_seconds(pid) - cpu) / (time.monotonic() - began),
                p50_ms=latency["p50_us"] / 1000,
                p99_ms=latency["p99_us"] / 1000,
            )
        )

    def disk_mb(self) -> float:
        size = 0
        for folder, _, names in os.walk(self.broker.data):  # what is deleted meanwhile is passed over
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    size += Path(folder, name).stat().st_blocks * 512
        return size / 1e6


def soak(seconds: float, say: Callable[[str], None] = print) -> list[str]:
    """Returns what went wrong."""
    with BrokerProcess(SETTINGS) as broker, contextlib.ExitStack() as at_the_end:
        admin = AdminClient({"bootstrap.servers": broker.address, **mixed_load.QUIET})
        topics = [NewTopic(LEDGER, LEDGER_PARTITIONS, 1, config=RETENTION), NewTopic(PROBE, 1, 1, config=RETENTION)]
        for created in admin.create_topics(topics).values():
            created.result(30)
        auditor = Auditor(broker.address)
        writers = mixed_load.writers(broker.address, WRITER_RATE)
        others = mixed_load.others(broker.address)
        watch = Watch(broker)
        for worker in (auditor, *writers, *others):
            worker.start()
            at_the_end.callback(worker.stopping.set)  # also after a failure: it would go on beside other tests
        interval_s = min(30.0, max(seconds / 12, 2.0))
        while time.monotonic() - watch.started < seconds:
            watch.sample(interval_s)
            if watch.samples:
                now = watch.samples[-1]
                say(
                    f"{now.at_s:6.0f} s  {now.memory_mb:6.1f} MB  {now.descriptors:.0f} descriptors  "
                    f"{now.threads:.0f} threads  {now.disk_mb:.0f} MB on disk  {now.cpu_share:.0%} CPU  "
                    f"p50 {now.p50_ms:.2f} ms  p99 {now.p99_ms:.2f} ms"
                )
        wrong = end(auditor, [*others, *writers])
        wrong += auditor.balance(writers) + watch.errors
        for worker in (auditor, *writers, *others):
            wrong += worker.errors
        if broker.stop() != 0:
            wrong.append("the broker did not end with exit code 0")
        logged = [line for line in broker.output.splitlines() if BROKER_ERROR.match(line)]
        wrong += [f"the broker logged: {line[:200]}" for line in logged[: mixed_load.MOST_ERRORS]]
        warnings = broker.output.count(" WARNING ")
    table, too_much = grown(watch.samples)
    wrong += too_much
    say("\n".join(table))
    first, last = watch.samples[0], watch.samples[-1]
    cpu_share = statistics.mean(sample.cpu_share for sample in watch.samples)
    say(
        f"soak of {last.at_s:.0f} s: {'FAILED, ' if wrong else ''}"
        f"{sum(auditor.counts.values())} records audited, {cpu_share:.0%} of a core, "
        f"memory {first.memory_mb:.0f} -> {last.memory_mb:.0f} MB, descriptors {first.descriptors:.0f} -> "
        f"{last.descriptors:.0f}, threads {first.threads:.0f} -> {last.threads:.0f}, p99 {first.p99_ms:.2f} -> "
        f"{last.p99_ms:.2f} ms, {len(logged)} errors and {warnings} warnings logged"
    )
    return wrong


def end(auditor: Auditor, workers: list[mixed_load.Worker]) -> list[str]:
    """Stop everybody, the auditor last; returns who does not stop."""
    for worker in workers:
        worker.stopping.set()
    stuck = [worker for worker in workers if not joined(worker)]
    auditor.read_to_the_end()
    auditor.stopping.set()
    stuck += [] if joined(auditor) else [auditor]
    return [f"{worker.name} hangs" for worker in stuck]


def joined(thread: threading.Thread) -> bool:
    thread.join(90)
    return not thread.is_alive()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    wrong = soak(parser.parse_args().seconds, lambda line: print(line, flush=True))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
