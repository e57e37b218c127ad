import random

from kbroker.cli.histogram import Histogram


def test_percentiles_are_never_too_low_and_at_most_one_percent_too_high() -> None:
    source = random.Random(1)
    samples = [int(10 ** source.uniform(0, 13)) for _ in range(20_000)]
    histogram = Histogram()
    for sample in samples:
        histogram.add(sample)
    samples.sort()
    for share in (0.1, 1, 25, 50, 90, 99, 99.9, 100):
        exact = samples[max(-(-int(share * 10) * len(samples) // 1000) - 1, 0)]
        assert exact <= histogram.percentile(share) <= exact * 1.008 + 1
    assert histogram.largest == histogram.percentile(100) == samples[-1]
    assert (histogram.count, histogram.total) == (20_000, sum(samples))


def test_small_values_are_exact() -> None:
    histogram = Histogram()
    for value in range(200):
        histogram.add(value)
    assert [histogram.percentile(share) for share in (0.5, 10, 50, 64)] == [0, 19, 99, 127]


def test_one_call_adds_many_samples() -> None:
    histogram = Histogram()
    histogram.add(1_000_000, 999)
    histogram.add(5_000_000_000)
    assert histogram.in_ms() == {
        "mean": 5.999,
        "p50": 1.0035,
        "p90": 1.0035,
        "p99": 1.0035,
        "p99.9": 1.0035,
        "max": 5000.0,
    }


def test_any_value_has_a_cell_and_none_has_a_report() -> None:
    histogram = Histogram()
    assert set(histogram.in_ms().values()) == {0.0}
    histogram.add(-5)
    histogram.add(1 << 80)
    assert histogram.percentile(50) == 0
    assert histogram.percentile(100) >= 1 << 61
