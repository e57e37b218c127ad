"""What the cluster rounds rely on: networks that are cut, replicas that differ, trees that make no sense."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path

import pytest

from kbroker.protocol.records import Record, encode_batch
from tests.crash import cluster_rounds
from tests.kit.brokers.hosts import Host
from tests.kit.cluster import coordinators, replicas, tree
from tests.kit.cluster.cluster import Cluster
from tests.kit.cluster.coordinators import Term
from tests.kit.cluster.network import CannotSeparate, SeparateNetwork, SharedNetwork
from tests.kit.crash import small_disk
from tests.kit.kafka.zookeeper import Node

# --- networks -------------------------------------------------------------------------------------------


def arrives(source: Host, target: Host) -> bool:
    """Return whether a connection can be made, which needs packets in both directions."""
    with target.entered():
        server = socket.create_server((target.address, 0))
    with server, source.entered():
        try:
            socket.create_connection(server.getsockname(), timeout=0.3).close()
        except TimeoutError:
            return False
    return True


def test_packets_are_dropped_between_two_hosts_until_the_network_is_mended() -> None:
    before = Path("/proc/self/net/dev").read_text().count("\n")
    try:
        network = SeparateNetwork()
    except CannotSeparate as error:
        pytest.skip(str(error))
    with network:
        one, other, third = (network.add_host(name) for name in ("one", "other", "third"))
        assert arrives(one, other) and arrives(network.clients, one)
        network.cut(one, other)
        assert not arrives(one, other) and not arrives(other, one)
        assert arrives(one, third) and arrives(network.clients, other)
        network.mend()
        assert arrives(one, other)
        network.isolate(third, clients_too=False)
        assert not arrives(one, third) and not arrives(third, other) and arrives(network.clients, third)
        assert Path("/proc/self/net/dev").read_text().count("\n") == before


def test_a_connection_that_is_open_stays_open_and_silent_in_the_direction_that_is_cut() -> None:
    try:
        network = SeparateNetwork()
    except CannotSeparate as error:
        pytest.skip(str(error))
    with network:
        one, other = network.add_host("one"), network.add_host("other")
        with other.entered():
            server = socket.create_server((other.address, 0))
        with one.entered():
            near = socket.create_connection(server.getsockname(), timeout=1)
        far, _ = server.accept()
        with server, near, far:
            far.settimeout(0.3)
            network.cut(one, other, both_ways=False)
            near.sendall(b"lost")
            with pytest.raises(TimeoutError):
                far.recv(4)
            network.mend()
            far.settimeout(5)
            assert far.recv(4) == b"lost"  # TCP has sent it again


# --- disks ----------------------------------------------------------------------------------------------


def test_a_kafka_whose_disk_was_full_does_not_run_when_it_has_room_and_others_do() -> None:
    cluster = Cluster(("kafka", "kbroker", "kafka"), disk="1m")
    try:
        for node in cluster.nodes.values():
            node.process = subprocess.Popen(["sleep", "60"])
        for node_id in (1, 2):
            cluster.fill_disk(node_id)
        for node_id in cluster.nodes:
            cluster.free_disk(node_id)
        assert [node.is_running for node in cluster.nodes.values()] == [False, True, True]
        assert not list(cluster.folder.glob("*/disk/filler"))
    finally:
        cluster.close()


def test_tests_are_skipped_and_rounds_go_on_without_full_disks_where_nothing_can_be_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mount` is one that refuses, as the real one does without the permission."""
    refusal = "mount: /disk: permission denied."
    (tmp_path / "mount").write_text(f"#!/bin/sh\necho '{refusal}' >&2\nexit 32\n")
    (tmp_path / "mount").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("tests.kit.cluster.cluster.MEMORY_DISK", tmp_path / "missing")
    (tmp_path / "clusters").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "clusters"))
    with pytest.raises(pytest.skip.Exception, match=f"no leave to mount: {refusal}"):
        Cluster(("kbroker",), disk="1m", connected=SharedNetwork)
    assert not list((tmp_path / "clusters").iterdir())
    with pytest.raises(pytest.skip.Exception, match=f"no leave to mount: {refusal}"), small_disk.disk(tmp_path / "a"):
        pass
    with pytest.raises(pytest.skip.Exception, match=f"no leave to mount: {refusal}"), small_disk.read_only(tmp_path):
        pass
    assert cluster_rounds.impossible(SharedNetwork()) == {
        "fill_disk": f"no leave to mount: {refusal}",
        **dict.fromkeys(cluster_rounds.OF_NETWORK, "no network namespace can be made"),
    }


# --- replicas -------------------------------------------------------------------------------------------


def stored(folder: Path, *batches: bytes) -> Path:
    folder.mkdir(parents=True)
    (folder / "00000000000000000000.log").write_bytes(b"".join(batches))
    return folder


def batch(base_offset: int, value: bytes = b"x", epoch: int = 0) -> bytes:
    return encode_batch([Record(base_offset, 1000, None, value, [])], base_offset=base_offset, leader_epoch=epoch)


