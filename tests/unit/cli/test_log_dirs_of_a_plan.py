"""`kbroker reassign execute` with a plan that names log directories, on two brokers of two directories each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import AdminClient, BrokerError, PartialFailure
from kbroker.client.admin.results import TopicPartitionReplica
from kbroker.errors import ErrorCode
from tests.kit.clients.commands import Run, commands_here
from tests.kit.cluster.members import Members, await_that
from tests.kit.kafka.zookeeper import ZooKeeperProcess

VALUE = b"x" * 1000
REPLICA_MISSING = BrokerError("late-1 of broker 2 is not there", code=ErrorCode.REPLICA_NOT_AVAILABLE)


@pytest.fixture(scope="module")
def members(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    folder = tmp_path_factory.mktemp("members")
    with ZooKeeperProcess() as server:
        made = Members(server, folder)
        for node_id in (1, 2):
            made.start(node_id, log__dirs=",".join(disks(made, node_id)))
        made.settle(1, 2)
        await_that(lambda: any(made.cluster(each).is_controller for each in (1, 2)))
        yield made
        made.close()


def disks(members: Members, node_id: int) -> list[str]:
    return [str(members.folder / f"{node_id}-{disk}") for disk in "ab"]


@pytest.fixture
def here(members: Members) -> Run:
    return commands_here(f"127.0.0.1:{members.running[1].port}")


def row(topic: str, partition: int, replicas: list[int], log_dirs: list[str]) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "replicas": replicas, "log_dirs": log_dirs}


def written(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(path)


def places(members: Members, topic: str) -> dict[tuple[int, int], str]:
    """Return the directories of a topic's replicas, by partition and broker. What is being moved is in two: ""."""
    found: dict[tuple[int, int], str] = {}
    with AdminClient(bootstrap_servers=f"127.0.0.1:{members.running[1].port}") as admin:
        for node_id, directories in admin.describe_log_dirs().items():
            for each in directories:
                for at in each.replicas:
                    if at.topic == topic:
                        place = (at.partition_id, node_id)
                        found[place] = "" if place in found else each.path
    return found


def test_replicas_get_to_the_log_directories_that_the_plan_names(members: Members, here: Run, tmp_path: Path) -> None:
    """New ones and those that were there. If broker 2 could choose, each of its directories would have a partition."""
    here("topics", "create", "moved", "-p", "2", "--replication-factor", "1")
    here("reassign", "execute", written(tmp_path, row("moved", 0, [1], ["any"]), row("moved", 1, [1], ["any"])))
    await_that(lambda: set(places(members, "moved")) == {(0, 1), (1, 1)})
    for partition in (0, 1):
        members.running[1].append("moved", partition, [VALUE] * 10)
    before = places(members, "moved")
    other = {path: next(each for each in disks(members, 1) if each != path) for path in before.values()}
    last = disks(members, 2)[1]
    wanted = {(at, 1): other[before[at, 1]] for at in (0, 1)} | {(at, 2): last for at in (0, 1)}
    rows = [row("moved", at, [1, 2], [wanted[at, 1], wanted[at, 2]]) for at in (0, 1)]
    here("reassign", "execute", written(tmp_path, *rows))
    await_that(lambda: places(members, "moved") == wanted and members.leader_of("moved", 1) is not None)
    kept = here("verify-log", "--replicas", "moved")
    assert not kept.stdout and "2 partitions with more than one replica compared\n" in kept.stderr.decode()


def test_a_log_directory_that_a_broker_does_not_have_is_one_line(members: Members, here: Run, tmp_path: Path) -> None:
    here("topics", "create", "stays", "--replication-factor", "2")
    plan = written(tmp_path, row("stays", 0, [2, 1], [f"{tmp_path}/none", "any"]))
    error = here("reassign", "execute", plan, code=1).stderr.decode().splitlines()[-1]
    assert error.startswith("kbroker: the moves have begun, but not to all log directories named: ")
    assert "stays-0 of broker 2: LOG_DIR_NOT_FOUND" in error


def test_brokers_are_asked_until_they_have_the_replicas_or_the_time_is_over(
    members: Members, here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here("topics", "create", "late", "-p", "2", "--replication-factor", "2")
    alter, asked = AdminClient.alter_replica_log_dirs, []
    disk = disks(members, 2)[0]
    plan = written(tmp_path, *(row("late", at, [2, 1], [disk, "any"]) for at in (0, 1)))

    def answer(admin: AdminClient, paths: Mapping[TopicPartitionReplica, str]) -> None:
        asked.append(dict(paths))
        late = {replica: REPLICA_MISSING for replica in paths if replica.partition_id}
        if late and len(asked) < needed:
            raise PartialFailure(late, {})
        alter(admin, paths)

    monkeypatch.setattr(AdminClient, "alter_replica_log_dirs", answer)
    needed = 3
    here("reassign", "execute", plan)
    first, second = (("late", at, 2) for at in (0, 1))
    assert asked == [{first: disk, second: disk}, {second: disk}, {second: disk}]
    needed = 1_000
    error = here("reassign", "execute", plan, "--timeout", "1", code=1).stderr.decode()
    assert "the moves have begun, but not to all log directories named: " in error and "late-1 of broker 2" in error
