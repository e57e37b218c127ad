"""The sources of samples, read at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kbroker.metrics.definitions import METRICS, Kind, Metric


class Distribution(NamedTuple):
    """A histogram: how many values were at or below each bound (the last count: all of them), and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Sample(NamedTuple):
    """One value of a metric. `labels` are the values of the metric's labels, in their order."""

    name: str
    value: float | Distribution
    labels: tuple[str, ...] = ()


Source = Callable[[], Iterable[Sample]]


class Registry:
    """The sources of samples. `add` at start; `collect` from any thread."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """Add a source. It is called at each scrape, on the thread of the scrape."""
        self._sources.append(source)

    def collect(self) -> list[tuple[Metric, list[Sample]]]:
        """Return all samples by metric, in the table's order. Raises AssertionError if one does not fit the table."""
        found: dict[str, list[Sample]] = {name: [] for name in METRICS}
        for source in self._sources:
            for sample in source():
                metric = METRICS.get(sample.name)
                assert metric is not None and len(metric.labels) == len(sample.labels), sample
                assert (metric.kind is Kind.HISTOGRAM) == isinstance(sample.value, Distribution), sample
                found[sample.name].append(sample)
        return [(METRICS[name], samples) for name, samples in found.items() if samples]
