"""What /ready and the metrics say of a member: registered, told by the controller, nothing under-replicated."""

from __future__ import annotations

import os
import signal
import threading
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kbroker.coordination import paths
from kbroker.coordination.store import StoreUnavailable
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.metrics.definitions import MEMBER_METRICS
from kbroker.model import TopicPartition
from kbroker.replication.partitions import ReplicatedPartitions
from tests.kit.brokers.process import free_port
from tests.kit.brokers.whole import WholeBroker
from tests.kit.cluster.members import WAIT_S, Members, await_that
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.kit.proxies.dropping import DroppingProxy


def asked(broker: WholeBroker, what: str) -> tuple[int, str]:
    """Ask a broker's HTTP port; return the status and the text."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.broker._http.address[1]}/{what}") as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics(broker: WholeBroker) -> dict[str, float]:
    lines = asked(broker, "metrics")[1].splitlines()
    values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.partition("{")[0]: float(value) for name, value in values}


def test_a_member_serves_on_while_its_zookeeper_is_away_and_registers_in_the_next_one(
    tmp_path: Path, own_zookeeper: ZooKeeperProcess
) -> None:
    members = Members(own_zookeeper, tmp_path)
    broker = members.start(1, zookeeper__session__timeout__ms=2_000, kbroker__http__address="127.0.0.1:0")
    members.settle(1)
    await_that(lambda: members.cluster(1).is_controller)
    members.create("t", 1, 1)
    epoch = members.cluster(1).broker_epoch
    assert metrics(broker)["kbroker_zookeeper_connected"] == 1
    own_zookeeper.kill()
    await_that(lambda: metrics(broker)["kbroker_zookeeper_connected"] == 0)
    ended = threading.Event()
    broker.broker._home.session.session.on_end(ended.set)
    broker.append("t", 0, [b"a"])
    own_zookeeper.start()
    await_that(lambda: not ended.is_set() or members.cluster(1).broker_epoch > epoch)
    await_that(lambda: members.cluster(1).is_controller)
    broker.append("t", 0, [b"b"])
    members.close()


def test_a_member_without_a_session_is_not_ready(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of before says that it is registered, and nobody can tell it otherwise."""
    one = members.start(1, kbroker__http__address="127.0.0.1:0")
    members.settle(1)
    await_that(lambda: asked(one, "ready") == (200, "ok\n"))
    assert metrics(one)["kbroker_registered"] == 1

    def away() -> ZooKeeperStore:
        raise StoreUnavailable("ZooKeeper is away")

    with monkeypatch.context() as patched:
        patched.setattr(one.broker._home._membership, "_open_session", away)
        members.server.expire(one.broker._home.session.session)
        await_that(lambda: asked(one, "ready")[0] == 503)
        assert "this broker is not registered in ZooKeeper" in asked(one, "ready")[1]
        assert metrics(one)["kbroker_registered"] == 0
    await_that(lambda: asked(one, "ready") == (200, "ok\n"))
    assert metrics(one)["kbroker_registered"] == metrics(one)["kbroker_zookeeper_connected"] == 1


def test_a_member_that_has_not_heard_of_zookeeper_for_a_sessions_time_is_not_ready(members: Members) -> None:
    """Nobody can tell the member whether its session has ended. It serves all the same."""
    one = members.start(1, zookeeper__session__timeout__ms=2_000, kbroker__http__address="127.0.0.1:0")
    members.settle(1)
    await_that(lambda: members.cluster(1).is_controller)
    assert members.create("t", 1, 1).error_code == 0
    await_that(lambda: asked(one, "ready") == (200, "ok\n"))
    os.kill(members.server.pid, signal.SIGSTOP)
    try:
        await_that(lambda: asked(one, "ready")[0] == 503)
        status, said = asked(one, "ready")
        assert status == 503
        assert "has heard nothing of ZooKeeper for longer than zookeeper.session.timeout.ms=2000" in said
        assert metrics(one)["kbroker_registered"] == metrics(one)["kbroker_zookeeper_connected"] == 0
        one.append("t", 0, [b"a"])
    finally:
        os.kill(members.server.pid, signal.SIGCONT)
    await_that(lambda: asked(one, "ready") == (200, "ok\n"))
    assert metrics(one)["kbroker_registered"] == metrics(one)["kbroker_zookeeper_connected"] == 1
    await_that(lambda: members.cluster(1).is_controller)
    assert members.create("u", 1, 1).error_code == 0


