"""Two looks at the replicas of running brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from kbroker.client.admin.results import PartitionDescription
from kbroker.client.errors import BrokerError, TimedOut
from kbroker.errors import ErrorCode
from kbroker.inspection.log_file import BatchBytes, batch_bytes
from kbroker.inspection.replica_check import Bounds, Difference, NotCompared, Replica
from kbroker.inspection.replica_looks import ReplicaLooks
from kbroker.model import TopicPartition
from tests.unit.inspection.test_replica_check import AT, WHOLE, log


class Log:
    """One replica, which a test changes between the looks."""

    def __init__(self, batches: list[bytes], start: int = 0, high_watermark: int = 4, end: int | None = None):
        self.batches, self.start, self.high_watermark = batches, start, high_watermark
        self.end = high_watermark if end is None else end
        self.error: BrokerError | TimedOut | None = None
        self.breaks = False

    def bounds(self) -> Bounds:
        if self.error is not None:
            raise self.error
        return Bounds(self.start, self.high_watermark)

    def read(self, offset: int) -> Iterator[BatchBytes]:
        if self.breaks:
            raise TimedOut("30 s are over")
        return (each for each in map(batch_bytes, self.batches) if each.last_offset >= offset)


class Three:
    """Three brokers with a partition that the first leads."""

    def __init__(self) -> None:
        self.logs = {node_id: Log(WHOLE) for node_id in (1, 2, 3)}
        self.leader, self.in_sync = 1, (1, 2, 3)
        self.kept: int | None = None
        self.exists = True

    def describe(self, topics: Collection[str]) -> Mapping[TopicPartition, PartitionDescription]:
        assert list(topics) == [AT.topic]
        return {AT: PartitionDescription(0, self.leader, 0, (2, 1, 3), self.in_sync)} if self.exists else {}

    def replica(self, partition: TopicPartition, node_id: int) -> Replica:
        assert partition == AT
        log = self.logs[node_id]
        return Replica(log.bounds(), log.read, log.bounds)

    def log_end(self, partition: TopicPartition, node_id: int) -> int:
        return self.logs[node_id].end

    def kept_from(self, partition: TopicPartition) -> int | None:
        return self.kept

    def look(self, between: Callable[[], None] = lambda: None) -> tuple[list[str], list[str], tuple[int, int, int]]:
        """Return the differences, what was not compared, and the counts, after the looks that are needed."""
        looks = ReplicaLooks(self, lambda topic: False)
        found = [each for at, described in self.describe([AT.topic]).items() for each in looks.first(at, described)]
        if looks.needs_second:
            between()
            found += looks.second()
        told = [str(each) for each in found if isinstance(each, NotCompared)]
        return [str(each) for each in found if isinstance(each, Difference)], told, looks.tally.counts


def test_equal_replicas_need_no_second_look() -> None:
    assert Three().look(lambda: 1 / 0) == ([], [], (1, 0, 0))  # type: ignore[arg-type, return-value]


def test_a_follower_that_has_caught_up_at_the_second_look_is_compared_to_where_the_leader_was() -> None:
    three = Three()
    three.logs[2].high_watermark = 2

    def catch_up() -> None:
        three.logs[2].high_watermark = 4
        three.logs[1].high_watermark = 9

    assert three.look(catch_up) == ([], [], (1, 0, 0))
    three = Three()
    three.logs[2] = Log(log([b"a", b"b"], [b"c"], [b"X"]), high_watermark=2)
    (found,), told, _ = three.look(catch_up)
    assert found.startswith("views-0 on broker 2: offset 3: the batch differs from broker 1's") and not told


def test_a_replica_in_sync_that_lacks_committed_records_at_two_looks_is_a_difference() -> None:
    three = Three()
    three.logs[2] = Log([], high_watermark=0)
    (found,), told, counts = three.look()
    assert found == (
        "views-0 on broker 2: offset 0: it is in sync, and lacks what broker 1 has committed up to offset 4"
    )
    assert not told and counts == (0, 1, 0), "the third replica was compared"


def test_a_follower_that_has_records_and_does_not_know_them_to_be_committed_lacks_none() -> None:
    three = Three()
    three.logs[2].high_watermark = 2
    assert three.look() == (
        [], ["views-0 on broker 2: offsets 2 to 3 were not compared: its high watermark is 2"], (0, 1, 0)
    )  # fmt: skip


def test_a_replica_that_is_not_in_sync_may_lack_records() -> None:
    told = ["views-0 on broker 2: offsets 0 to 3 were not compared: its high watermark is 0"]
    three = Three()
    three.logs[2] = Log([], high_watermark=0)
    three.in_sync = (1, 3)
    assert three.look(lambda: 1 / 0) == ([], told, (0, 1, 0))  # type: ignore[arg-type, return-value]
    three.in_sync = (1, 2, 3)
    assert three.look(lambda: setattr(three, "in_sync", (1, 3))) == ([], told, (0, 1, 0))
    assert three.look(lambda: setattr(three, "leader", -1)) == ([], told, (0, 1, 0))


def test_what_retention_may_have_removed_is_not_compared_and_what_it_leaves_must_be_there() -> None:
    three = Three()
    three.logs[3] = Log(WHOLE[1:], start=2)
    told = ["views-0 on broker 3: offsets 0 to 1 were not compared: its log begins at offset 2"]
    assert three.look() == ([], told, (0, 1, 0)), "nobody can tell"
    three.kept = 2
    assert three.look() == ([], told, (0, 1, 0))
    three.kept = 0
    (found,), _, counts = three.look()
    assert found.startswith("views-0 on broker 3: offset 0: its log begins at offset 2, and ")
    assert counts == (0, 1, 0)
    assert three.look(lambda: setattr(three.logs[1], "start", 2)) == ([], [], (1, 0, 0)), "the leader is as far by now"


def test_a_topic_that_is_deleted_meanwhile_is_passed_over() -> None:
    three = Three()
    three.logs[2].high_watermark = 2
    assert three.look(lambda: setattr(three, "exists", False)) == ([], [], (0, 0, 0))
    three = Three()
    three.logs[3].error = BrokerError("broker 3", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    (found,), _, _ = three.look()
    assert found.startswith("views-0 on broker 3: it cannot be read: broker 3")
    (described,) = three.describe([AT.topic]).values()
    three.exists = False
    looks = ReplicaLooks(three, lambda topic: False)
    assert (list(looks.first(AT, described)), looks.tally.counts) == ([], (0, 0, 0))


def test_a_replica_that_cannot_be_read_is_a_difference_and_the_others_are_compared() -> None:
    three = Three()
    three.logs[1].error = TimedOut("30 s are over")
    assert three.look() == (["views-0 on broker 1: it cannot be read: 30 s are over"], [], (0, 1, 0))
    three = Three()
    three.logs[2].breaks = True
    (found,), told, counts = three.look()
    assert found.startswith("views-0 on broker 2: it cannot be compared with broker 1: 30 s are over")
    assert not told and counts == (0, 1, 0)
    three.logs[3].error = TimedOut("30 s are over")
    assert three.look()[2] == (0, 0, 1)
