"""`kbroker.testing.Broker`: its life, its data, its port, and what is left when a test run ends."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from kbroker.client import AdminClient, BrokerError
from kbroker.errors import ErrorCode
from kbroker.testing import Broker, BrokerFailed
from kbroker.testing.folder import OWNER, PREFIX, remove_ownerless

WAIT_S = 60


@pytest.fixture(params=[False, True], ids=["subprocess", "inprocess"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(inprocess=request.param) as broker:
        yield broker


def is_refused(broker: Broker) -> bool:
    with socket.socket() as client:
        return client.connect_ex((broker.host, broker.port)) != 0


def topics_of(broker: Broker) -> dict[str, int]:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        return {name: len(topic.partitions) for name, topic in admin.describe_topics(admin.list_topics()).items()}


def produce(broker: Broker, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(WAIT_S) == 0


def consume(broker: Broker, topic: str, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None and message.error() is None
        values.append(message.value())
    consumer.close()
    return values


def await_end(pid: int) -> None:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    assert poll.poll(WAIT_S * 1000), f"process {pid} lives on"
    os.close(watched)


# --- what it gives ----------------------------------------------------------------------------------------------------


def test_clients_produce_and_consume_in_groups(broker: Broker) -> None:
    broker.create_topic("t", 3)
    produce(broker, "t", [b"a", b"b", b"c"])
    assert sorted(consume(broker, "t", 3)) == [b"a", b"b", b"c"]


def test_settings_have_kafkas_names_and_are_not_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBROKER_NUM_PARTITIONS", "7")
    monkeypatch.setenv("KBROKER_LOG_RETENTION_HOURS", "nonsense")
    with Broker(settings={"num.partitions": 3, "auto.create.topics.enable": True}) as broker:
        produce(broker, "made", [b"x"])
        assert topics_of(broker) == {"made": 3}


def test_a_topic_gets_partitions_and_configs_and_is_refused_when_it_is_there(broker: Broker) -> None:
    broker.create_topic("t", 2, retention_ms=12345, **{"cleanup.policy": "compact"})
    command = [sys.executable, "-m", "kbroker.cli.main", "configs", "describe", "topic", "t"]
    said = subprocess.run([*command, "-b", broker.bootstrap_servers], capture_output=True, text=True, timeout=WAIT_S)
    assert "12345" in said.stdout and "compact" in said.stdout, said
    assert topics_of(broker) == {"t": 2}
    with pytest.raises(BrokerError, match="topic 't'") as refused:
        broker.create_topic("t")
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_eight_brokers_start_at_once_and_know_nothing_of_each_other() -> None:
    brokers = [Broker() for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(Broker.start, brokers))
        for number, broker in enumerate(brokers):
            broker.create_topic(f"of-{number}")
        assert list(threads.map(topics_of, brokers)) == [{f"of-{number}": 1} for number in range(8)]
        list(threads.map(Broker.close, brokers))
    assert len({broker.port for broker in brokers}) == 8


@pytest.mark.parametrize("name", ["listeners", "port", "log.dirs"])
def test_what_the_kit_sets_itself_is_refused_with_what_to_use(name: str) -> None:
    with pytest.raises(ValueError, match=f"settings: {name} is not for tests to set; use "):
        Broker(settings={name: "x"})


# --- stop, kill, pause ------------------------------------------------------------------------------------------------


def test_data_and_port_are_the_same_after_stop_and_start(broker: Broker) -> None:
    broker.create_topic("t")
    produce(broker, "t", [b"kept"])
    port = broker.port
    broker.stop()
    assert is_refused(broker)
    broker.start()
    assert broker.port == port
    assert consume(broker, "t", 1) == [b"kept"]


def test_what_was_acknowledged_survives_a_kill() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        before = broker.pid
        produce(broker, "t", [b"acknowledged"])
        broker.restart(kill=True)
        assert broker.pid != before
        assert consume(broker, "t", 1) == [b"acknowledged"]
        assert "not stopped cleanly" in broker.log


def test_nobody_else_gets_the_port_while_it_is_down() -> None:
    with Broker() as broker:
        broker.kill()
        with socket.socket() as other, pytest.raises(OSError):
            other.bind((broker.host, broker.port))
        broker.start()


def test_a_paused_broker_answers_when_it_is_resumed() -> None:
    with Broker() as broker, socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as client:
        with broker.paused():
            state = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()[0]
            client.sendall(bytes.fromhex("0000000e 0012 0000 00000007 0004") + b"test")
            answered, _, _ = select.select([client], [], [], 0)
        assert (state, answered) == ("T", [])
        assert len(client.recv(4)) > 0


@pytest.mark.parametrize("end", [Broker.stop, Broker.kill, Broker.close], ids=["stop", "kill", "close"])
def test_a_paused_broker_can_be_ended(end: Callable[[Broker], None]) -> None:
    with Broker() as broker:
        broker.pause()
        end(broker)


def test_a_broker_inside_of_the_process_is_not_killed_or_paused() -> None:
    with Broker(inprocess=True) as broker:
        for refused in (broker.kill, broker.pause, broker.resume):
            with pytest.raises(RuntimeError, match="leave out inprocess=True"):
                refused()
        assert topics_of(broker) == {}


def test_what_is_not_running_cannot_be_stopped_and_what_is_closed_not_started() -> None:
    with Broker() as broker:
        broker.stop()
        for refused in (broker.stop, broker.kill, broker.pause, lambda: broker.create_topic("t")):
            with pytest.raises(RuntimeError, match="not running"):
                refused()
    with pytest.raises(RuntimeError, match="closed"):
        broker.start()
    with Broker(inprocess=True) as inside:
        inside.stop()
        with pytest.raises(RuntimeError, match="not running"):
            inside.create_topic("t")


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inprocess", [False, True], ids=["subprocess", "inprocess"])
def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(inprocess: bool, temporary_files: Path) -> None:
    broker = Broker(settings={"num.partition": 3}, inprocess=inprocess)
    with (
        pytest.raises(BrokerFailed, match=r"(?s)did not start.*num\.partition: .*did you mean num\.partitions"),
        broker,
    ):
        raise AssertionError("the block begins")
    assert list(temporary_files.iterdir()) == []


def test_a_broker_that_takes_too_long_is_ended(temporary_files: Path) -> None:
    broker = Broker(start_timeout_s=0)
    with pytest.raises(BrokerFailed, match="did not start within 0 s"):
        broker.start()
    assert broker.pid is None
    broker.close()
    assert list(temporary_files.iterdir()) == []


def test_a_broker_that_ended_by_itself_fails_the_test() -> None:
    with pytest.raises(BrokerFailed, match=r"(?s)by itself \(signal SIGKILL\).*serves PLAINTEXT"), Broker() as broker:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)


def test_a_stop_of_a_broker_that_ended_by_itself_fails() -> None:
    with Broker() as broker:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGTERM)
        os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(BrokerFailed, match="by itself"):
            broker.stop()


# --- what is left -----------------------------------------------------------------------------------------------------


def test_process_and_data_are_gone_after_the_block_and_the_log_is_not(temporary_files: Path) -> None:
    with Broker() as broker:
        pid = broker.pid
        broker.create_topic("t")
        (folder,) = temporary_files.iterdir()
        assert (folder / "data" / "t-0").is_dir()
    assert not Path(f"/proc/{pid}").exists()
    assert list(temporary_files.iterdir()) == []
    assert f"serves PLAINTEXT://{broker.bootstrap_servers}" in broker.log


def test_a_directory_of_the_users_own_is_kept(tmp_path: Path) -> None:
    for expected in ({}, {"t": 1}):
        with Broker(directory=tmp_path / "mine") as broker:
            assert topics_of(broker) == expected
            if not expected:
                broker.create_topic("t")


def test_a_broker_that_nobody_has_any_more_is_ended() -> None:
    broker = Broker()
    broker.start()
    pid = broker.pid
    assert pid is not None
    del broker
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()


PARENT = """
import sys
from kbroker.testing import Broker
broker = Broker()
broker.start()
if sys.argv[1] == "paused":
    broker.pause()
print(broker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["running", "paused"])
def test_no_broker_is_left_when_its_test_run_is_killed(state: str, temporary_files: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        with Broker():
            remove_ownerless()
            assert len(list(temporary_files.iterdir())) == 2  # both have owners
        parent.kill()
        await_end(pid)
    (left,) = temporary_files.iterdir()
    remove_ownerless()
    assert not left.exists()


def test_a_broker_ends_when_its_test_run_ends_without_closing_it(temporary_files: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PARENT, "running"], input=b"", capture_output=True, timeout=WAIT_S)
    await_end(int(done.stdout))
    assert list(temporary_files.iterdir()) == []


def test_only_folders_of_brokers_are_removed(temporary_files: Path) -> None:
    (temporary_files / f"{PREFIX}without-lock").mkdir()
    other = temporary_files / "other"
    other.mkdir()
    (other / OWNER).touch()
    remove_ownerless()
    assert sorted(path.name for path in temporary_files.iterdir()) == [f"{PREFIX}without-lock", "other"]
