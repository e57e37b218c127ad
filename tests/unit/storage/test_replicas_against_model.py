"""A leader's high watermark, its news and its acks, against the model of `tests/kit/models/replica.py`."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker._core.log.partition_table import PartitionTable
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.replication.acks import ReplicationWaits
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import TOPIC_PARTITION, LogHome, batch_of
from tests.kit.logs.quick_disk import memory_directory
from tests.kit.models.replica import Leader

OTHERS = (1, 2, 3)
nodes = st.sets(st.sampled_from(OTHERS))
LAG_MS = 250


class ReplicasMachine(RuleBasedStateMachine):
    """A leader with followers, driven by random fetches, appends, ISR changes and epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=memory_directory())
        self.acked: list[tuple[ErrorCode, int]] = []
        self.epoch = 0

    def teardown(self) -> None:
        self.table.remove(self.log.state)
        self.home.abandon()
        self.folder.cleanup()

    @initialize(min_in_sync=st.integers(1, 4), in_sync=nodes)
    def begin(self, min_in_sync: int, in_sync: set[int]) -> None:
        options = LogOptions(min_in_sync=min_in_sync, replica_lag_ms=LAG_MS)
        self.home = LogHome(Path(self.folder.name), options=options)
        self.log = self.home.create()
        self.table = PartitionTable(True)
        self.table.add(self.log.state)
        self.waits = ReplicationWaits(self.home.clock)
        self.model = Leader(min_in_sync, LAG_MS)
        self.told: set[int] = set()
        self.lead(set(OTHERS), in_sync, is_new=True)

    def lead(self, replicas: Collection[int], in_sync: Collection[int], *, is_new: bool) -> None:
        self.set_clock()
        self.epoch += 1
        members = [node for node in in_sync if node in replicas]
        assert self.log.lead(self.epoch, dict.fromkeys(replicas, -1), [0, *members]) == self.model.end
        self.model.lead(replicas, members, is_new=is_new)

    def set_clock(self) -> None:
        self.home.clock.now_ms = self.model.now_ms
        self.home.directory.set_clock_ms(self.model.now_ms)

    @rule(replicas=nodes, in_sync=nodes)
    def lead_on(self, replicas: set[int], in_sync: set[int]) -> None:
        self.lead(replicas, in_sync, is_new=False)

    @rule(replicas=nodes, in_sync=nodes)
    def follow_and_lead_again(self, replicas: set[int], in_sync: set[int]) -> None:
        self.epoch += 1
        self.log.follow(self.epoch)
        self.waits.step()
        assert self.acked == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)] * len(self.model.waiting)
        self.acked.clear()
        self.model.waiting.clear()
        self.lead(replicas, in_sync, is_new=True)

    @rule(passed_ms=st.integers(1, 2 * LAG_MS))
    def wait(self, passed_ms: int) -> None:
        self.model.now_ms += passed_ms
        self.set_clock()

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        taken = self.model.append(count)
        try:
            appended = self.log.append(batch_of([b"x"] * count), wait=False)
        except ProtocolError as refused:
            assert refused.code is ErrorCode.NOT_ENOUGH_REPLICAS
            assert not taken
            return
        assert taken
        assert appended.last_offset == self.model.end - 1
        self.waits.add(self.log, appended, None, lambda error, base: self.acked.append((error, base)))
        self.bases = {**getattr(self, "bases", {}), appended.base_offset: appended.last_offset}

    @rule(node=st.sampled_from(OTHERS), behind=st.integers(0, 4))
    def fetch(self, node: int, behind: int) -> None:
        offset = max(0, self.model.end - behind)
        code = self.log.state.follower_fetched(node, -1, offset, 0, 0)
        if node not in self.model.replicas:
            assert code == ErrorCode.UNKNOWN_LEADER_EPOCH
            return
        assert code == 0
        self.model.fetch(node, offset)
        self.model.now_ms += 100  # so that each follower may be told of again
        self.set_clock()
        news = self.table.news
        assert news is not None
        taken = news.take()
        if self.model.may_be_let_in(node):
            assert taken == [tuple(TOPIC_PARTITION)]
        else:
            assert taken == []

    @rule(committed=nodes, more=nodes)
    def change_isr(self, committed: set[int], more: set[int]) -> None:
        self.model.committed = committed & self.model.replicas
        self.model.maximal = (committed | more) & self.model.replicas
        self.log.state.set_in_sync([0, *committed], [0, *committed, *more])
        self.model.settle()

    @rule(live=nodes)
    def change_live(self, live: set[int]) -> None:
        self.model.live = live & self.model.replicas
        self.log.state.set_live(live)
        self.model.settle()

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def high_watermark_and_acks_are_the_models(self) -> None:
        assert self.log.state.high_watermark == self.model.high_watermark
        assert self.log.state.last_stable_offset == self.model.high_watermark
        known = {each.node_id: (each.log_end_offset, each.last_caught_up_ms) for each in self.log.state.followers()}
        assert known == {node: (each.end, each.caught_up_ms) for node, each in self.model.followers.items()}
        self.waits.step()
        wanted = self.model.take_acks()
        short = len(self.model.maximal) + 1 < self.model.needed
        assert [error for error, _ in self.acked] == [
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if short else ErrorCode.NONE
        ] * len(wanted)
        if not short:
            assert [self.bases[base] for _, base in self.acked] == wanted
        self.acked.clear()


TestReplicas = ReplicasMachine.TestCase
TestReplicas.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
