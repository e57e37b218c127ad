"""Tests of a leader's ISR as values."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.errors import ErrorCode
from kbroker.rules.in_sync import (
    NOBODY,
    Committed,
    InSync,
    Next,
    Proposal,
    answered,
    expand,
    learned,
    led,
    next_to_join,
    out_of_sync,
    shrink,
)

LEADER = 1
LIVE = frozenset({1, 2, 3, 4})


class Seen(NamedTuple):
    node_id: int
    log_end_offset: int
    last_caught_up_ms: int = 0


def test_a_replica_is_let_in_once_it_has_all_that_is_committed() -> None:
    state = led(5, 7, [1, 2])
    behind, there = Seen(3, 99), Seen(3, 100)
    assert next_to_join(state, [behind], 100, 0, LIVE) == NOBODY
    assert next_to_join(state, [there], 100, 0, LIVE) == 3


def test_a_replica_is_let_in_only_from_the_start_of_the_leaders_epoch_on() -> None:
    """KAFKA-7128: the high watermark of a new leader may be behind what is committed."""
    state = led(5, 7, [1, 2])
    assert next_to_join(state, [Seen(3, 150)], 100, 200, LIVE) == NOBODY
    assert next_to_join(state, [Seen(3, 200)], 100, 200, LIVE) == 3


def test_a_dead_replica_and_a_member_are_not_let_in() -> None:
    state = led(5, 7, [1, 2])
    assert next_to_join(state, [Seen(2, 100), Seen(3, 100)], 100, 0, frozenset({1, 2})) == NOBODY


def test_nobody_is_let_in_while_a_proposal_is_open() -> None:
    state = expand(led(5, 7, [1, 2]), 3)
    assert next_to_join(state, [Seen(4, 100)], 100, 0, LIVE) == NOBODY
    assert not out_of_sync(state, [Seen(2, 0)], 100, 10**9, 30_000)


def test_a_replica_that_was_refused_comes_after_the_others() -> None:
    state = expand(led(5, 7, [1, 2]), 3)
    assert state.proposal is not None
    state, _ = answered(state, state.proposal, ErrorCode.INELIGIBLE_REPLICA)
    assert next_to_join(state, [Seen(3, 100), Seen(4, 100)], 100, 0, LIVE) == 4
    assert next_to_join(state, [Seen(3, 100)], 100, 0, LIVE) == 3


@pytest.mark.parametrize(
    ("end", "caught_up_ms", "is_late"),
    [(100, 0, False), (99, 10_000, False), (99, 9_999, True), (0, 10_000, False), (0, 0, True)],
)
def test_a_replica_is_put_out_that_has_not_caught_up_for_too_long(end: int, caught_up_ms: int, is_late: bool) -> None:
    state = led(5, 7, [1, 2])
    late = out_of_sync(state, [Seen(2, end, caught_up_ms), Seen(3, 0)], 100, 40_000, 30_000)
    assert late == ({2} if is_late else frozenset())


def test_while_it_is_proposed_an_expansion_counts_and_a_shrink_does_not() -> None:
    state = led(5, 7, [1, 2])
    assert expand(state, 3).maximal == {1, 2, 3}
    assert expand(state, 3).committed == (1, 2)
    assert shrink(state, {2}).maximal == {1, 2}
    assert shrink(state, {2}).committed == (1, 2)


def test_a_commit_settles_the_proposal() -> None:
    state = expand(led(5, 7, [1, 2]), 3)
    assert state.proposal == Proposal(5, 7, (1, 2, 3))
    assert answered(state, state.proposal, Committed(5, 8, (1, 2, 3))) == (led(5, 8, [1, 2, 3]), Next.GO_ON)


def test_a_commit_of_the_same_partition_epoch_settles_it_too() -> None:
    """KAFKA-14144: the change had been made, its answer was lost, and the same change was asked for again."""
    state = expand(led(5, 7, [1, 2]), 3)
    assert state.proposal is not None
    assert answered(state, state.proposal, Committed(5, 7, (1, 2))) == (led(5, 7, [1, 2]), Next.GO_ON)


@pytest.mark.parametrize("answer", [Committed(5, 6, (1, 2, 3)), Committed(4, 9, (1, 2, 3)), Committed(6, 9, (1,))])
def test_a_commit_of_another_leader_epoch_or_an_older_state_is_not_believed(answer: Committed) -> None:
    state = expand(led(5, 7, [1, 2]), 3)
    assert state.proposal is not None
    assert answered(state, state.proposal, answer) == (state, Next.WAIT)


def test_an_answer_to_an_older_proposal_is_ignored() -> None:
    state = expand(led(5, 7, [1, 2]), 3)
    for asked in (Proposal(4, 7, (1, 2, 3)), Proposal(5, 6, (1, 2, 3)), Proposal(5, 7, (1,))):
        assert answered(state, asked, Committed(5, 9, (1,))) == (state, Next.IGNORE)
    settled = led(5, 8, [1, 2, 3])
    assert answered(settled, Proposal(5, 7, (1, 2, 3)), Committed(5, 8, (1, 2, 3))) == (settled, Next.IGNORE)


def test_a_refusal_that_was_never_applied_brings_back_the_committed_isr() -> None:
    for code in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED):
        state = expand(led(5, 7, [1, 2]), 3)
        assert state.proposal is not None
        after, then = answered(state, state.proposal, code)
        assert (after, then) == (led(5, 7, [1, 2])._replace(refused=3), Next.GO_ON)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_after_a_refusal_that_may_hide_a_commit_the_proposal_stays_open(code: ErrorCode) -> None:
    """KAFKA-14154: the expansion may have been committed by an answer that was lost: it has to count on."""
    state = expand(led(5, 7, [1, 2]), 3)
    assert state.proposal is not None
    after, then = answered(state, state.proposal, code)
    assert (after, then) == (state, Next.WAIT)
    assert 3 in after.maximal


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NETWORK_EXCEPTION]
)
def test_after_any_other_error_the_same_is_asked_again(code: ErrorCode) -> None:
    state = shrink(led(5, 7, [1, 2]), {2})
    assert state.proposal is not None
    assert answered(state, state.proposal, code) == (state, Next.ASK_AGAIN)


def test_a_later_state_of_the_same_leader_epoch_is_learned() -> None:
    state = expand(led(5, 7, [1, 2]), 3)
    assert learned(state, Committed(5, 8, (1, 2, 3))) == led(5, 8, [1, 2, 3])
    for told in (Committed(5, 7, (1,)), Committed(5, 6, (1,)), Committed(6, 8, (1,)), Committed(4, 8, (1,))):
        assert learned(state, told) is state


class Controller:
    """An obvious controller of one partition: it commits what builds on its state, and loses answers as it is told."""

    def __init__(self, isr: tuple[int, ...]):
        self.partition_epoch = 0
        self.isr = isr

    def alter(self, asked: Proposal, live: frozenset[int]) -> Committed | ErrorCode:
        if set(asked.isr) == set(self.isr):
            return Committed(0, self.partition_epoch, self.isr)
        if asked.partition_epoch < self.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if not set(asked.isr) <= live:
            return ErrorCode.INELIGIBLE_REPLICA
        self.partition_epoch += 1
        self.isr = asked.isr
        return Committed(0, self.partition_epoch, self.isr)


steps = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "ask", "lose", "late", "tell", "die"]), st.integers(2, 3)), max_size=60
)


@settings(max_examples=400)
@given(steps)
def test_whatever_is_lost_or_late_the_maximal_isr_covers_what_the_controller_may_have(
    steps: list[tuple[str, int]],
) -> None:
    """The promise: everybody whom the controller may elect is waited for."""
    state = led(0, 0, [1, 2, 3, 4])
    controller = Controller((1, 2, 3, 4))
    live = frozenset({1, 2, 3, 4})
    lost: list[tuple[Proposal, Committed | ErrorCode]] = []
    told: list[Committed] = []
    for step, node_id in steps:
        if step == "join" and not state.is_pending and node_id not in state.committed:
            state = expand(state, node_id)
        elif step == "leave" and not state.is_pending and node_id in state.committed:
            state = shrink(state, {node_id})
        elif step in ("ask", "lose") and state.proposal is not None:
            asked = state.proposal
            answer = controller.alter(asked, live)
            told.append(Committed(0, controller.partition_epoch, controller.isr))
            if step == "lose":
                # One request is in flight at a time, so a refusal is never read after the answer to a later request.
                if answer is not ErrorCode.INELIGIBLE_REPLICA:
                    lost.append((asked, answer))
            else:
                state, _ = answered(state, asked, answer)
        elif step == "late" and lost:
            state, _ = answered(state, *lost.pop(node_id % len(lost)))
        elif step == "tell" and told:
            state = learned(state, told.pop(node_id % len(told)))
        elif step == "die":
            live = live ^ {node_id}
        assert set(controller.isr) <= state.maximal, (state, controller.isr)
        assert state.partition_epoch <= controller.partition_epoch
    # Once messages arrive, nothing stays open.
    for _ in range(3):
        if state.proposal is None:
            break
        answer = controller.alter(state.proposal, live)
        state, then = answered(state, state.proposal, answer)
        if then is Next.WAIT:
            state = learned(state, Committed(0, controller.partition_epoch, controller.isr))
    assert isinstance(state, InSync)
    assert not state.is_pending
    assert set(state.committed) == set(controller.isr)
