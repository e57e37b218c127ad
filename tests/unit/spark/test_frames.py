"""What the helpers ask the format for."""

from __future__ import annotations

import re

from kbroker.spark.frames import Topics, format_options


def options(topics: Topics, **given: object) -> dict[str, str]:
    found = format_options(topics, "host:9092", None, given)
    assert found.pop("kafka.bootstrap.servers") == "host:9092"
    return found


def test_topics_are_names_a_pattern_or_partitions() -> None:
    assert options("a,b") == {"subscribe": "a,b"}
    assert options(["a", "b"]) == {"subscribe": "a,b"}
    assert options(re.compile("a.*")) == {"subscribePattern": "a.*"}
    assert options({"a": range(2)}) == {"assign": '{"a": [0, 1]}'}


def test_values_are_written_as_the_format_reads_them() -> None:
    found = options("a", failOnDataLoss=False, startingOffsets={"a": {"0": 5}}, minPartitions=3, columns=None)
    del found["subscribe"]
    assert found == {"failOnDataLoss": "false", "startingOffsets": '{"a": {"0": 5}}', "minPartitions": "3"}


def test_options_of_the_client_have_their_prefix() -> None:
    found = format_options("a", "host:9092", {"isolation.level": "read_committed"}, {})
    assert found["kafka.isolation.level"] == "read_committed"
