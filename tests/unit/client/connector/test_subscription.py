"""What members say that they want to read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.client.connector.subscription import (
    BLACK_LIST,
    STATIC,
    WHITE_LIST,
    Subscription,
    decode_subscription,
    filter_of,
)
from kbroker.coordination.paths import StoreCorrupt

TOPICS = ["a", "ab", "b", "__consumer_offsets", "__transaction_state"]


@pytest.mark.parametrize(
    ("pattern", "expression", "exclude", "expected"),
    [
        (WHITE_LIST, "a.*", True, {"a", "ab"}),
        (WHITE_LIST, "a", True, {"a"}),
        (WHITE_LIST, ".*", True, {"a", "ab", "b"}),
        (WHITE_LIST, ".*", False, set(TOPICS)),
        (BLACK_LIST, "a|b", True, {"ab"}),
        (BLACK_LIST, "(?!a).*", False, {"a", "ab"}),
    ],
)
def test_filters_are_about_whole_names(pattern: str, expression: str, exclude: bool, expected: set[str]) -> None:
    found = Subscription(pattern, {expression: 3}).topics(TOPICS, exclude_internal=exclude)
    assert found == dict.fromkeys(expected, 3)


def test_named_topics_are_read_whether_they_are_there_or_not() -> None:
    subscription = Subscription(STATIC, {"new": 1, "__consumer_offsets": 2})
    assert subscription.topics(TOPICS, exclude_internal=True) == {"new": 1, "__consumer_offsets": 2}


@pytest.mark.parametrize(("given", "expected"), [(" a , b ", "a|b"), ("'a.*'", "a.*"), ('"a,b"', "a|b"), ("a b", "ab")])
def test_filters_may_be_written_as_kafkas(given: str, expected: str) -> None:
    assert filter_of(given) == expected


@pytest.mark.parametrize("given", ["(", "", " ", "''", "*"])
def test_a_filter_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ValueError):
        filter_of(given)


@pytest.mark.parametrize("subscription", [Subscription(STATIC, {"a": 1, "ü": 2}), Subscription(BLACK_LIST, {"x|y": 7})])
def test_what_is_written_is_read_again(subscription: Subscription) -> None:
    data = subscription.encode(1234)
    assert decode_subscription("/x", data) == subscription
    assert json.loads(data)["version"] == 1
    assert json.loads(data)["timestamp"] == "1234"


VALID: dict[str, Any] = {"version": 1, "subscription": {"a": 1}, "pattern": "static", "timestamp": "1"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        json.dumps(VALID | {"pattern": "other"}).encode(),
        json.dumps(VALID | {"subscription": [1]}).encode(),
        json.dumps(VALID | {"subscription": {"a": "x"}}).encode(),
        json.dumps(VALID | {"subscription": {"a": 0}}).encode(),
        json.dumps(VALID | {"subscription": {"a": 1 << 40}}).encode(),
        json.dumps(VALID | {"pattern": "white_list", "subscription": {"(": 1}}).encode(),
    ],
)
def test_lies_of_other_members_are_named(data: bytes) -> None:
    with pytest.raises(StoreCorrupt, match="/consumers/g/ids/m"):
        decode_subscription("/consumers/g/ids/m", data)
