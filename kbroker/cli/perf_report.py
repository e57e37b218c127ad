"""The figures that `kbroker perf` has measured, and their printing."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

from kbroker.cli.histogram import Histogram
from kbroker.cli.output import print_json
from kbroker.cli.progress import in_units


@dataclass
class Finding:
    messages: int
    size: int  #: bytes of their values
    seconds: float
    cpu_seconds: float
    latency: Histogram | None = None
    not_sent: int = 0  #: with a rate: messages that were due when the time was over, and had not been handed over
    interrupted: bool = False  #: by Ctrl-C; the figures are those of the time before

    def raise_if_interrupted(self) -> None:
        """Raise KeyboardInterrupt if this load, a warm-up, was interrupted."""
        if self.interrupted:
            raise KeyboardInterrupt


class Clock:
    """Wall time, and CPU time of this process, since the clock was made."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self.started_ns = time.perf_counter_ns()

    def finding(self, messages: int, size: int, **more: Any) -> Finding:
        """Return what was measured as a Finding, with the times up to now."""
        seconds = (time.perf_counter_ns() - self.started_ns) / 1e9
        return Finding(messages, size, max(seconds, 1e-9), time.process_time() - self._cpu, **more)


def report(finding: Finding, arguments: argparse.Namespace, latency_of: str) -> None:
    """Print what was measured. `latency_of` says from when to when a latency counts."""
    messages, seconds = max(finding.messages, 1), finding.seconds
    rate: float | None = getattr(arguments, "rate", None)
    if arguments.json:
        told: dict[str, Any] = {
            "load": arguments.load,
            "topic": arguments.topic,
            "messages": finding.messages,
            "bytes": finding.size,
            "seconds": round(seconds, 6),
            "messages_per_second": round(finding.messages / seconds, 3),
            "bytes_per_second": round(finding.size / seconds, 3),
            "cpu_us_per_message": round(finding.cpu_seconds / messages * 1e6, 4),
            "cpu_seconds": round(finding.cpu_seconds, 6),
        }
        if finding.latency is not None:
            told["latency_ms"] = finding.latency.in_ms()
        if rate is not None:
            told |= {"rate": rate, "not_sent": finding.not_sent}
        if finding.interrupted:
            told["interrupted"] = True
        print_json(told)
        return
    wanted = f" of {rate:,g} wanted" if rate is not None else ""
    until = ", until it was interrupted" if finding.interrupted else ""
    print(f"{finding.messages:,} messages, {in_units(finding.size)}, in {seconds:.3f} s{until}")
    print(f"  rate     {finding.messages / seconds:,.0f} messages/s{wanted}, {in_units(finding.size / seconds)}/s")
    if finding.latency is not None:
        figures = "  ".join(f"{name} {value:.3f}" for name, value in finding.latency.in_ms().items())
        print(f"  latency  {figures} ms,")
        print(f"           {latency_of}")
    cpu_us, share = finding.cpu_seconds / messages * 1e6, finding.cpu_seconds / seconds
    print(f"  CPU      {cpu_us:.3f} us of this process for a message, {share:.0%} of a core")
    if finding.not_sent:
        print(f"  the rate was not reached: {finding.not_sent:,} messages were due and had not been sent")
