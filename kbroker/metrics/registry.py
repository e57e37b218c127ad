"""What is read when somebody asks: sources of samples, and histograms for what Python measures itself."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kbroker.metrics.definitions import METRICS, Kind, Metric

DURATION_BOUNDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


class Distribution(NamedTuple):
    """A histogram's state: how many were at or below each bound (the last count is of everything), and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Sample(NamedTuple):
    """One value of a metric; `labels` are the values of its labels, in their order."""

    name: str
    value: float | Distribution
    labels: tuple[str, ...] = ()


Source = Callable[[], Iterable[Sample]]


class Registry:
    """The sources of samples. `add` at start; `collect` from any thread."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """`source` is called at each scrape, on the thread of the scrape."""
        self._sources.append(source)

    def collect(self) -> list[tuple[Metric, list[Sample]]]:
        """All samples by metric, in the order of the table. AssertionError for one that the table does not know."""
        found: dict[str, list[Sample]] = {name: [] for name in METRICS}
        for source in self._sources:
            for sample in source():
                metric = METRICS.get(sample.name)
                assert metric is not None and len(metric.labels) == len(sample.labels), sample
                assert (metric.kind is Kind.HISTOGRAM) == isinstance(sample.value, Distribution), sample
                found[sample.name].append(sample)
        return [(METRICS[name], samples) for name, samples in found.items() if samples]


class Histogram:
    """Counts durations in buckets. `observe` from any thread; not for hot paths."""

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS):
        self._bounds = tuple(bounds)
        self._lock = threading.Lock()
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        bucket = bisect_left(self._bounds, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += seconds

    def distribution(self) -> Distribution:
        with self._lock:
            counts, total = list(self._counts), self._sum
        for at in range(1, len(counts)):
            counts[at] += counts[at - 1]
        return Distribution(self._bounds, tuple(counts), total)