def test_a_member_whose_session_has_ended_while_zookeeper_was_away_registers_anew(
    tmp_path: Path, own_zookeeper: ZooKeeperProcess
) -> None:
    """ZooKeeper starts again with the same data, and has given the session up before the member reaches it."""
    with DroppingProxy(own_zookeeper.port) as proxy, closing(Members(own_zookeeper, tmp_path)) as members:
        way = members.address.replace(f":{own_zookeeper.port}", f":{proxy.port}")
        one = members.start(
            1,
            zookeeper__connect=way,
            zookeeper__session__timeout__ms=2_000,
            kbroker__http__address="127.0.0.1:0",
        )
        members.settle(1)
        await_that(lambda: members.cluster(1).is_controller)
        assert members.create("t", 1, 1).error_code == 0
        one.append("t", 0, [b"a"])
        epoch = members.store.get(paths.broker_path(1))[1].creation_id
        assert members.cluster(1).broker_epoch == epoch
        proxy.target_port = free_port()
        own_zookeeper.kill()
        await_that(lambda: asked(one, "ready")[0] == 503)
        assert metrics(one)["kbroker_registered"] == 0
        own_zookeeper.start()
        await_that(lambda: members.store.exists(paths.broker_path(1)) is None)
        assert members.store.exists(paths.CONTROLLER) is None
        one.append("t", 0, [b"b"])
        proxy.target_port = own_zookeeper.port
        await_that(lambda: asked(one, "ready") == (200, "ok\n"))
        assert members.store.get(paths.broker_path(1))[1].creation_id == members.cluster(1).broker_epoch > epoch
        assert metrics(one)["kbroker_registered"] == 1
        await_that(lambda: members.cluster(1).is_controller)
        one.append("t", 0, [b"c"])
        assert one.log_of("t", 0).log_end_offset == 3
        assert members.create("u", 1, 1).error_code == 0
        one.append("u", 0, [b"a"])


@pytest.mark.parametrize("others", [(2,), ()], ids=["another controller", "the cluster starts"])
def test_a_member_is_not_ready_before_its_roles_have_come(
    members: Members, monkeypatch: pytest.MonkeyPatch, others: tuple[int, ...]
) -> None:
    """The metadata comes first: a controller that is there tells all of it, a new one only who is in the cluster."""
    members.start_all(*others, 1)
    assert members.create("t", 3, len(others) + 1).error_code == 0
    await_that(lambda: all(members.leader_of("t", each) is not None for each in range(3)))
    members.stop(1)
    members.settle(*others)
    may_come, take_roles = threading.Event(), ReplicatedPartitions.leader_and_isr

    def wait_before(partitions: ReplicatedPartitions, request: Any, version: int) -> Any:
        if partitions._node_id == 1:
            assert may_come.wait(WAIT_S)
        return take_roles(partitions, request, version)

    monkeypatch.setattr(ReplicatedPartitions, "leader_and_isr", wait_before)
    try:
        one = members.start(1, kbroker__http__address="127.0.0.1:0")
        assert one.broker.is_ready and 1 in members.cluster(1).image.brokers
        status, said = asked(one, "ready")
        assert (status, said.strip()) == (
            503,
            "this broker neither leads nor follows 3 of its partitions: "
            "their roles have not come, or could not be taken",
        )
    finally:
        may_come.set()
    await_that(lambda: asked(one, "ready") == (200, "ok\n"))


