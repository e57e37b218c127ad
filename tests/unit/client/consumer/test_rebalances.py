"""Members that come, go and die while records flow: all is read, by one at a time, and no commit goes back."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable

import pytest

from kbroker.client.consumer.consumer import Consumer
from kbroker.client.consumer.holdings import RebalanceListener
from kbroker.client.errors import ClientError, CommitFailed
from kbroker.model import TopicPartition
from tests.unit.client.consumer.conftest import Heard, MakeMembers, Members

PARTITIONS, SECONDS = 6, 60.0


class Owners:
    """Who has each partition now, as listeners tell; `twice` are those that somebody got while another had them."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.by_partition: dict[TopicPartition, object] = {}
        self.twice: list[TopicPartition] = []
        self.seen: dict[int, set[int]] = defaultdict(set)
        self.strangers: list[TopicPartition] = []  # records came of what was not theirs


class Worker(threading.Thread, RebalanceListener):
    """Polls in its own thread until it is stopped or killed."""

    def __init__(self, members: Members, owners: Owners, *, auto: bool, strategy: str):
        super().__init__(daemon=True)
        self.owners = owners
        self.auto = auto
        self.stopping = self.killed = False
        self.failure: BaseException | None = None
        self.consumer: Consumer = members.consumer(
            enable_auto_commit=auto,
            auto_commit_interval_ms=20,
            max_poll_records=50,
            **(
                {"group_protocol": "consumer", "group_remote_assignor": strategy}
                if strategy == "uniform"
                else {"partition_assignment_strategy": strategy, "session_timeout_ms": 6000}
            ),
        )
        members.alive.remove(self.consumer)
        self.consumer.subscribe(members.topic, self)

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        with self.owners.lock:
            if self.killed:
                return  # in the midst of its last poll
            self.owners.twice += [each for each in partitions if self.owners.by_partition.get(each, self) is not self]
            self.owners.by_partition.update(dict.fromkeys(partitions, self))

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        with self.owners.lock:
            for partition in partitions:
                if self.owners.by_partition.get(partition) is self:
                    del self.owners.by_partition[partition]

    def run(self) -> None:
        try:
            while not self.stopping:
                records = self.consumer.poll(0.05)
                with self.owners.lock:
                    if self.killed:
                        return
                    for record in records:
                        self.owners.seen[record.partition].add(record.offset)
                        self.owners.lock.notify_all()
                        partition = TopicPartition(record.topic, record.partition)
                        if self.owners.by_partition.get(partition) is not self:
                            self.owners.strangers.append(partition)
                if records and not self.auto:
                    self.commit()
            self.consumer.close()
        except BaseException as error:
            if not self.killed:
                self.failure = error
                with self.owners.lock:
                    self.owners.lock.notify_all()

    def commit(self) -> None:
        try:
            self.consumer.commit()
        except CommitFailed:
            pass

    def kill(self) -> None:
        """Without a word to anybody."""
        with self.owners.lock:
            self.killed = True
            for partition in [each for each, owner in self.owners.by_partition.items() if owner is self]:
                del self.owners.by_partition[partition]
        self.consumer._thread.stop()


@pytest.mark.parametrize(
    ("strategy", "auto"),
    [
        ("range", True),
        ("uniform", False),
        pytest.param("cooperative-sticky", False, marks=pytest.mark.slow),
        pytest.param("uniform", True, marks=pytest.mark.slow),
        pytest.param("range", False, marks=pytest.mark.slow),
        pytest.param("sticky", True, marks=pytest.mark.slow),
        pytest.param("sticky", False, marks=pytest.mark.slow),
        pytest.param("cooperative-sticky", True, marks=pytest.mark.slow),
    ],
)
def test_all_is_read_by_one_at_a_time_and_no_commit_goes_back(
    members_of: MakeMembers, strategy: str, auto: bool
) -> None:
    chosen = random.Random(f"{strategy} {auto}")
    members, owners = members_of(PARTITIONS), Owners()
    asking = members.consumer(group_id=members.group_id)
    partitions = [TopicPartition(members.topic, n) for n in range(PARTITIONS)]
    last: dict[TopicPartition, int] = {}
    workers: list[Worker] = []
    everyone: list[Worker] = []

    def start() -> None:
        workers.append(Worker(members, owners, auto=auto, strategy=strategy))
        everyone.append(workers[-1])
        workers[-1].start()

    def wait_for(count: int) -> None:
        with owners.lock:
            assert owners.lock.wait_for(
                lambda: sum(map(len, owners.seen.values())) >= count or any(worker.failure for worker in everyone),
                SECONDS,
            )
        assert [worker.failure for worker in everyone if worker.failure] == []

    def check_commits() -> None:
        for partition, found in asking.committed(partitions).items():
            offset = found.offset if found is not None else 0
            assert offset >= last.get(partition, 0)
            last[partition] = offset
            # What is committed was handed out.
            with owners.lock:
                assert owners.seen[partition.partition_id] >= set(range(offset))

    appended = 0
    for turn in range(24):
        for n in range(PARTITIONS):
            members.append(n, [b"%d" % number for number in range(40)])
        appended += 40
        action = chosen.random()
        if len(workers) < 2 or (action < 0.4 and len(workers) < 5):
            start()
        elif action < 0.6:
            workers.pop(chosen.randrange(len(workers))).stopping = True
        elif action < 0.7 and turn < 20:
            workers.pop(chosen.randrange(len(workers))).kill()
        # Some of it, or all that there is.
        wait_for((appended - chosen.randrange(80)) * PARTITIONS)
        check_commits()
    wait_for(appended * PARTITIONS)
    for worker in workers:
        worker.stopping = True
    for worker in everyone:
        worker.join(SECONDS)
        assert worker.failure is None
    check_commits()
    assert all(last[partition] == appended for partition in partitions)
    assert not owners.twice
    assert not owners.strangers


