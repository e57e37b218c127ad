"""`kbroker cluster import` and `export` where they are refused: one clear line. tests/oracle/test_migration.py carries.

Replicas of other brokers and missing logs are refused until an option allows them, and nodes that are protected always.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, Id, make_digest_acl

from kbroker.cli.main import main
from kbroker.coordination import paths
from kbroker.coordination.embedded import FILE_NAME, EmbeddedStore
from kbroker.coordination.paths import PartitionRegistration, TopicAssignment
from kbroker.coordination.store import Create, parent_of
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import StorageOptions
from tests.kit.brokers.process import free_port
from tests.kit.clients.commands import command_of
from tests.kit.kafka.zookeeper import ZooKeeperProcess

WAIT_S = 30.0
CHROOTS = itertools.count()
SOMEBODY_ELSE = make_digest_acl("somebody", "else", all=True)
EVERYBODY_READS = ACL(1, Id("world", "anyone"))


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["cluster", *map(str, words)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("kbroker: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("action", ["import", "export"])
def test_a_directory_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    directory = tmp_path / "none"
    assert "is no directory" in refusal(capsys, action, "-z", "localhost:1", "-d", directory)
    assert not directory.exists()


def test_a_directory_of_nobody_needs_a_broker_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give --broker-id" in refusal(capsys, "import", "-z", "localhost:1", "-d", tmp_path)


def test_a_directory_of_another_broker_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=3\n")
    said = refusal(capsys, "import", "-z", "localhost:1", "-d", tmp_path, "--broker-id", 4)
    assert f"{tmp_path} is of broker 3, not of 4" in said


@pytest.mark.parametrize("address", ["localhost:99999", ":", "localhost:port/x"])
def test_an_address_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str) -> None:
    said = refusal(capsys, "import", "-z", address, "-d", tmp_path, "--broker-id", 0)
    assert f"zookeeper {address!r}: not HOST:PORT" in said


def test_a_zookeeper_that_is_not_there_is_told_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    said = refusal(capsys, "import", "-z", address, "-d", tmp_path, "--broker-id", 0, "--timeout", "0.5")
    assert f"ZooKeeper {address} cannot be reached" in said
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}


def test_nothing_is_exported_where_no_broker_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "export", "-z", "localhost:1", "-d", tmp_path, "--broker-id", 0)
    assert "no kbroker has been started" in said


def test_two_stores_in_two_directories_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        EmbeddedStore(str(tmp_path / name / "coordination.sqlite")).stop()
    words = ["export", "-z", "localhost:1", "-d", tmp_path / "a", "-d", tmp_path / "b", "--broker-id", 0]
    assert "a broker has one of them" in refusal(capsys, *words)


def test_a_directory_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = LogManager(StorageOptions((str(tmp_path),)))
    logs.lock_directories()
    try:
        assert "is in use by process" in refusal(capsys, "import", "-z", "localhost:1", "-d", tmp_path)
    finally:
        logs.stop()


# --- with a ZooKeeper -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zookeeper(jars: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess() as server:
        yield server


def nodes_of_a_cluster(**replicas: tuple[int, ...]) -> dict[str, bytes]:
    """Return the nodes of a cluster whose topics have one partition each, on these brokers; the first one leads it."""
    nodes = {
        paths.CLUSTER_ID: paths.encode_cluster_id("vPeOCWypqUOSepEvx0cbog"),
        paths.CONTROLLER_EPOCH: b"5",
        "/config/topics": b"",
    }
    for number, (name, ids) in enumerate(replicas.items(), 1):
        nodes[paths.topic_path(name)] = paths.encode_topic(TopicAssignment(UUID(int=number), {0: ids}, {}, {}))
        led = PartitionRegistration(ids[0], 4, (ids[0],), 5)
        nodes[paths.partition_state_path(name, 0)] = paths.encode_partition_state(led)
    for path in list(nodes):
        while (path := parent_of(path)) != "/":
            nodes.setdefault(path, b"")
    return nodes


def cluster_in(server: ZooKeeperProcess, **replicas: tuple[int, ...]) -> str:
    """Put a cluster into a ZooKeeper, under a chroot of its own, and return the address with the chroot."""
    address = f"{server.address}/cluster-{next(CHROOTS)}"
    there = ZooKeeperStore(address, WAIT_S)
    there.make_chroot()
    there.multi([Create(path, data) for path, data in sorted(nodes_of_a_cluster(**replicas).items())])
    there.close()
    return address


def protected_cluster_in(server: ZooKeeperProcess, *acl: ACL) -> str:
    """Do what `cluster_in` does; all nodes are somebody else's, and have these ACLs besides."""
    chroot = f"/cluster-{next(CHROOTS)}"
    client = KazooClient(server.address, auth_data=[("digest", "somebody:else")])
    client.start(WAIT_S)
    for path, data in sorted({"": b"", **nodes_of_a_cluster(views=(1,))}.items()):
        client.create(chroot + path, data, acl=[SOMEBODY_ELSE, *acl])
    client.stop()
    client.close()
    return server.address + chroot


