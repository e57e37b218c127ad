"""Plans as files, and when none is made."""

from __future__ import annotations

import json

import pytest

from kbroker.cli.reassign import _check_all_there, _decoded, _encoded
from kbroker.client.admin.items import numbers_by_topic
from kbroker.errors import KbrokerError
from kbroker.model import TopicPartition
from kbroker.rules.rebalance import Placed

ROW = '{"topic": "t", "partition": 0, "replicas": [1]}'


def test_a_plan_is_read_back_as_it_was_written() -> None:
    plan = {TopicPartition("views", 0): [1, 2], TopicPartition("views", 1): [3, 1]}
    assert _decoded("plan.json", _encoded(plan)) == (plan, {})


def test_what_kafka_s_tool_writes_is_read() -> None:
    row = {"topic": "views", "partition": 0, "replicas": [2, 1], "log_dirs": ["any", "any"]}
    replicas = {TopicPartition("views", 0): [2, 1]}
    assert _decoded("p", json.dumps({"version": 1, "partitions": [row]})) == (replicas, {})
    row["log_dirs"] = ["/disk2", "any"]
    named = {("views", 0, 2): "/disk2"}
    assert _decoded("p", json.dumps({"version": 1, "partitions": [row]})) == (replicas, named)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "p is no plan: Expecting"),
        ("[]", 'p is no plan: it has no "partitions"'),
        ('{"partitions": [7]}', "p is no plan: entry 0 is not"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}', "p is no plan: entry 0 is not"),
        (f'{{"partitions": [{ROW}, {ROW}]}}', "t-0 is in it twice"),
        (f'{{"partitions": [{ROW[:-1]}, "log_dirs": []}}]}}', 't-0: "log_dirs" has to be a list of 1 paths'),
        (f'{{"partitions": [{ROW[:-1]}, "log_dirs": [7]}}]}}', 't-0: "log_dirs" has to be a list of 1 paths'),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused(text: str, problem: str) -> None:
    with pytest.raises(KbrokerError, match=problem):
        _decoded("p", text)


def test_each_topic_of_a_plan_is_asked_for_once() -> None:
    plan = [TopicPartition("views", 1), TopicPartition("clicks", 0), TopicPartition("views", 0)]
    assert numbers_by_topic(plan) == {"views": [1, 0], "clicks": [0]}


def test_a_broker_that_is_only_away_keeps_its_replicas() -> None:
    placed = [Placed(TopicPartition("views", 0), (1, 2), 0), Placed(TopicPartition("views", 1), (2, 3), 0)]
    with pytest.raises(KbrokerError, match=r"broker 3 has replicas and is not in the cluster now.*--without 3"):
        _check_all_there(placed, [1, 2], [])
    _check_all_there(placed, [1, 2], [3])
    _check_all_there(placed, [1, 2, 3], [])
