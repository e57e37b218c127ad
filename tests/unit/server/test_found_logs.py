"""The log directories of a Kafka are read as Kafka wrote them."""

from pathlib import Path
from uuid import UUID

import pytest

from kbroker.cluster.topics import FoundPartition
from kbroker.config.broker_config import load_config
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.server.broker import Broker
from kbroker.server.found_logs import found_partitions, refuse_foreign
from kbroker.storage.directory import WrongDirectory
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.parts.processors import wait_until

TOPIC_ID = UUID("a62fec1a-2062-4220-a19e-256b2a9c611e")


def partition(log_dir: Path, name: str, epochs: str | None, topic_id: str | None) -> None:
    (log_dir / name).mkdir(parents=True)
    if epochs is not None:
        (log_dir / name / "leader-epoch-checkpoint").write_text(epochs)
    if topic_id is not None:
        (log_dir / name / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


def test_partitions_of_all_directories_are_found_with_ids_and_epochs(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    partition(first, "a-0", "0\n2\n0 0\n7 100\n", "pi_sGiBiQiChniVrKpxhHg")
    partition(first, "with-dash-3", "0\n0\n", None)
    partition(second, "a-1", None, "pi_sGiBiQiChniVrKpxhHg")
    assert list(found_partitions([first, second])) == [
        FoundPartition(TopicPartition("a", 0), TOPIC_ID, 7),
        FoundPartition(TopicPartition("with-dash", 3), None, -1),
        FoundPartition(TopicPartition("a", 1), TOPIC_ID, -1),
    ]


def test_what_is_no_topics_log_is_passed_over(tmp_path: Path) -> None:
    for name in ("__cluster_metadata-0", "a-0.77-delete", "a-0.77-stray", "lost+found", "a-x"):
        partition(tmp_path, name, None, None)
    (tmp_path / "meta.properties").write_text("version=1\n")
    assert list(found_partitions([tmp_path])) == []


@pytest.mark.parametrize(
    "entries",
    [
        [],
        ["lost+found"],
        [".lock"],
        ["orders-0", "orders-1.0123456789abcdef0123456789abcdef-delete"],
        ["meta.properties", "notes.txt"],
        ["recovery-point-offset-checkpoint", "notes.txt"],
        ["coordination.sqlite", "coordination.sqlite-wal", "notes.txt"],
        ["__cluster_metadata-0", "lost+found"],
    ],
)
def test_a_directory_is_taken_that_is_empty_or_has_been_a_brokers(tmp_path: Path, entries: list[str]) -> None:
    for name in entries:
        (tmp_path / name).touch()
    refuse_foreign([tmp_path, tmp_path / "not-there"])


@pytest.mark.parametrize("entries", [["bin", "lib", "python-3", "share"], ["notes.txt"], [".bashrc", "lost+found"]])
def test_a_directory_of_somebody_else_is_refused_and_left_as_it_is(tmp_path: Path, entries: list[str]) -> None:
    for name in entries:
        (tmp_path / "theirs").mkdir(exist_ok=True)
        (tmp_path / "theirs" / name).touch()
    broker = Broker(load_config(None, ["listeners=PLAINTEXT://127.0.0.1:0"], tmp_path / "theirs", environment={}))
    with pytest.raises(WrongDirectory, match=r"theirs has files that are no broker's \(.*choose an empty or a new one"):
        broker.start()
    broker.stop()
    assert sorted(path.name for path in (tmp_path / "theirs").iterdir()) == sorted(entries)


def test_damaged_notes_beside_a_log_do_not_hide_it(tmp_path: Path) -> None:
    partition(tmp_path, "a-0", "rubbish", "!!")
    assert list(found_partitions([tmp_path])) == [FoundPartition(TopicPartition("a", 0), None, -1)]


def test_a_file_with_the_name_of_a_partition_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "a-0").write_text("")
    assert list(found_partitions([tmp_path])) == []


def test_a_broker_that_was_killed_does_not_warn_of_the_leader_epochs_of_empty_partitions() -> None:
    wanted = M.CreateTopicsRequest.CreatableTopic(name="empty", num_partitions=5, replication_factor=1)
    with BrokerProcess() as broker:
        with WireClient("127.0.0.1", broker.port) as client:
            (made,) = client.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[wanted])).topics
            assert made.error_code == 0
        for count in (1, 2):
            broker.kill()
            broker.start()
            wait_until(lambda count=count: broker.output.count(", recovered") == count, "recovered")  # type: ignore[misc]
        assert "which no batch has" not in broker.output
