"""A histogram of durations: every sample is counted, in memory that does not grow with the number of samples."""

from __future__ import annotations

PRECISION_BITS = 7
"""A value is known to 1 part in 128: below 128 ns each value has its own cell, above it each power of two has 128."""
CELLS = 1 << PRECISION_BITS
LARGEST = (1 << 62) - 1
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


class Histogram:
    """A histogram of whole numbers of nanoseconds. Not thread-safe."""

    def __init__(self) -> None:
        self._cells = [0] * (_cell_of(LARGEST) + 1)
        self.count = 0
        self.total = 0
        self.largest = 0

    def add(self, value: int, count: int = 1) -> None:
        """Add `count` samples of `value`. A negative value, from a clock that went back, counts as 0."""
        value = min(max(value, 0), LARGEST)
        self._cells[_cell_of(value)] += count
        self.count += count
        self.total += value * count
        self.largest = max(self.largest, value)

    def percentile(self, share: float) -> int:
        """Return the value that `share` percent of the samples do not exceed; at most 0.8% too high, never too low."""
        wanted = self.count * share / 100
        passed = 0
        for cell, count in enumerate(self._cells):
            passed += count
            if count and passed >= wanted:
                return min(_highest_of(cell), self.largest)
        return self.largest

    def in_ms(self) -> dict[str, float]:
        """Return `mean`, `p50` and so on, and `max`, in milliseconds."""
        found = {"mean": self.total / self.count if self.count else 0.0}
        found |= {f"p{share:g}": self.percentile(share) for share in PERCENTILES}
        found["max"] = self.largest
        return {name: round(value / 1e6, 4) for name, value in found.items()}


def _cell_of(value: int) -> int:
    shift = max(value.bit_length() - PRECISION_BITS - 1, 0)
    return (shift << PRECISION_BITS) + (value >> shift)


def _highest_of(cell: int) -> int:
    shift = max((cell >> PRECISION_BITS) - 1, 0)
    return (((cell - (shift << PRECISION_BITS)) + 1) << shift) - 1