def test_replicas_with_the_same_batches_do_not_differ_wherever_they_begin(tmp_path: Path) -> None:
    whole = stored(tmp_path / "1", batch(0), batch(1), batch(2))
    later = stored(tmp_path / "2", batch(1), batch(2))
    torn = stored(tmp_path / "3", batch(0), batch(1), batch(2), batch(3)[:30])
    assert replicas.differences({1: whole, 2: later, 3: torn}, "t-0") == []


@pytest.mark.parametrize(
    "others",
    [
        [batch(0), batch(1, b"y"), batch(2)],
        [batch(0), batch(1, epoch=1), batch(2)],
        [batch(0), batch(1)],
        [batch(0), batch(1), batch(2), batch(3)],
        [batch(0), batch(2)],
        [batch(0), batch(1), batch(1), batch(2)],
        [],
    ],
)
def test_replicas_that_differ_are_found(tmp_path: Path, others: list[bytes]) -> None:
    folders = {
        1: stored(tmp_path / "1", batch(0), batch(1), batch(2)),
        2: stored(tmp_path / "2", *others),
    }
    assert replicas.differences(folders, "t-0")


# --- trees ----------------------------------------------------------------------------------------------


def elected(at: str, partition_id: int, epoch: int, what: str = "Elected") -> str:
    return (
        f"{at} INFO [GroupCoordinator 3]: {what} as the group coordinator for partition {partition_id} in epoch {epoch}"
        " (GroupCoordinator)\n"
    )


def test_a_kafka_coordinates_until_it_resigns_or_begins_anew_and_after_midnight_too() -> None:
    log = (
        "23:59:58.000 INFO starting (KafkaServer)\n"
        + elected("23:59:59.000", 1, 4)
        + "23:59:59.500 INFO [GroupCoordinator 3]: Starting up. (GroupCoordinator)\n"
        + elected("23:59:59.750", 2, 1)
        + elected("00:00:01.000", 1, 6)  # again: the leader's epoch is another
        + elected("00:00:02.500", 1, 7, "Resigned")
        + elected("00:00:02.600", 4, 7, "Resigned")
        + "00:00:03.000 INFO starting (KafkaServer)\n"
        + elected("00:00:04.000", 2, 3)
        + elected("00:00:04.000", 3, 3)
        + "00:00:05.000 INFO [GroupCoordinator 3]: Shutting down. (GroupCoordinator)\n"
        + elected("00:00:06.000", 2, 3)
    )
    now_ns = 100 * 10**9
    found = [*coordinators.terms(log, datetime(2026, 1, 2, 0, 0, 10), now_ns)]
    assert [(one.partition_id, one.began / 1e9 - 90, one.ended / 1e9 - 90) for one in found] == [
        (1, -1, 2.5),
        (2, -0.25, 3),
        (2, 4, 5),
        (3, 4, 5),
        (2, 6, 10),
    ]
    assert found[-1] == Term(2, 96 * 10**9, now_ns)


def node(value: object) -> Node:
    return Node(json.dumps(value).encode(), False, 0)


STATE = {"version": 1, "leader": 1, "leader_epoch": 4, "isr": [1, 2], "controller_epoch": 3}
GOOD = {
    "/brokers/ids/1": node({}),
    "/brokers/ids/2": node({}),
    "/controller": node({"brokerid": 1}),
    "/controller_epoch": node(3),
    "/brokers/topics/t": node({"partitions": {"0": [1, 2]}, "adding_replicas": {}, "removing_replicas": {}}),
    "/brokers/topics/t/partitions/0/state": node(STATE),
    "/config/topics/t": node({}),
}


def test_a_tree_at_rest_has_no_problem() -> None:
    assert tree.problems(GOOD) == [] and tree.unrest(GOOD, [1, 2]) == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"/controller": node({"brokerid": 7})},
        {"/brokers/topics/t/partitions/0/state": node(STATE | {"leader": 3, "isr": [1, 2, 3]})},
        {"/brokers/topics/t/partitions/0/state": node(STATE | {"leader": -1})},
        {"/brokers/topics/t/partitions/0/state": node(STATE | {"isr": [1, 1]})},
        {"/brokers/topics/t/partitions/0/state": node(STATE | {"controller_epoch": 4})},
        {"/brokers/topics/t/partitions/0/state": node(STATE | {"leader_recovery_state": 1})},
        {"/brokers/topics/t/partitions/1/state": node(STATE)},
        {"/brokers/topics/t": node({"partitions": {"0": [1, 2]}, "adding_replicas": {"0": [3]}})},
        {"/brokers/topics/t": node({"partitions": {"0": [1, 2], "1": [1, 2]}})},
        {"/isr_change_notification/isr_change_0000000000": node({})},
        {"/brokers/topics/u": node({"partitions": {}})},
    ],
)
def test_a_tree_that_makes_no_sense_has_a_problem(changed: dict[str, Node]) -> None:
    assert tree.problems(GOOD | changed)
