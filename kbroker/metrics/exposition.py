"""The registry as text for Prometheus. Imported at the first scrape only, as it imports prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kbroker.metrics.definitions import Kind, Metric
from kbroker.metrics.registry import Distribution, Registry, Sample


class Exposition(Collector):
    """Renders the samples of one registry, and what the system says of the process (CPU, memory, descriptors)."""

    def __init__(self, registry: Registry):
        self._registry = registry
        self._collectors = CollectorRegistry(auto_describe=False)
        self._collectors.register(self)
        ProcessCollector(registry=self._collectors)

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Return (content type, text) in the format that the `Accept` header asks for."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._collectors)

    def collect(self) -> Iterator[Family]:
        for metric, samples in self._registry.collect():
            yield _family(metric, samples)


def _family(metric: Metric, samples: list[Sample]) -> Family:
    # The families' common base has no add_metric.
    family: Any = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        if isinstance(sample.value, Distribution):
            bounds = [*map(str, sample.value.bounds), "+Inf"]
            family.add_metric(sample.labels, list(zip(bounds, sample.value.counts, strict=True)), sample.value.sum)
        else:
            family.add_metric(sample.labels, sample.value)
    found: Family = family
    return found


_FAMILIES = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}
