import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kbroker.metrics.definitions import METRICS, Kind
from kbroker.metrics.exposition import Exposition
from kbroker.metrics.registry import Distribution, Registry, Sample


def rendered(*samples: Sample) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = Registry()
    registry.add(lambda: samples)
    content_type, text = Exposition(registry).render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_counters_and_gauges_come_out_with_their_labels() -> None:
    found = rendered(
        Sample("kbroker_bytes_in_total", 7, ('odd "topic"\\\n',)), Sample("kbroker_groups", 2, ("Stable",))
    )
    assert found["kbroker_bytes_in_total", (("topic", 'odd "topic"\\\n'),)] == 7
    assert found["kbroker_groups", (("state", "Stable"),)] == 2
    assert any(name.startswith("process_") for name, _ in found)


def test_a_histogram_comes_out_as_buckets_count_and_sum() -> None:
    found = rendered(Sample("kbroker_request_seconds", Distribution((0.5, 1.0), (1, 2, 4), 9.5), ("Fetch",)))
    assert found["kbroker_request_seconds_bucket", (("api", "Fetch"), ("le", "1.0"))] == 2
    assert found["kbroker_request_seconds_bucket", (("api", "Fetch"), ("le", "+Inf"))] == 4
    assert found["kbroker_request_seconds_count", (("api", "Fetch"),)] == 4
    assert found["kbroker_request_seconds_sum", (("api", "Fetch"),)] == 9.5


@pytest.mark.parametrize(
    "sample",
    [Sample("kbroker_nonsense", 1), Sample("kbroker_groups", 1), Sample("kbroker_request_seconds", 1, ("Fetch",))],
)
def test_a_sample_that_the_table_does_not_know_is_a_bug(sample: Sample) -> None:
    with pytest.raises(AssertionError):
        rendered(sample)


def test_names_follow_the_rules_of_prometheus() -> None:
    for metric in METRICS.values():
        assert metric.name.startswith("kbroker_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)


def test_the_registry_does_without_the_prometheus_client() -> None:
    script = "import sys, kbroker.metrics.registry, kbroker.server.http; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
