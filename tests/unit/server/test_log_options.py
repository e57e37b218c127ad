"""Storage's options from settings."""

from __future__ import annotations

from kbroker.config.broker_config import load_config
from kbroker.server.log_options import LONGEST_FLUSH_CHECK_MS, log_options, storage_options


def test_flush_ms_of_a_topic_holds_without_the_interval_of_the_scheduler() -> None:
    config = load_config()
    assert log_options({"flush.ms": "50"}, config).flush_ms == 50
    assert storage_options(config).flush_scheduler_interval_ms == LONGEST_FLUSH_CHECK_MS