def test_a_paused_partition_stays_so_and_stays_where_it_is_through_cooperative_rebalances(
    members_of: MakeMembers,
) -> None:
    members = members_of(4)
    options = {"partition_assignment_strategy": "cooperative-sticky"}
    first = members.join(**options)
    for partition in range(4):
        members.append(partition, [b"%d" % partition])
    members.poll_until(lambda: len(members.records) == 4)
    for partition in range(4):
        first.pause(members.topic, partition)
        members.append(partition, [b"%d later" % partition])
    second = members.join(**options)
    shares = members.settle(4)
    assert [len(share) for share in shares] == [2, 2]
    members.poll_until(lambda: len(members.records) >= 6)
    assert sorted(members.values()[4:]) == sorted(b"%d later" % n for n in shares[1])
    assert first.paused() == first.assignment()
    for partition in shares[0]:
        assert first.position(members.topic, partition) == 1
        first.resume(members.topic, partition)
    members.poll_until(lambda: len(members.records) >= 8)
    assert len(set(members.values())) == 8
    members.close(second)
    members.settle(4)
    assert first.paused() == []


def test_a_group_rolls_from_eager_to_cooperative(members_of: MakeMembers) -> None:
    """The group rolls as in KIP-429: all learn the new strategy beside the old one, then each forgets the old one."""
    members = members_of(4)
    for strategies in (["range"], ["cooperative-sticky", "range"], ["cooperative-sticky"]):
        older = list(members.alive)
        for _ in range(2):
            members.join(partition_assignment_strategy=strategies)
            members.settle(4) if len(members.alive) < 5 else None
            if older:
                members.close(older.pop(0))
            members.settle(4)
        for partition in range(4):
            members.append(partition, [b"%d %d" % (partition, len(strategies))])
        count = len(members.records) + 4
        members.poll_until(lambda count=count: len(members.records) == count)
    with pytest.raises(ClientError, match="INCONSISTENT_GROUP_PROTOCOL"):
        members.join(partition_assignment_strategy="range").poll(SECONDS)


@pytest.mark.parametrize("leave", [Consumer.unsubscribe, Consumer.close])
def test_who_leaves_does_not_hear_why_it_was_not_let_in(
    members_of: MakeMembers, leave: Callable[[Consumer], None]
) -> None:
    members = members_of(1)
    first = members.join(partition_assignment_strategy="range")
    members.settle(1)
    refused = members.join(partition_assignment_strategy="sticky")
    members.alive.remove(refused)
    steps = refused._group.steps  # type: ignore[union-attr]
    members.poll_until(lambda: steps.are_waiting)
    leave(refused)
    assert steps.begin_next() is None
    refused.close()
    assert members.alive == [first]


def test_a_static_member_that_comes_back_in_time_moves_nothing(members_of: MakeMembers) -> None:
    members = members_of(4)
    members.join(group_instance_id="a")
    members.join(group_instance_id="b")
    shares = members.settle(4)
    generation = members.alive[1].group_metadata().generation_id
    members.close(members.alive[0])
    heard = Heard()
    back = members.join(heard, group_instance_id="a")
    members.poll_until(lambda: back.assignment())
    assert sorted(n for _, n in back.assignment()) == shares[0]
    assert members.alive[0].group_metadata().generation_id == generation
    # One more of the same name: the one that was there is told so.
    members.join(group_instance_id="a")
    with pytest.raises(ClientError, match="close this one"):
        members.poll_until(lambda: False)
    assert heard.events == [("assigned", shares[0]), ("lost", shares[0])]


def test_a_rebalance_can_be_enforced(members_of: MakeMembers) -> None:
    members = members_of(2)
    members.join()
    members.settle(2)
    before = members.alive[0].group_metadata().generation_id
    members.alive[0].enforce_rebalance()
    members.poll_until(lambda: members.alive[0].group_metadata().generation_id > before)
    members.settle(2)