def test_a_member_that_registers_anew_is_not_ready_before_it_is_told_of_this_registration(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it has the metadata and the roles of before, in which it is alive and everything is in sync."""
    members.start_all(2)
    one = members.start(1, kbroker__http__address="127.0.0.1:0")
    members.settle(1, 2)
    assert members.create("t", 2, 2).error_code == 0
    await_that(lambda: asked(one, "ready") == (200, "ok\n"))
    first_epoch = members.cluster(1).broker_epoch
    metadata_may_come, roles_may_come = threading.Event(), threading.Event()
    update_metadata, take_roles = ReplicatedPartitions.update_metadata, ReplicatedPartitions.leader_and_isr

    def update_late(partitions: ReplicatedPartitions, request: Any) -> Any:
        if partitions._node_id == 1 and request.broker_epoch > first_epoch:
            assert metadata_may_come.wait(WAIT_S)
        return update_metadata(partitions, request)

    def take_late(partitions: ReplicatedPartitions, request: Any, version: int) -> Any:
        if partitions._node_id == 1 and request.broker_epoch > first_epoch:
            assert roles_may_come.wait(WAIT_S)
        return take_roles(partitions, request, version)

    monkeypatch.setattr(ReplicatedPartitions, "update_metadata", update_late)
    monkeypatch.setattr(ReplicatedPartitions, "leader_and_isr", take_late)
    try:
        members.server.expire(one.broker._home.session.session)
        await_that(lambda: members.cluster(1).broker_epoch > first_epoch)
        await_that(lambda: "not registered" not in asked(one, "ready")[1])
        assert asked(one, "ready") == (503, "no controller has told this broker yet that it is in the cluster\n")
        assert metrics(one)["kbroker_registered"] == 0
        metadata_may_come.set()
        await_that(lambda: metrics(one)["kbroker_registered"] == 1)
        status, said = asked(one, "ready")
        assert status == 503 and "this broker neither leads nor follows 2 of its partitions" in said
    finally:
        metadata_may_come.set()
        roles_may_come.set()
    await_that(lambda: asked(one, "ready") == (200, "ok\n"))


def test_a_member_with_a_partition_that_it_cannot_use_is_not_ready(members: Members) -> None:
    """The ISR does not say so: it is never empty."""
    one = members.start(1, kbroker__http__address="127.0.0.1:0")
    members.settle(1)
    await_that(lambda: members.cluster(1).is_controller)
    assert members.create("t", 2, 1).error_code == 0
    await_that(lambda: asked(one, "ready") == (200, "ok\n"))
    one.broker._home.partitions.directory_failed([TopicPartition("t", 1)])
    status, said = asked(one, "ready")
    assert status == 503 and "neither leads nor follows 1 of its partitions" in said


def test_ready_is_said_when_the_controller_has_told_and_nothing_is_under_replicated(members: Members) -> None:
    def status(broker: WholeBroker) -> int:
        return asked(broker, "ready")[0]

    one = members.start(1, kbroker__http__address="127.0.0.1:0")
    members.start(2)
    members.settle(1, 2)
    await_that(lambda: any(members.cluster(each).is_controller for each in (1, 2)))
    members.create("t", 4, 2)
    await_that(lambda: status(one) == 200)

    assert metrics(one)["kbroker_under_replicated_partitions"] == 0
    assert metrics(one)["kbroker_leader_partitions"] == 2
    assert MEMBER_METRICS - metrics(one).keys() <= {"kbroker_replica_lag"}
    members.stop(2)
    await_that(lambda: status(one) == 503)
    await_that(lambda: metrics(one)["kbroker_under_replicated_partitions"] == 4)
    assert metrics(one)["kbroker_under_min_isr_partitions"] == metrics(one)["kbroker_offline_partitions"] == 0
    assert "4 of the partitions here have replicas that are not in sync" in asked(one, "ready")[1]
    two = members.start(2, kbroker__http__address="127.0.0.1:0")
    await_that(lambda: status(one) == 200)
    await_that(lambda: status(two) == 200)  # it follows, and was told its roles before it was in sync
