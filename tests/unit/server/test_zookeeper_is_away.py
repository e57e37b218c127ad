"""What clients of a member see while its ZooKeeper is away, and afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker.coordination import paths
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.whole import WholeBroker
from tests.kit.clients.group_load import FIND_VERSION, Member, rebalance
from tests.kit.clients.wire import WireClient
from tests.kit.cluster.members import WAIT_S, Members, await_that
from tests.kit.kafka.zookeeper import ZooKeeperProcess


def kept(broker: WholeBroker, name: str, value: str) -> Any:
    """Set how long a topic keeps its records; return the result. It has a connection of its own."""
    R = M.IncrementalAlterConfigsRequest
    config = R.AlterableConfig(name="retention.ms", config_operation=0, value=value)
    changed = R.AlterConfigsResource(resource_type=2, resource_name=name, configs=[config])
    with WireClient("127.0.0.1", broker.port, timeout_s=WAIT_S) as client:
        return client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, R(resources=[changed])).responses[0]


def test_while_zookeeper_is_away_changes_are_refused_or_wait_and_all_else_goes_on(
    tmp_path: Path, own_zookeeper: ZooKeeperProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """AlterConfigs tells it; new topics wait for the controller, which makes them afterwards. In Kafka both wait."""
    members = Members(own_zookeeper, tmp_path)
    broker = members.start(1, zookeeper__session__timeout__ms=2_000)
    members.settle(1)
    await_that(lambda: members.cluster(1).is_controller)
    members.create("t", 1, 1)
    own_zookeeper.kill()
    await_that(lambda: "is lost" in caplog.text)
    C = M.CreateTopicsRequest
    wanted = C.CreatableTopic(name="late", num_partitions=1, replication_factor=1)
    with WireClient("127.0.0.1", broker.port, timeout_s=WAIT_S) as creator:
        asked = creator.send(ApiKey.CREATE_TOPICS, 5, C(topics=[wanted], timeout_ms=30_000))
        began = time.monotonic()
        for _ in range(3):
            refused = kept(broker, "t", "77000")
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "ZooKeeper" in refused.error_message
            broker.append("t", 0, [b"a"])
        assert time.monotonic() - began < 3 * 2.0 + 4.0, "each waits for zookeeper.session.timeout.ms"
        assert caplog.text.count("the controller waits for the store") == 1
        assert caplog.text.count("is lost") == 2, "the broker's session, and the one that looks on"
        own_zookeeper.start()
        assert creator.receive(ApiKey.CREATE_TOPICS, 5, asked).topics[0].error_code == ErrorCode.NONE
    await_that(lambda: kept(broker, "t", "78000").error_code == ErrorCode.NONE)
    await_that(lambda: broker.log_of("t", 0).options.retention_ms == 78_000)
    await_that(lambda: members.cluster(1).is_controller)
    assert members.create("next", 1, 1).error_code == ErrorCode.NONE
    for topic in ("t", "late", "next"):
        broker.append(topic, 0, [b"b"])
    members.close()


SESSION_S = 2.0


def roles(members: Members) -> dict[tuple[int, TopicPartition], tuple[int, int, tuple[int, ...]]]:
    """Return the leader, its epoch and the ISR as each member was told, by member and partition."""
    return {
        (node_id, at): (hosted.leader, hosted.leader_epoch, hosted.isr)
        for node_id, broker in members.running.items()
        for at, hosted in broker.broker._home.partitions.all().items()
    }


def coordinator_of(members: Members, group: str) -> WholeBroker | None:
    """Return the broker that coordinates a group; None if it is not there yet."""
    asked = M.FindCoordinatorRequest(key=group, key_type=0)
    node_id = members.running[1].call(ApiKey.FIND_COORDINATOR, FIND_VERSION, asked).node_id
    return members.running.get(node_id)


def commit(member: Member, offset: int) -> int:
    """Commit an offset of t-0, and return the error code."""
    C = M.OffsetCommitRequest
    place = C.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = C(
        group_id=member.group,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        topics=[C.OffsetCommitRequestTopic(name="t", partitions=[place])],
    )
    answer = member.client.call(ApiKey.OFFSET_COMMIT, 7, request)
    code: int = answer.topics[0].partitions[0].error_code
    return code


def committed(members: Members, group: str) -> int | None:
    """Return the offset of t-0 that the coordinator tells, -1 if there is none; None if it does not serve."""
    coordinator = coordinator_of(members, group)
    if coordinator is None:
        return None
    F = M.OffsetFetchRequest
    asked = F(group_id=group, topics=[F.OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    answer = coordinator.call(ApiKey.OFFSET_FETCH, 5, asked)
    return None if answer.error_code else answer.topics[0].partitions[0].committed_offset


@contextmanager
def away(server: ZooKeeperProcess) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


def test_three_members_acknowledge_on_while_zookeeper_is_away(
    tmp_path: Path, own_zookeeper: ZooKeeperProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """ZooKeeper is away for longer than two session timeouts. Nobody is elected meanwhile, and nobody leaves an ISR."""
    with closing(Members(own_zookeeper, tmp_path)) as members:
        for node_id in (1, 2, 3):
            members.start(node_id, zookeeper__session__timeout__ms=int(SESSION_S * 1000))
        members.settle(1, 2, 3)
        await_that(lambda: any(members.cluster(each).is_controller for each in (1, 2, 3)))
        assert members.create("t", 3, 3, min__insync__replicas="2").error_code == ErrorCode.NONE
        await_that(lambda: all(members.leader_of("t", at) is not None for at in range(3)))
        await_that(lambda: committed(members, "g") == -1)
        for at in range(2):
            await_that(lambda at=at: members.leader_of("__consumer_offsets", at) is not None)
        coordinator = coordinator_of(members, "g")
        assert coordinator is not None

        with WireClient("127.0.0.1", coordinator.port, timeout_s=WAIT_S) as client:
            member = Member(client, "g")
            rebalance([member], "t")
            before = roles(members)
            memberships = [broker.broker._home._membership for broker in members.running.values()]
            rounds = 0
            with away(own_zookeeper):
                until = time.monotonic() + 2.5 * SESSION_S
                await_that(lambda: caplog.text.count("is lost") >= 3)
                while time.monotonic() < until:
                    rounds += 1
                    for at in range(3):
                        members.running[before[1, TopicPartition("t", at)][0]].append("t", at, [b"a"])
                    assert commit(member, rounds) == ErrorCode.NONE
                    assert committed(members, "g") == rounds
                    assert client.receive(ApiKey.HEARTBEAT, 2, member.send_heartbeat()).error_code == ErrorCode.NONE
                assert roles(members) == before
                assert not any(each.is_registered for each in memberships)
        await_that(lambda: all(each.is_registered for each in memberships))
        await_that(lambda: sorted(members.store.children(paths.BROKER_IDS)) == ["1", "2", "3"])
        for at in range(3):
            await_that(lambda at=at: members.leader_of("t", at) is not None)
            leader = members.leader_of("t", at)
            assert leader is not None
            leader.append("t", at, [b"b"])
            assert leader.log_of("t", at).log_end_offset == rounds + 1
        await_that(lambda: committed(members, "g") == rounds)
