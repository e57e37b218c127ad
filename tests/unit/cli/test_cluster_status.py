"""`kbroker cluster status` against a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from kbroker import __version__
from kbroker.cli.cluster_status import _lagging
from kbroker.client import AdminClient, BrokerError, Producer
from kbroker.client.admin.results import PartitionDescription, TopicDescription, TopicPartitionReplica
from kbroker.client.errors import ClientError, TimedOut
from kbroker.errors import ErrorCode
from kbroker.testing.reserved_port import ReservedPort
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.commands import TIMEOUT_S, Run, command_of, from_json


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """With an HTTP port."""
    port = ReservedPort("127.0.0.1")
    try:
        with BrokerProcess({"kbroker.http.address": f"127.0.0.1:{port.port}"}) as running:
            yield running
    finally:
        port.release()


def test_the_broker_its_topics_and_its_groups_are_shown(broker: BrokerProcess, here: Run, topic: str) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        producer.send(topic, b"x").result(30)
    with AdminClient(bootstrap_servers=broker.address) as admin:
        admin.alter_offsets("readers", {(topic, 0): 0})
        cluster = admin.describe_cluster()
    status = from_json(here("cluster", "status", "--json"))
    assert status["ready"] is True
    assert (status["cluster_id"], status["controller"]) == (cluster.cluster_id, cluster.controller_id)
    assert (status["topics"], status["internal_topics"], status["groups"]) == (1, 1, {"Empty": 1})
    assert status["partitions"] == 53
    assert [status[f"{each}_partitions"] for each in ("under_replicated", "under_min_isr", "offline")] == [0, 0, 0]
    (found,) = status["brokers"]
    assert (found["id"], found["address"], found["version"]) == (cluster.controller_id, broker.address, __version__)
    assert (found["listeners"], found["ready"], found["problems"]) == ([f"PLAINTEXT://{broker.address}"], True, [])
    assert found["leads"] == 53
    done = here("cluster", "status")
    text = done.stdout.decode()
    assert status["warnings"] == [] and done.stderr == b"", "one replica is enough for one broker"
    assert f"broker {found['id']} at {broker.address}, kbroker {__version__}: ready\n" in text
    assert "1 topic and 1 internal, 53 partitions, 0 under-replicated, 0 under min ISR, 0 without a leader\n" in text
    assert "\n1 group: 1 Empty\n" in text
    assert "  leads " not in text, "a broker that is alone leads them all"


def test_what_a_broker_says_to_be_wrong_is_told_and_ends_with_1(
    broker: BrokerProcess, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AdminClient(bootstrap_servers=broker.address) as admin:
        cluster = admin.describe_cluster()
    asked: list[str] = []
    node_id = cluster.controller_id

    def answer(host: str, port: int, path: str) -> tuple[int, str]:
        asked.append(path)
        about = f'kbroker_info{{version="9.9",node_id="{node_id}",cluster_id="{cluster.cluster_id}"}} 1\n'
        return (503, "the disk is full\n") if path == "/ready" else (200, about)

    monkeypatch.setattr("kbroker.cli.cluster_status._get", answer)
    done = here("cluster", "status", code=1)
    assert "kbroker 9.9: NOT ready\n  the disk is full\n" in done.stdout.decode()
    assert asked == ["/metrics", "/ready"]
    node_id += 1  # another one answers there
    (found,) = from_json(here("cluster", "status", "--json"))["brokers"]
    assert found["version"] is None and found["ready"]


@pytest.mark.parametrize(
    ("error", "ready"),
    [
        (BrokerError("too old", code=ErrorCode.UNSUPPORTED_VERSION), True),
        (BrokerError("another one is it", code=ErrorCode.NOT_CONTROLLER), False),
        (TimedOut("the controller did not answer"), False),
    ],
    ids=lambda value: str(value),
)
def test_a_controller_that_does_not_answer_is_told_unless_it_is_too_old_to(
    here: Run, monkeypatch: pytest.MonkeyPatch, error: ClientError, ready: bool
) -> None:
    def fail(_: AdminClient) -> None:
        raise error

    monkeypatch.setattr(AdminClient, "list_partition_reassignments", fail)
    done = here("cluster", "status", "--json", code=0 if ready else 1)
    status = from_json(done)
    assert status["ready"] is ready and all(each["ready"] for each in status["brokers"])
    assert [str(error) in each for each in status["problems"]] == [True] * (not ready)
    if not ready:
        lines = here("cluster", "status", code=1).stdout.decode().splitlines()
        assert lines[0].startswith("cluster ") and lines[1] == f"  {status['problems'][0]}"


def test_a_cluster_whose_controller_is_not_there_is_not_ready(
    broker: BrokerProcess, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = AdminClient.describe_cluster
    gone = -1
    monkeypatch.setattr(AdminClient, "describe_cluster", lambda admin: replace(describe(admin), controller_id=gone))
    for gone in (-1, 99):
        status = from_json(here("cluster", "status", "--json", code=1))
        assert (status["ready"], status["controller"]) == (False, gone)
        assert status["problems"] == ["there is no controller: nobody is elected, and no topic made"]


def test_without_an_http_port_nothing_is_asked_there(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.cli.cluster_status.HTTP_ADDRESS", "kbroker.none")
    (found,) = from_json(here("cluster", "status", "--json"))["brokers"]
    assert found["version"] is None and found["ready"]


def test_log_directories_have_sizes_and_free_space(broker: BrokerProcess, here: Run, topic: str) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        producer.send(topic, b"x" * 100_000).result(30)
    (found,) = from_json(here("cluster", "status", "--json"))["brokers"]
    (directory,) = found["log_dirs"]
    assert directory["path"] == str(broker.data) and directory["error"] is None
    assert directory["size"] > 100_000 and 0 < directory["free"] < directory["total"]
    assert str(broker.data) in here("cluster", "status").stdout.decode()
    (described,) = from_json(here("topics", "describe", topic, "--json"))
    assert described["size"] > 100_000


def test_a_topic_that_goes_while_it_is_looked_at_is_passed_over(
    here: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = from_json(here("cluster", "status", "--json"))
    listed = AdminClient.list_topics

    def with_gone(admin: AdminClient, *, internal: bool = False) -> list[str]:
        return [*listed(admin, internal=internal), "gone"]

    monkeypatch.setattr(AdminClient, "list_topics", with_gone)
    assert from_json(here("cluster", "status", "--json"))["partitions"] == before["partitions"]
    assert here("reassign", "plan").stdout == b"nothing has to move\n"
    monkeypatch.setattr(AdminClient, "list_topics", lambda admin, *, internal=False: ["gone", "also-gone"])
    assert from_json(here("cluster", "status", "--json"))["partitions"] == 0
    assert here("reassign", "plan").stdout == b"nothing has to move\n"


def test_a_replica_that_tells_no_end_hides_no_other_of_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three are not in sync: broker 2 copies, and tells its end; broker 3 is dead."""
    ends = {1: 10, 2: 4}

    def told(
        _: AdminClient, replicas: Iterable[TopicPartitionReplica | tuple[str, int, int]]
    ) -> dict[TopicPartitionReplica, int]:
        return {each: ends[each.node_id] for each in map(TopicPartitionReplica._make, replicas)}

    monkeypatch.setattr(AdminClient, "list_log_end_offsets", told)
    topic = TopicDescription("views", bytes(16), False, (PartitionDescription(0, 1, 3, (1, 2, 3), (1,)),))
    with AdminClient(bootstrap_servers="127.0.0.1:1") as admin:
        found = _lagging(admin, [topic], {1, 2}, set())
    assert [(each["broker"], each["alive"], each["lag"]) for each in found] == [(2, True, 6), (3, False, None)]


def test_a_watch_goes_on_through_looks_that_fail_until_it_is_interrupted(broker: BrokerProcess) -> None:
    command = command_of("cluster", "status", "--watch", "--timeout", "1", "-b", broker.address)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None and watching.stderr is not None
        try:
            assert watching.stdout.readline().startswith("cluster ")
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                assert watching.stderr.readline().startswith("kbroker: ")
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            while watching.stdout.readline() != "\n":
                pass
            assert watching.stdout.readline().startswith("cluster "), "the next look"
            watching.send_signal(signal.SIGINT)
            assert watching.wait(TIMEOUT_S) == 130
        finally:
            watching.kill()
