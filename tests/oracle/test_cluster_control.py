"""Between brokers, kbroker says what Apache Kafka 3.9.1 says: as the controller that tells, and as who is asked."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import pytest

from kbroker.protocol.api import ApiKey
from tests.kit.cluster.apis import BETWEEN_BROKERS
from tests.oracle import control_answers
from tests.oracle.answers import Tree
from tests.oracle.cluster_deviations import IN_CLUSTERS
from tests.oracle.cluster_errors import IN_A_CLUSTER
from tests.oracle.control_story import Told, tell
from tests.oracle.control_talk import ASKED, CASES, Answered, ask_all, served
from tests.oracle.control_versions import AT_THE_CONTROLLER, OF_CLIENTS, OF_REPLICAS, OF_TRANSACTIONS
from tests.oracle.errors import DISK, ERRORS, MOVES, REPLICAS, Reasons

_ = control_answers


class Otherwise(NamedTuple):
    """A case in which kbroker answers otherwise on purpose: the entry of `IN_CLUSTERS`, and both brokers' `gist`."""

    subject: str
    kafka: list[str]
    ours: list[str]


OTHERWISE = {
    "stop_replica_with_an_older_leader_epoch": Otherwise(
        "LeaderAndIsr: a leader that the metadata does not know",
        ["NONE NONE"],
        ["NONE FENCED_LEADER_EPOCH"],
    ),
    "alter_partition_with_replicas_that_cannot_be_in_sync": Otherwise(
        "AlterPartition: who may be in an ISR",
        ["NONE NONE [3, 1, 2]", "NONE OPERATION_NOT_ATTEMPTED []", "NONE INELIGIBLE_REPLICA []", "NONE NONE []"],
        ["NONE INVALID_REQUEST []"] * 4,
    ),
    "alter_partition_of_one_that_another_broker_leads": Otherwise(
        "AlterPartition: who may be in an ISR",
        ["NONE NONE [3, 1]"],
        ["NONE INVALID_REQUEST []"],
    ),
    "topics_with_unknown_brokers_or_without_replicas": Otherwise(
        "CreateTopics with an assignment",
        ["NONE", "NONE"],
        ["INVALID_REPLICA_ASSIGNMENT"] * 2,
    ),
    "fetches_of_an_earlier_life_of_a_replica": Otherwise(
        "Fetch: a follower of an earlier life",
        ["NONE NONE"] * 3,
        ["NONE NONE", "NONE NOT_LEADER_OR_FOLLOWER", "NONE NONE"],
    ),
    "offset_fetch_1_at_who_is_not_the_coordinator": Otherwise(
        "OffsetFetch 1: an error of the whole group", [""], ["NOT_COORDINATOR"]
    ),
    "records_in_a_failed_directory": Otherwise(
        "Produce, Fetch, WriteTxnMarkers: a partition in a failed log directory",
        [
            *["KAFKA_STORAGE_ERROR"] * 12,
            *["NOT_LEADER_OR_FOLLOWER"] * 6,
            "KAFKA_STORAGE_ERROR",
            *["NONE KAFKA_STORAGE_ERROR"] * 11,
            *["UNKNOWN_TOPIC_OR_PARTITION"] * 2,
        ],
        [*["NOT_LEADER_OR_FOLLOWER"] * 19, *["NONE NOT_LEADER_OR_FOLLOWER"] * 11, *["KAFKA_STORAGE_ERROR"] * 2],
    ),
    "partitions_are_described": Otherwise(
        "DescribeTopicPartitions", ["False", "closed"], ["True", "NONE NONE NONE NONE"]
    ),
}


TIMEOUT_S = 580
"""Two clusters answer all cases in the first test that needs them."""
NEWER = {ApiKey.WRITE_TXN_MARKERS: {2}}
"""Versions that kbroker serves, and Kafka 3.9 does not."""


