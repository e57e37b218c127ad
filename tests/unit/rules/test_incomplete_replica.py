"""A replica that lacks committed records leads only if no other can, and is nobody's proof that something is stored."""

from __future__ import annotations

import pytest

from kbroker.rules.incomplete_replica import Declined, Verdict, verdict

ALL = (1, 2, 3)


@pytest.mark.parametrize("leader", [1, 2])
def test_a_member_of_the_isr_declines_while_there_are_others(leader: int) -> None:
    assert verdict(1, leader, 5, ALL, ALL) is Verdict.DECLINE
    assert verdict(1, leader, 6, (3, 1), ALL, Declined(4, has_asked=True)) is Verdict.DECLINE


def test_outside_the_isr_it_follows_and_begins_anew_where_it_is_damaged() -> None:
    assert verdict(1, 2, 6, (2, 3), ALL, Declined(5)) is Verdict.TAKE_ANEW


@pytest.mark.parametrize("isr", [(2, 3), (1, 2), (1,)])
def test_while_nobody_leads_nothing_is_cut_off_and_nobody_relies_on_it(isr: tuple[int, ...]) -> None:
    assert verdict(1, -1, 6, isr, ALL) is Verdict.TAKE_AS_IT_IS


def test_after_it_has_declined_to_lead_it_is_not_elected_before_the_controller_knows_that() -> None:
    """Two damaged replicas of a topic with unclean elections were elected in turns, without end."""
    assert verdict(1, -1, 6, (1,), ALL, Declined(5)) is Verdict.DECLINE
    assert verdict(1, -1, 6, (1,), ALL, Declined(5, has_asked=True)) is Verdict.TAKE_AS_IT_IS
    assert verdict(1, -1, 6, (2,), ALL, Declined(5)) is Verdict.DECLINE


def test_alone_in_the_isr_it_leads_when_the_controller_asks_although_it_knows_that_it_has_declined() -> None:
    """The first time the controller may have left others out, because they were away."""
    assert verdict(1, 1, 5, (1,), ALL) is Verdict.DECLINE
    assert verdict(1, 1, 5, (1,), ALL, Declined(5, has_asked=True)) is Verdict.DECLINE
    assert verdict(1, 1, 6, (1,), ALL, Declined(5)) is Verdict.DECLINE, "it was told before the controller heard of it"
    assert verdict(1, 1, 6, (1,), ALL, Declined(5, has_asked=True)) is Verdict.TAKE_AS_IT_IS


def test_the_only_replica_leads_at_once() -> None:
    assert verdict(1, 1, 0, (1,), (1,)) is Verdict.TAKE_AS_IT_IS
