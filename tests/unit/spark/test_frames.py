"""What the helpers ask the format for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from kbroker.spark.errors import WrongOption
from kbroker.spark.frames import Topics, format_options
from kbroker.spark.options.format_options import SparkOptions, Use


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


@pytest.mark.parametrize(
    ("pattern", "matches", "does_not"),
    [
        (re.compile("views-.*", re.IGNORECASE), "VIEWS-a", "clicks"),
        (re.compile("(?i)views-.*"), "VIEWS-a", "clicks"),
        (re.compile(r"(?i)views-\w # of letters", re.VERBOSE | re.ASCII), "Views-a", "views-ä"),
        (re.compile("views-.*"), "views-a", "VIEWS-a"),
    ],
)
def test_a_pattern_keeps_its_flags(pattern: re.Pattern[str], matches: str, does_not: str) -> None:
    for given in (options(pattern), {"subscribePattern": options("a", subscribePattern=pattern)["subscribePattern"]}):
        client = {"kafka.bootstrap.servers": "host:9092"}
        found = SparkOptions(client | given, Use.BATCH_READ)["subscribePattern"]
        assert found.fullmatch(matches) and not found.fullmatch(does_not)


def test_lists_are_written_with_commas_and_types_as_json() -> None:
    schema = StructType().add("id", LongType())
    found = options("a", columns=["key", "value"], schemaRegistry=("http://a", "http://b"), valueSchema=schema)
    read = SparkOptions({"kafka.bootstrap.servers": "host:9092", **found}, Use.BATCH_READ)
    assert read["columns"] == ("key", "value")
    assert read["schemaRegistry"] == "http://a,http://b"
    assert StructType.fromJson(json.loads(read["valueSchema"])) == schema
    assert options("a", valueSchema=["null", "string"])["valueSchema"] == '["null", "string"]'
    assert format_options("a", "host:9092", {"x": ["b", 1]}, {})["kafka.x"] == "b,1"


@pytest.mark.parametrize("value", [object(), [None], [["key"]], {"a": object()}, b"key"])
def test_what_is_no_value_of_an_option_is_named(value: Any) -> None:
    with pytest.raises(WrongOption, match=re.escape(f"option columns={value!r}: must be text, a number, or a list")):
        options("a", columns=value)


def test_options_of_the_client_have_their_prefix() -> None:
    found = format_options("a", "host:9092", {"isolation.level": "read_committed"}, {})
    assert found["kafka.isolation.level"] == "read_committed"