def carried(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["cluster", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_replicas_of_others_and_missing_logs_are_refused_until_they_are_allowed(
    zookeeper: ZooKeeperProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the way out of a ZooKeeper and on the way into it. What was refused has changed nothing."""
    here = ["-d", tmp_path, "--broker-id", 1]
    address = cluster_in(zookeeper, shared=(2, 1))
    importing, exporting = ([action, "--zookeeper", address, *here] for action in ("import", "export"))
    shared = "other brokers have replicas too of shared-0 (on 2, 1); --only-replica leaves the one of broker 1 as the"
    missing = "no log directory has shared-0; --allow-empty lets them begin empty"
    for refused_first in ([], ["--allow-empty"]):
        assert shared in refusal(capsys, *importing, *refused_first)
    assert missing in refusal(capsys, *importing, "--only-replica")
    assert not (tmp_path / FILE_NAME).exists()
    said = carried(capsys, *importing, "--only-replica", "--allow-empty")
    assert "note: broker 1 was not in sync and may lack records of shared-0\n" in said
    assert "1 topics with 1 partitions carried out of ZooKeeper" in said

    for refused_first in ([], ["--allow-empty"]):
        assert shared in refusal(capsys, *exporting, *refused_first)
    assert missing in refusal(capsys, *exporting, "--only-replica")
    assert (tmp_path / FILE_NAME).exists()
    assert "1 topics with 1 partitions carried into" in carried(capsys, *exporting, "--only-replica", "--allow-empty")
    again = ZooKeeperStore(address, WAIT_S)
    assert paths.decode_topic("", again.get(paths.topic_path("shared"))[0]).replicas == {0: (1,)}
    again.close()


def test_a_partition_whose_only_log_is_elsewhere_begins_empty_with_both_options_only(
    zookeeper: ZooKeeperProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importing = ["import", "-z", cluster_in(zookeeper, elsewhere=(2,)), "-d", tmp_path, "--broker-id", 1]
    for options in ([], ["--only-replica"], ["--allow-empty"]):
        assert "broker 1 has no replica of elsewhere-0 (on 2); " in refusal(capsys, *importing, *options)
    assert "1 topics with 1 partitions" in carried(capsys, *importing, "--only-replica", "--allow-empty")


def test_nodes_that_are_protected_are_told_in_one_line(
    zookeeper: ZooKeeperProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is carried out of nodes that nobody may read. Where all may read and nobody may write, nothing is carried
    in, and no broker becomes a member."""
    here = ["-d", tmp_path, "--broker-id", 1, "--allow-empty"]
    closed, readable = protected_cluster_in(zookeeper), protected_cluster_in(zookeeper, EVERYBODY_READS)
    refused = f"kbroker: ZooKeeper {closed} refuses access: its nodes are protected\n"
    assert refusal(capsys, "import", "-z", closed, *here) == refused
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}

    assert "1 topics with 1 partitions" in carried(capsys, "import", "-z", readable, *here)
    refused = f"kbroker: ZooKeeper {readable} refuses access to /"
    said = refusal(capsys, "export", "-z", readable, *here)
    assert said.startswith(refused) and said.endswith(": its nodes are protected; nothing was changed\n")
    assert (tmp_path / FILE_NAME).exists(), "what is in it was not carried"

    words = ["--data", str(tmp_path / "member"), "-o", f"zookeeper.connect={readable}", "-o", "broker.id=2"]
    done = subprocess.run(
        command_of("start", *words, "-o", "listeners=PLAINTEXT://127.0.0.1:0", "--log-level", "error"),
        capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    assert f"ZooKeeper {readable} refuses access to /" in done.stderr and "its nodes are protected" in done.stderr
