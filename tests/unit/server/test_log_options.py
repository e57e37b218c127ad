"""The storage's options, from settings."""

from __future__ import annotations

import pytest

from kbroker.config.broker_config import load_config
from kbroker.server.log_options import LONGEST_FLUSH_CHECK_MS, log_options, storage_options
from kbroker.storage.options import NEVER


def test_flush_ms_of_a_topic_holds_without_the_interval_of_the_scheduler() -> None:
    config = load_config()
    assert log_options({"flush.ms": "50"}, config, 0).flush_ms == 50
    assert storage_options(config).flush_scheduler_interval_ms == LONGEST_FLUSH_CHECK_MS


@pytest.mark.parametrize(
    ("own", "given", "messages"),
    [
        ({}, [], 1),
        ({"retention.ms": "5"}, ["log.flush.offset.checkpoint.interval.ms=7"], 1),
        ({"flush.messages": "9"}, [], 9),
        ({"flush.ms": "50"}, [], NEVER),
        ({}, ["log.flush.interval.messages=9"], 9),
        ({}, ["log.flush.interval=9"], 9),
        ({}, ["log.flush.interval.ms=50"], NEVER),
        ({}, ["log.default.flush.scheduler.interval.ms=50"], NEVER),
    ],
)
def test_replicated_topics_are_flushed_before_acks_where_no_policy_is_set(
    own: dict[str, str], given: list[str], messages: int
) -> None:
    config = load_config(None, given, environment={})
    assert log_options(own, config, 0, is_replicated=True).flush_messages == messages
    assert log_options(own, config, 0).flush_messages == (NEVER if messages == 1 else messages)


@pytest.mark.parametrize(
    ("own", "codec", "level"),
    [
        ({}, -1, -1),
        ({"compression.type": "uncompressed"}, 0, -1),
        ({"compression.type": "snappy"}, 2, -1),
        ({"compression.type": "gzip"}, 1, -1),
        ({"compression.type": "gzip", "compression.gzip.level": "9"}, 1, 9),
        ({"compression.type": "lz4"}, 3, 9),
        ({"compression.type": "zstd"}, 4, 7),
        ({"compression.type": "zstd", "compression.zstd.level": "-5"}, 4, -5),
    ],
)
def test_the_level_is_that_of_the_topics_codec(own: dict[str, str], codec: int, level: int) -> None:
    options = log_options(own, load_config(None, ["compression.zstd.level=7"], environment={}), 0)
    assert (options.compression, options.compression_level) == (codec, level)


def test_nothing_is_deleted_or_compacted_while_nobody_knows_the_settings() -> None:
    config = load_config(None, ["log.cleanup.policy=compact,delete", "log.retention.ms=1"], environment={})
    options = log_options({}, config, 0, configs_given=False)
    assert (options.compacted, options.deleted_by_retention, options.may_have_gaps) == (False, False, True)
    options = log_options({}, config, 0)
    assert (options.compacted, options.deleted_by_retention, options.may_have_gaps) == (True, True, False)


def test_a_compacted_topic_rolls_in_time_for_its_largest_lag() -> None:
    config = load_config()
    own = {"max.compaction.lag.ms": "5000", "segment.ms": "9000"}
    assert log_options({**own, "cleanup.policy": "compact"}, config, 0).segment_ms == 5000
    assert log_options({**own, "cleanup.policy": "compact,delete", "segment.ms": "4000"}, config, 0).segment_ms == 4000
    assert log_options(own, config, 0).segment_ms == 9000


@pytest.mark.parametrize(
    ("text", "throttled"),
    [("", []), ("*", [0, 1, 7, (1 << 31) - 1]), ("0:3,1:4,7:3", [0, 7]), ("0:4", [])],
)
def test_throttled_replicas_are_those_of_this_broker(text: str, throttled: list[int]) -> None:
    own = {f"{kind}.replication.throttled.replicas": text for kind in ("leader", "follower")}
    options = log_options(own, load_config(), 3)
    for found in (options.leader_throttled, options.follower_throttled):
        assert [each for each in (0, 1, 7, (1 << 31) - 1) if each in found] == throttled
