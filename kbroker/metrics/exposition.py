"""The registry as text for Prometheus. Imports prometheus-client, so it is imported at the first scrape only."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kbroker.metrics.definitions import Kind, Metric
from kbroker.metrics.registry import Registry, Sample


class Exposition(Collector):
    """Renders one registry, and what the system knows of the process."""

    def __init__(self, registry: Registry):
        self._registry = registry
        self._collectors = CollectorRegistry(auto_describe=False)
        self._collectors.register(self)
        ProcessCollector(registry=self._collectors)

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """(content type, text) in the format that the `Accept` header asks for."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._collectors)

    def collect(self) -> Iterator[Family]:
        for metric, samples in self._registry.collect():
            yield _family(metric, samples)


def _family(metric: Metric, samples: list[Sample]) -> Family:
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        family.add_metric(sample.labels, sample.value)
    return family
