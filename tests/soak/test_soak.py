"""A few seconds of `make soak`, and that it can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak.mixed_load import Auditor, Writer
from tests.soak.run import BROKER_ERROR, Sample, grown, soak

FLAT = Sample(at_s=0, memory_mb=30, descriptors=200, threads=20, disk_mb=300, cpu_share=0.3, p50_ms=0.3, p99_ms=4)


@pytest.mark.timeout(300)
def test_some_seconds_of_mixed_load_go_well() -> None:
    said: list[str] = []
    wrong = [line for line in soak(8, said.append) if "has grown" not in line]  # so short a run is all start
    assert wrong == [], said
    assert "records audited" in said[-1]


def test_a_flat_run_is_flat() -> None:
    assert grown([FLAT] * 9)[1] == []


@pytest.mark.parametrize("what", ["memory_mb", "descriptors", "threads", "disk_mb", "p99_ms"])
def test_a_figure_that_grows_fails_the_run(what: str) -> None:
    samples = [replace(FLAT, **{what: getattr(FLAT, what) * (1 + 3 * number)}) for number in range(9)]
    table, wrong = grown(samples)
    assert [line.split()[0] for line in wrong] == [what] and len(table) == 6


@pytest.mark.parametrize(
    ("in_the_log", "doubled", "says"), [(99, 0, "are lost"), (101, 1, "doubled or out of order"), (100, 0, "")]
)
def test_a_lost_and_a_doubled_record_fail_the_run(in_the_log: int, doubled: int, says: str) -> None:
    writer = Writer("w", "127.0.0.1:1", 1, {"enable.idempotence": True})
    writer.delivered = 100
    auditor = Auditor("127.0.0.1:1")
    auditor.counts["w"], auditor.out_of_order["w"] = in_the_log, doubled
    wrong = auditor.balance([writer])
    assert says in "\n".join(wrong) and bool(wrong) == bool(says)


def test_errors_in_the_log_of_the_broker_are_found() -> None:
    assert BROKER_ERROR.search("2026-01-01 00:00:00,000 INFO fine\n2026-01-01 00:00:00,000 ERROR not\n")
    assert not BROKER_ERROR.search("2026-01-01 00:00:00,000 WARNING ERROR in its text\n")
