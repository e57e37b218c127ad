"""A coordinator on partitions in memory, with a clock that the test moves and nothing that runs by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.groups.consumer_groups import NamedTopics
from kbroker.groups.coordinator import GroupCoordinator
from kbroker.groups.options import GroupOptions
from kbroker.model import TopicPartition
from kbroker.replication.acks import ReplicationWaits
from kbroker.replication.local_replica import LocalReplica
from kbroker.rules.consumer_group_member import Beat, BeatAnswer
from kbroker.rules.group_member import JoinAnswer, Joining, SyncAnswer
from kbroker.rules.group_offsets import CommittedOffset
from kbroker.state_log.deadlines import Deadlines
from kbroker.state_log.replica import Replica
from tests.kit.logs.home import LogHome, ManualClock
from tests.kit.parts.consumer_members import Topics
from tests.kit.parts.replica import MemoryOffsetsTopic, MemoryReplica
from tests.kit.parts.shards import await_loaded


class Home:
    """One broker's coordinator; `restart` makes a new one on the same partitions."""

    def __init__(self, topic: Any = None, clock: ManualClock | None = None, **options: Any):
        self.topic = topic or MemoryOffsetsTopic()
        self.topics: NamedTopics = Topics(t=4)
        self.options = GroupOptions(**options)
        self.clock = clock or ManualClock()
        self.numbers = 0
        self.only_kbrokers = True
        self.start()

    def start(self) -> None:
        self.deadlines = Deadlines("test", self.clock, threaded=False)
        self.coordinator = GroupCoordinator(
            self.topic, self.options, self.clock, self.deadlines, self.unique, lambda: self.topics,
            are_consumer_groups_served=lambda: self.only_kbrokers,
        )  # fmt: skip
        self.coordinator.start()
        await_loaded(self.coordinator.shards)

    def restart(self) -> None:
        self.coordinator.stop()
        self.start()

    def become(self, *, only_kbrokers: bool) -> None:
        """Have a Kafka join the cluster, or the last one leave."""
        self.only_kbrokers = only_kbrokers
        self.coordinator.kind_changed()
        self.deadlines.run_due()

    def unique(self) -> str:
        self.numbers += 1
        return str(self.numbers)

    def advance(self, milliseconds: int) -> None:
        self.clock.now_ms += milliseconds
        self.deadlines.run_due()

    def replica_of(self, group_id: str) -> MemoryReplica:
        replica = self.topic.replica(self.coordinator.shards.partition_for(group_id))
        assert isinstance(replica, MemoryReplica)
        return replica

    def join(self, group_id: str = "g", member_id: str = "", **fields: Any) -> list[JoinAnswer]:
        answers: list[JoinAnswer] = []
        given: dict[str, Any] = {
            "instance_id": None, "client_id": "c", "client_host": "/127.0.0.1", "rebalance_timeout_ms": 60_000,
            "session_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": {"range": subscription("t")},
            "known_member_id_required": False, **fields,
        }  # fmt: skip
        self.coordinator.join(group_id, Joining(member_id=member_id, **given), answers.append)
        return answers

    def sync(
        self, group_id: str, generation: int, member_id: str, assignments: Mapping[str, bytes] | None = None,
        instance_id: str | None = None,
    ) -> list[SyncAnswer]:  # fmt: skip
        answers: list[SyncAnswer] = []
        self.coordinator.sync(
            group_id, generation, member_id, instance_id, None, None, assignments or {}, answers.append
        )
        return answers

    def form(self, group_id: str = "g", **fields: Any) -> JoinAnswer:
        """Make a stable group of one."""
        (joined,) = self.join(group_id, **fields)
        instance_id = fields.get("instance_id")
        (synced,) = self.sync(group_id, joined.generation, joined.member_id, {joined.member_id: b"all"}, instance_id)
        assert synced.error is ErrorCode.NONE
        return joined

    def beat(self, member_id: str, epoch: int, group_id: str = "g", **fields: Any) -> BeatAnswer:
        """Send a ConsumerGroupHeartbeat that is answered at once."""
        answers: list[BeatAnswer] = []
        beat = Beat(member_id, epoch, "c", **{"client_host": "/h", **fields})
        self.coordinator.consumers.heartbeat(group_id, beat, answers.append)
        (answer,) = answers
        return answer

    def enter(self, member_id: str, group_id: str = "g", **fields: Any) -> BeatAnswer:
        """Let a member join a group of the consumer protocol."""
        given = {"rebalance_timeout_ms": 1000, "topics": ("t",), "owned": {}, **fields}
        return self.beat(member_id, 0, group_id, **given)

    def commit(
        self, offsets: Mapping[TopicPartition, int | CommittedOffset], group_id: str = "g", generation: int = -1,
        member_id: str = "", metadata: str = "", instance_id: str | None = None, host: str = "/127.0.0.1",
    ) -> list[tuple[ErrorCode, frozenset[TopicPartition]]]:  # fmt: skip
        answers: list[tuple[ErrorCode, frozenset[TopicPartition]]] = []
        given = {
            partition: committed
            if isinstance(committed, CommittedOffset)
            else CommittedOffset(committed, -1, metadata, self.clock.wall_ms())
            for partition, committed in offsets.items()
        }
        self.coordinator.offsets.commit(
            group_id, generation, member_id, instance_id, given, lambda error, long: answers.append((error, long)),
            client_host=host,
        )  # fmt: skip
        return answers

    def fetch(self, group_id: str = "g", *partitions: TopicPartition, stable: bool = False) -> dict[str, int]:
        error, fetched = self.coordinator.offsets.fetch(group_id, partitions or None, stable)
        assert error is ErrorCode.NONE
        return {str(one.partition): one.offset for one in fetched}


def subscription(*topics: str, version: int = 0) -> bytes:
    """Return a consumer's metadata: the topics that it subscribes to."""
    encoded = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    more = (b"\xff\xff\xff\xff" + b"\0\0\0\0" * (version > 0)) + b"whatever is added one day" * (version > 3)
    return version.to_bytes(2, "big") + len(topics).to_bytes(4, "big") + encoded + more


@pytest.fixture
def make_home() -> Callable[..., Home]:
    return Home


@pytest.fixture
def home() -> Home:
    return Home()


class OneLog:
    """`__consumer_offsets` with one partition, on a real log."""

    def __init__(self, log_home: LogHome):
        self.log_home = log_home
        self.log = log_home.create()

    def reopen(self) -> None:
        self.log = self.log_home.reopen(clean=False)

    def ensure(self) -> None:
        pass

    def partition_count(self) -> int:
        return 1

    def default_partition_count(self) -> int:
        return 1

    def led_partitions(self) -> list[int]:
        return [0]

    def replica(self, partition_id: int) -> Replica:
        return LocalReplica(self.log, ReplicationWaits())
