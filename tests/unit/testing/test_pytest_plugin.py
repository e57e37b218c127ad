"""The pytest plugin as a project that has kbroker installed sees it: each test runs a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.kafka.process import KafkaInMemory

TIMEOUT_S = 110


def run(folder: Path, *words: str, ini: str = "", **tests: str) -> subprocess.CompletedProcess[str]:
    """pytest over files of those names, in a directory that has nothing else, without what starts slowly."""
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}")
    for name, text in tests.items():
        (folder / f"{name}.py").write_text(text)
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "hypothesispytest", "benchmark", "xdist")]
    command = [sys.executable, "-m", "pytest", *without, "-q", "--strict-markers", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)


def assert_outcome(done: subprocess.CompletedProcess[str], outcome: str) -> None:
    assert done.stdout.splitlines()[-1].startswith(outcome), done.stdout + done.stderr


TOPICS = """
import pytest
from confluent_kafka import Consumer, Producer
from kbroker.client import AdminClient

topics = []

def partitions(broker, topic):
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        return len(admin.describe_topics([topic])[topic].partitions)

@pytest.mark.parametrize("value", ["a b/c", "d"])
def test_its_own(kbroker_broker, kbroker_topic, value):
    producer = Producer({"bootstrap.servers": kbroker_broker.bootstrap_servers})
    producer.produce(kbroker_topic, value)
    assert producer.flush(60) == 0
    assert partitions(kbroker_broker, kbroker_topic) == 1
    topics.append(kbroker_topic)

@pytest.mark.kbroker_topic(2)
def test_as_marked(kbroker_broker, kbroker_topic):
    assert partitions(kbroker_broker, kbroker_topic) == 2
    topics.append(kbroker_topic)

@pytest.mark.kbroker_topic(partitions=3, retention_ms=1000)
def test_as_marked_by_names(kbroker_broker, kbroker_topic):
    assert partitions(kbroker_broker, kbroker_topic) == 3
    topics.append(kbroker_topic)

def test_four(kbroker_broker):
    assert len(set(topics)) == 4
"""


def test_a_broker_for_the_session_and_a_topic_for_each_test(tmp_path: Path) -> None:
    """Two tests of one name have different topics too."""
    assert_outcome(run(tmp_path, test_topics=TOPICS, test_others=TOPICS), "10 passed")


CLIENTS = """
import pytest

producers = []

@pytest.mark.kbroker_topic(partitions=3)
@pytest.mark.parametrize("value", [b"one", b"two"])
def test_there_and_back(kbroker_producer, kbroker_consumer, kbroker_topic, value):
    sent = kbroker_producer.send_many(kbroker_topic, [value] * 30, partitions=[0, 1, 2] * 10)
    found = []
    while len(found) < 30:
        found += kbroker_consumer.poll(60)
    assert {record.value for record in found} == {value}
    assert {record.topic for record in found} == {kbroker_topic}
    assert {record.offset for record in found} == set(range(10))
    assert sent.result(60) == 30
    producers.append(kbroker_producer)

def test_what_was_sent_is_delivered_when_the_test_ends(kbroker_broker):
    assert len(set(producers)) == 2
    with pytest.raises(Exception, match="closed"):
        producers[0].send("late", b"value")
"""


def test_a_producer_and_a_consumer_of_the_tests_topic(tmp_path: Path) -> None:
    assert_outcome(run(tmp_path, test_clients=CLIENTS), "3 passed")


SETTINGS = """
from kbroker.client import AdminClient

def test_settings(kbroker_broker, kbroker_producer):
    assert kbroker_broker.faults.seen("Produce") == 0
    kbroker_producer.send("made", "value").result(60)
    with AdminClient(bootstrap_servers=kbroker_broker.bootstrap_servers) as admin:
        assert len(admin.describe_topics(["made"])["made"].partitions) == 5