def gist(answer: Tree) -> str:
    """Return the error codes of an answer, and the ISRs that it tells; of what is no answer, what it is."""
    if not isinstance(answer, dict):
        return str(answer)
    found = []
    for name, value in answer.items():
        if name in ("error_code", "isr"):
            found.append(str(value))
        elif isinstance(value, dict):
            found.append(gist(value))
    return " ".join(filter(None, found))


@functools.cache
def told_by_kafka() -> dict[str, Told]:
    return tell(("kafka", "kafka"))


@functools.cache
def answered_by(kinds: tuple[str, str]) -> Answered:
    return ask_all(kinds)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_apache_kafka_tells_is_the_same_each_time() -> None:
    assert tell(("kafka", "kafka")) == told_by_kafka()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kinds", [("kbroker", "kbroker"), ("kbroker", "kafka"), ("kafka", "kbroker")], ids="-".join)
def test_a_controller_tells_brokers_what_apache_kafka_tells_them(kinds: tuple[str, str]) -> None:
    told = tell(kinds)
    for step, expected in told_by_kafka().items():
        assert told[step] - expected == frozenset(), step
        assert {line for line in expected - told[step] if not is_overtaken(line, told[step])} == set(), step


STATE = re.compile(r"(\w+) v\d+: .*, (\S+-\d+): .* partition epoch (\d+) ")


def is_overtaken(line: str, told: Told) -> bool:
    """Return whether a later state of the same partition was told in the same step: ours may leave the earlier out."""
    wanted = STATE.match(line)
    if wanted is None:
        return False
    others = [
        found for found in map(STATE.match, told) if found is not None and found.group(1, 2) == wanted.group(1, 2)
    ]
    return any(int(found[3]) > int(wanted[3]) for found in others)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("name", CASES)
def test_a_request_between_brokers_is_answered_as_apache_kafka_answers_it(name: str) -> None:
    ours, kafka = (answered_by(kinds).cases[name] for kinds in (("kbroker", "kbroker"), ("kafka", "kafka")))
    if name in OTHERWISE:
        expected = OTHERWISE[name]
        assert [gist(answer) for answer in kafka] == expected.kafka
        assert [gist(answer) for answer in ours] == expected.ours
    else:
        assert ours == kafka


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_every_version_of_what_a_cluster_asks_is_asked() -> None:
    answered_by(("kafka", "kafka"))
    for api in (*BETWEEN_BROKERS, *AT_THE_CONTROLLER, *OF_REPLICAS, *OF_TRANSACTIONS, *OF_CLIENTS):
        assert set(served(api)) - NEWER.get(api, set()) <= ASKED[api], api.label


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_each_error_that_kafka_can_give_in_a_cluster_was_given() -> None:
    """The table of errors is right: the cases make Kafka give what it says is provoked. What else it gives, a single
    broker gives too."""
    given = answered_by(("kafka", "kafka")).given
    for api, codes in IN_A_CLUSTER.items():
        assert provoked_in(codes) - given.get(api, set()) == set(), api.label
    for api, seen in given.items():
        alone = provoked_in(ERRORS.get(api, {}))
        assert seen - alone - provoked_in(IN_A_CLUSTER.get(api, {})) == set(), api.label


def provoked_in(codes: Reasons) -> set[str]:
    return {code.name for code, reason in codes.items() if reason is None}


def test_each_error_that_a_single_broker_cannot_give_is_in_the_table_of_clusters() -> None:
    assert set(BETWEEN_BROKERS) <= IN_A_CLUSTER.keys()
    for api, codes in ERRORS.items():
        elsewhere = {code for code, reason in codes.items() if reason in (MOVES, REPLICAS, DISK)}
        assert elsewhere - IN_A_CLUSTER.get(api, {}).keys() == set(), api.label


def test_what_is_answered_otherwise_is_told_in_the_docs() -> None:
    assert {each.subject for each in OTHERWISE.values()} <= {each.subject for each in IN_CLUSTERS}
    assert OTHERWISE.keys() <= CASES.keys()
