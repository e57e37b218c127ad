"""Commands while one of three brokers is registered and says nothing: they tell of the others, and who is silent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client import AdminClient
from kbroker.testing import Cluster
from tests.kit.clients.commands import Run, commands_here, from_json

SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "zookeeper.session.timeout.ms": 40_000,  # a broker that is paused stays registered
    "replica.lag.time.max.ms": 40_000,  # and in sync
}
PATIENCE = ("--timeout", "3")


@pytest.fixture(scope="module")
def cluster(jars: Path) -> Iterator[Cluster]:
    with Cluster(3, settings=SETTINGS, zookeeper_jars=jars) as started:
        started.create_topic("views", partitions=3)
        with AdminClient(bootstrap_servers=started.bootstrap_servers) as admin:
            for group in ("a", "b", "c", "d"):
                admin.alter_offsets(group, {("views", 0): 0})
        yield started


@pytest.fixture(scope="module")
def silent(cluster: Cluster) -> Iterator[int]:
    """The id of a broker that is paused, and is not the controller."""
    broker_id = min(set(cluster.brokers) - {cluster.controller()})
    with cluster.paused(broker_id):
        yield broker_id


@pytest.fixture
def here(cluster: Cluster, silent: int) -> Run:
    others = [broker.bootstrap_servers for each, broker in cluster.brokers.items() if each != silent]
    return commands_here(",".join(others))


def test_the_status_tells_what_the_others_say_and_who_is_silent(here: Run, silent: int) -> None:
    status = from_json(here("cluster", "status", "--json", *PATIENCE, code=1))
    assert {each["id"]: each["ready"] for each in status["brokers"]} == {each: each != silent for each in (1, 2, 3)}
    problems = {each["id"]: each["problems"] for each in status["brokers"]}
    assert problems[silent] == [f"broker {silent} did not answer within 3 s"]
    assert [bool(each["log_dirs"]) for each in status["brokers"] if each["id"] != silent] == [True, True]
    assert status["partitions"] == 6 and status["offline_partitions"] == 0
    assert 0 < sum(status["groups"].values()) < 4
    text = here("cluster", "status", *PATIENCE, code=1).stdout.decode()
    assert f": NOT ready\n  broker {silent} did not answer within 3 s\n" in text


def test_partitions_of_other_leaders_are_described_and_the_silent_one_is_named(here: Run, silent: int) -> None:
    done = here("topics", "describe", "views", "--json", *PATIENCE, code=1)
    (topic,) = from_json(done)
    ends = {each["leader"]: (each["end_offset"], each["size"]) for each in topic["partitions"]}
    assert ends == {each: (None, None) if each == silent else (0, 0) for each in (1, 2, 3)}
    assert topic["messages"] is None
    error = done.stderr.decode()
    assert error.count(f"broker {silent} did not answer within 3 s") == 1 and error.count("\n") == 1


def test_groups_of_other_coordinators_are_listed_and_the_silent_one_is_named(here: Run, silent: int) -> None:
    done = here("groups", "list", "--json", *PATIENCE, code=1)
    assert 0 < len(from_json(done)) < 4
    assert f"broker {silent} did not answer within 3 s" in done.stderr.decode()


def test_a_command_for_the_silent_broker_alone_names_it(here: Run, silent: int) -> None:
    done = here("configs", "describe", "broker", str(silent), *PATIENCE, code=1)
    assert f"broker {silent}" in done.stderr.decode()


def test_a_plan_says_whose_sizes_are_not_known(here: Run, silent: int) -> None:
    done = here("reassign", "plan", "views", *PATIENCE)
    assert done.stdout == b"nothing has to move\n"
    told = f"kbroker: replicas whose sizes are not told count as the others of their partition: broker {silent} did not"
    assert done.stderr.decode() == f"{told} answer within 3 s\n"


def test_a_throttle_that_cannot_be_set_everywhere_is_taken_back_and_nothing_moves(
    here: Run, silent: int, tmp_path: Path
) -> None:
    (topic,) = from_json(here("topics", "describe", "views", "--json", *PATIENCE, code=1))
    (chosen,) = [each for each in topic["partitions"] if each["partition"] == 0]
    row = {"topic": "views", "partition": 0, "replicas": [each for each in chosen["replicas"] if each != silent]}
    (tmp_path / "plan.json").write_text(json.dumps({"version": 1, "partitions": [row]}))
    done = here("reassign", "execute", str(tmp_path / "plan.json"), "--throttle", "1", *PATIENCE, code=1)
    error = done.stderr.decode()
    assert "nothing moves" in error and f"broker {silent}" in error and "kbroker reassign status lifts it" in error
    for kind, of in [("topic", "views"), *(("broker", str(each)) for each in (1, 2, 3) if each != silent)]:
        rows = from_json(here("configs", "describe", kind, of, "--json", *PATIENCE))
        assert [row["name"] for row in rows if "throttled" in row["name"] and row["source"] != "default"] == []
    assert from_json(here("reassign", "status", "--preserve-throttles", "--json", *PATIENCE)) == []


def test_a_silent_controller_is_not_asked_what_moves_and_nothing_is_ready(cluster: Cluster, silent: int) -> None:
    controller = cluster.controller()
    (other,) = set(cluster.brokers) - {silent, controller}
    at_the_other = commands_here(cluster.brokers[other].bootstrap_servers)
    with cluster.paused(controller):
        status = from_json(at_the_other("cluster", "status", "--json", *PATIENCE, code=1))
    assert status["controller"] == controller and not status["ready"]
    problems = {each["id"]: each["problems"] for each in status["brokers"]}
    assert problems[controller] == [f"broker {controller} did not answer within 3 s"]
    assert (status["problems"], status["moving_partitions"]) == ([], 0)