"""


def test_settings_come_from_the_ini_file_and_the_command_line(tmp_path: Path) -> None:
    ini = "kbroker_faults = true\nkbroker_settings =\n  auto.create.topics.enable=true\n  num.partitions = 3\n"
    done = run(tmp_path, "--kbroker-setting", "num.partitions=5", ini=ini, test_settings=SETTINGS)
    assert_outcome(done, "1 passed")


def test_a_project_computes_settings_by_a_fixture_of_its_own(tmp_path: Path) -> None:
    own = 'import pytest\n@pytest.fixture(scope="session")\ndef kbroker_settings():\n    return {"num.partitions": 5}\n'
    ini = "kbroker_faults = true"
    assert_outcome(run(tmp_path, ini=ini, conftest=own, test_settings=SETTINGS), "1 passed")


@pytest.mark.parametrize(
    ("setting", "why"), [("num.partitions", "is not NAME=VALUE"), ("num.partition=1", "did you mean num.partitions?")]
)
def test_a_wrong_setting_is_an_error_that_says_so(tmp_path: Path, setting: str, why: str) -> None:
    done = run(tmp_path, "--kbroker-setting", setting, test_settings=SETTINGS)
    assert_outcome(done, "1 error")
    assert why in done.stdout


UNUSED = """
import sys

def test_nothing():
    assert "kbroker.testing.pytest_plugin" in sys.modules
    loaded = {name for name in sys.modules if name.startswith("kbroker")}
    assert loaded == {"kbroker", "kbroker.testing", "kbroker.testing.pytest_plugin"}
"""


def test_a_project_that_uses_no_fixture_imports_nothing(tmp_path: Path) -> None:
    assert_outcome(run(tmp_path, test_unused=UNUSED), "1 passed")


ZOOKEEPER = """
from kazoo.client import KazooClient
from pathlib import Path

def test_zookeeper(kbroker_zookeeper):
    def client():
        client = KazooClient(kbroker_zookeeper.connect, timeout=30)
        client.start(60)
        return client
    first = client()
    first.create("/kept", b"value")
    first.stop()
    for end in (kbroker_zookeeper.stop, kbroker_zookeeper.kill):
        end()
        kbroker_zookeeper.start()
        again = client()
        assert again.get("/kept")[0] == b"value"
        again.stop()
"""


def test_a_zookeeper_from_jars_that_are_there(tmp_path: Path, temporary_files: Path) -> None:
    jars = Path(KafkaInMemory.classpath().split(":")[0]).parent
    assert_outcome(run(tmp_path, ini=f"kbroker_zookeeper_jars = {jars}", test_zookeeper=ZOOKEEPER), "1 passed")
    assert list(temporary_files.iterdir()) == []


CLUSTERS = """
import pytest

topics = []

def test_three_brokers(kbroker_cluster):
    kbroker_cluster.create_topic("views")
    assert list(kbroker_cluster.brokers) == [1, 2, 3]

@pytest.mark.kbroker_cluster(2, cuts=True, racks=["a", "b"], min_insync_replicas=1)
def test_as_marked(kbroker_cluster):
    kbroker_cluster.create_topic("views")  # the cluster of the other test has one too
    with kbroker_cluster.isolated(1):
        overrides = kbroker_cluster.brokers[2]._runner._arguments["overrides"]
        assert {"min.insync.replicas=1", "broker.rack=b"} <= {*overrides}
"""


def test_a_cluster_for_each_test(tmp_path: Path, temporary_files: Path) -> None:
    jars = Path(KafkaInMemory.classpath().split(":")[0]).parent
    assert_outcome(run(tmp_path, ini=f"kbroker_zookeeper_jars = {jars}", test_clusters=CLUSTERS), "2 passed")
    assert list(temporary_files.iterdir()) == []


def test_tests_with_a_zookeeper_are_skipped_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    for ini, why in (
        ("", f"there is no zookeeper-*.jar in {tmp_path}/lib"),
        (f"kbroker_zookeeper_jars = {tmp_path}", f"there is no zookeeper-*.jar in {tmp_path}"),
    ):
        done = run(tmp_path, "-rs", ini=ini, test_zookeeper=ZOOKEEPER)
        assert_outcome(done, "1 skipped")
        assert why in done.stdout
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = run(tmp_path, "-rs", test_zookeeper=ZOOKEEPER)
    assert_outcome(done, "1 skipped")
    assert f"there is no java in {tmp_path}/bin" in done.stdout
    assert_outcome(run(tmp_path, "-rs", test_zookeeper=CLUSTERS), "2 skipped")
