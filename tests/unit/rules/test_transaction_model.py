"""A transactional id against the slow model: every request from everybody, and a log that refuses."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.transaction import Transaction, Transit
from tests.kit.models.transactional_id import LAST_CLIENT_EPOCH, ModelId

FIRST_ID = 7
PARTITIONS = st.sets(st.builds(TopicPartition, st.just("t"), st.integers(0, 3)), max_size=2)
OFFSETS = st.sampled_from([0, 0, 0, 0, -1, -1, -2, 1])
"""How far the epoch that somebody comes with is from the one that he should have."""


def plain(outcome: Transit | ErrorCode) -> str:
    return str(outcome.state) if isinstance(outcome, Transit) else outcome.name


class TransactionAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.new_id = FIRST_ID

    @initialize(epoch=st.sampled_from([-1, 0, 32764, 32765, 32766]))
    def begin(self, epoch: int) -> None:
        self.real = Transaction("id", FIRST_ID, 1000, 0, producer_epoch=epoch)
        self.model = ModelId(FIRST_ID)
        self.model.owner = (FIRST_ID, epoch)

    def next_id(self) -> int:
        self.new_id += 1
        return self.new_id

    def who(self, of: str, offset: int) -> tuple[int, int]:
        """Somebody: the owner, or who he was before, with an epoch that is right or nearly so."""
        owner = self.model.owner
        base = self.model.asked_with or owner if of == "before" else owner
        producer_id = {"owner": owner[0], "before": base[0], "first": FIRST_ID, "stranger": 999}[of]
        return producer_id, min(max(base[1] + offset, 0), LAST_CLIENT_EPOCH)

    PEOPLE = st.sampled_from(["owner"] * 5 + ["before", "before", "first", "stranger"])

    @rule(of=st.none() | PEOPLE, offset=OFFSETS)
    def init(self, of: str | None, offset: int) -> None:
        expected = None if of is None else self.who(of, offset)
        new_id = self.next_id()
        needed = self.real.needs_producer_id(expected)
        said = self.real.init_producer_id(1000, expected, new_id if needed else None, self.now)
        assert plain(said) == self.model.init(expected, new_id)

    @rule(of=PEOPLE, offset=OFFSETS, partitions=PARTITIONS)
    def add(self, of: str, offset: int, partitions: set[TopicPartition]) -> None:
        who = self.who(of, offset)
        assert plain(self.real.add_partitions(*who, partitions, self.now)) == self.model.add(who, partitions)

    @rule(of=PEOPLE, offset=OFFSETS, commit=st.booleans())
    def end(self, of: str, offset: int, commit: bool) -> None:
        who = self.who(of, offset)
        assert plain(self.real.end(*who, commit, self.now)) == self.model.end(who, commit)

    @rule(of=PEOPLE, offset=OFFSETS, commit=st.booleans())
    def end_with_bump(self, of: str, offset: int, commit: bool) -> None:
        who, new_id = self.who(of, offset), self.next_id()
        said = self.real.end_with_bump(*who, commit, new_id if self.real.is_used_up else None, self.now)
        assert plain(said) == self.model.bump(who, commit, new_id)

    @precondition(lambda self: self.real.state == "Ongoing" and self.real.pending is None)
    @rule()
    def time_out(self) -> None:
        new_id = self.next_id()
        said = self.real.fence(new_id if self.real.is_used_up else None, self.now)
        assert plain(said) == self.model.fence(new_id)

    @precondition(lambda self: self.real.is_prepared and self.real.pending is None)
    @rule()
    def complete(self) -> None:
        assert plain(self.real.complete(self.now)) == self.model.complete()

    @precondition(lambda self: self.real.pending is not None)
    @rule(ok=st.sampled_from([True, True, True, False]))
    def log(self, ok: bool) -> None:
        transit = self.real.pending
        assert transit is not None
        self.now += 1
        (self.real.stored if ok else self.real.not_stored)(transit)
        self.model.stored(ok)

    @invariant()
    def looks_the_same(self) -> None:
        if not hasattr(self, "real"):
            return
        real, model = self.real, self.model
        shown: dict[str, Any] = {
            "owner": (real.producer_id, real.producer_epoch),
            "state": str(real.state),
            "partitions": set(real.partitions),
            "pending": real.pending is not None,
            "next": real.next_producer_id,
        }
        assert shown == {
            "owner": model.owner,
            "state": model.state,
            "partitions": model.partitions,
            "pending": model.goal is not None,
            "next": model.next_id,
        }
        assert real.producer_epoch <= 32767


TestTransactionAgainstModel = TransactionAgainstModel.TestCase
TestTransactionAgainstModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
