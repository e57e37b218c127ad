"""The progress of a long command: one line on stderr that is overwritten again and again."""

from __future__ import annotations

import sys
import time

INTERVAL_S = 0.1
WIDTH = 24
UNITS = ("B", "kB", "MB", "GB", "TB")


class Progress:
    """Counts messages and bytes, and prints the counts if `shown`.

    `total`: how many bytes there will be; None: unknown.
    """

    def __init__(self, total: int | None, shown: bool):
        self._total = total
        self._shown = shown
        self._began = time.monotonic()
        self._printed_at = 0.0
        self._length = 0
        self.messages = 0
        self.size = 0

    def add_messages(self, count: int) -> None:
        self.messages += count

    def add_bytes(self, size: int) -> None:
        self.size += size
        if self._shown and time.monotonic() - self._printed_at >= INTERVAL_S:
            self._print(self.line())

    def finish(self) -> None:
        """Print the last line, and keep it."""
        if self._shown:
            self._print(self.line())
            sys.stderr.write("\n")

    def line(self) -> str:
        elapsed = max(time.monotonic() - self._began, 1e-6)
        rate = self.size / elapsed
        told = f"{self.messages:,} messages, {in_units(self.size)}, {in_units(rate)}/s"
        if not self._total:
            return told
        share = min(self.size / self._total, 1.0)
        left = f", {(self._total - self.size) / rate:.0f} s left" if rate and share < 1 else ""
        return f"[{'#' * int(share * WIDTH):<{WIDTH}}] {share:4.0%}  {told}{left}"

    def _print(self, line: str) -> None:
        sys.stderr.write(f"\r{line:<{self._length}}")
        sys.stderr.flush()
        self._length = len(line)
        self._printed_at = time.monotonic()


def in_units(size: float) -> str:
    """Return a size with a unit of powers of 1000: `1.5 MB`."""
    for unit in UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {UNITS[-1]}"
