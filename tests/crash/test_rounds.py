"""What the cluster rounds report: files that cannot be checked, faults that are missing, rounds that did not begin."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.crash import cluster_rounds
from tests.crash.cluster_rounds import EXPIRED, Result, broken_kafka, damaged_files, noting
from tests.kit.cluster.cluster import NotSettled

BROKEN = f"""\
10:01:02.003 INFO [Broker id=3] Handling LeaderAndIsr request correlationId 1 from controller 1 for 5 partitions
10:01:04.100 ERROR [Broker id=3] Error while processing LeaderAndIsr request with correlationId 1 received from
{EXPIRED}: KeeperErrorCode = Session expired for /config/topics/crash
\tat org.apache.zookeeper.KeeperException.create(KeeperException.java:134)
\tat kafka.zk.AdminZkClient.fetchEntityConfig(AdminZkClient.scala:550)
\tat kafka.log.LogManager.fetchTopicConfigOverrides(LogManager.scala:600)
\tat kafka.cluster.Partition.createLogIfNotExists(Partition.scala:425)
\tat kafka.server.ReplicaManager.makeFollowers(ReplicaManager.scala:2280)
10:01:04.200 INFO [Broker id=3] Ignoring LeaderAndIsr request (state.change.logger)
"""
"""What a Kafka prints whose session ends while it makes the log of its first replica."""


def node(kind: str, output: str = "") -> Any:
    return SimpleNamespace(node_id=3, kind=kind, output=output, directories=[Path("/data")])


def cluster(*nodes: Any) -> Any:
    return SimpleNamespace(nodes=dict(enumerate(nodes, 1)))


def without_a_frame(name: str) -> str:
    return "\n".join(line for line in BROKEN.splitlines() if name not in line)


@pytest.mark.parametrize(
    ("kind", "output", "is_broken"),
    [
        ("kafka", BROKEN, True),
        ("kafka", f"{EXPIRED}: Session expired for /controller\n\tat kafka.zk.KafkaZkClient.get\n{BROKEN}", True),
        ("kbroker", BROKEN, False),
        ("kafka", without_a_frame("makeFollowers"), False),
        ("kafka", without_a_frame("fetchTopicConfigOverrides"), False),
        ("kafka", BROKEN.replace("SessionExpired", "ConnectionLoss"), False),
        ("kafka", BROKEN.replace("\tat kafka.cluster", "INFO a line of another thread\n\tat kafka.cluster"), False),
        ("kafka", "", False),
    ],
)
def test_only_a_kafka_with_this_very_exception_has_broken_by_itself(kind: str, output: str, is_broken: bool) -> None:
    assert bool(broken_kafka(cluster(node("kafka"), node(kind, output)))) == is_broken


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_round_is_not_begun_only_if_a_kafka_breaks_before_the_first_fault(tmp_path: Path, has_begun: bool) -> None:
    result = Result(1, ("kafka",), has_begun=has_begun)
    with noting(result, cluster(node("kafka", BROKEN)), tmp_path, None):
        raise NotSettled("t-0 has no leader")
    assert result.is_bad == has_begun and bool(result.not_begun) != has_begun
    expected = "1 anomalies" if has_begun else "not begun: Kafka broke by itself (broker 3: its session expired"
    assert expected in str(result)


def test_what_happens_before_the_first_fault_is_wrong_if_no_kafka_has_broken_by_itself(tmp_path: Path) -> None:
    result = Result(1, ("kafka", "kbroker"))
    with noting(result, cluster(node("kafka"), node("kbroker", BROKEN)), tmp_path, None):
        raise NotSettled("t-0 has no leader")
    assert result.is_bad and not result.not_begun


def test_a_check_of_files_that_fails_without_a_word_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\nexit 3\n")
    fails.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fails))
    assert damaged_files(cluster(node("kbroker")), 1) == ["broker 1: verify-log ended with 3"]
    assert damaged_files(cluster(node("kafka")), 1) == []


def ended_with(monkeypatch: pytest.MonkeyPatch, arguments: str, *results: Result) -> tuple[int, list[Any]]:
    """Return what the command ends with if its rounds end with `results`, and the faults that they were given."""
    left, faults = list(results), []

    def run(seed: int, **options: Any) -> Result:
        faults.append(options["faults"])
        return left.pop(0)

    monkeypatch.setattr(cluster_rounds, "run", run)
    monkeypatch.setattr(sys, "argv", ["cluster_rounds", "--rounds", str(len(results)), *arguments.split()])
    return int(cluster_rounds.main()), faults


def good(**fields: Any) -> Result:
    return Result(0, ("kbroker",), **fields)


NO_NETWORK = dict.fromkeys(cluster_rounds.OF_NETWORK, "no network namespace can be made")


def test_rounds_without_some_faults_are_a_failure_unless_they_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_with(monkeypatch, "", good(), good())[0] == 0
    assert ended_with(monkeypatch, "", good(left_out=NO_NETWORK), good())[0] == 1
    assert "faults are missing: cut_pair, cut_one_way" in capsys.readouterr().out
    code, (faults,) = ended_with(monkeypatch, "--without network disk", good())
    assert code == 0 and faults == [one for one in cluster_rounds.OF_PROCESSES if one != "fill_disk"]
    with pytest.raises(SystemExit):
        ended_with(monkeypatch, "--faults fill_disk --without disk", good())


def test_rounds_that_have_not_begun_are_counted_and_not_all_may_be_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_with(monkeypatch, "", good(), good(not_begun="Kafka broke"))[0] == 0
    assert "0 of them bad, 1 not begun" in capsys.readouterr().out
    assert ended_with(monkeypatch, "", good(not_begun="Kafka broke"))[0] == 1
