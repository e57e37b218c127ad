"""The assignors of the consumer protocol: everything is assigned once, evenly, and nothing moves that need not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.rules import range_assignor, uniform_assignor
from kbroker.rules.consumer_assignment import Assignor, MemberSpec
from kbroker.rules.consumer_group_member import NOTHING, Assignment

ASSIGNORS = [uniform_assignor.assign, range_assignor.assign]
TOPICS = [bytes([number]) * 16 for number in range(4)]


def members(
    count: int, topics: frozenset[bytes], before: Mapping[str, Assignment] | None = None
) -> dict[str, MemberSpec]:
    return {f"m{n}": MemberSpec(None, topics, (before or {}).get(f"m{n}", NOTHING)) for n in range(count)}


def sizes(assigned: Mapping[str, Assignment]) -> list[int]:
    return sorted(sum(map(len, of.values())) for of in assigned.values())


def moved(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> int:
    """Partitions that somebody who is still there had and has no more."""
    return sum(
        len(partitions - after[member_id].get(topic_id, frozenset()))
        for member_id, of in before.items()
        if member_id in after
        for topic_id, partitions in of.items()
    )


def check_whole(
    assigned: Mapping[str, Assignment], specs: Mapping[str, MemberSpec], counts: Mapping[bytes, int]
) -> None:
    """Every partition that anybody wants has one owner, who wants it."""
    wanted = {(t, p) for spec in specs.values() for t in spec.topics for p in range(counts[t])}
    given_out = [(t, p) for of in assigned.values() for t, partitions in of.items() for p in partitions]
    assert sorted(given_out) == sorted(wanted)
    assert all(of.keys() <= specs[member_id].topics for member_id, of in assigned.items())
    assert all(partitions for of in assigned.values() for partitions in of.values())
    assert assigned.keys() == specs.keys()


COUNTS = st.fixed_dictionaries({topic_id: st.integers(0, 9) for topic_id in TOPICS})
SUBSCRIPTIONS = st.frozensets(st.sampled_from(TOPICS))


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, MemberSpec], dict[bytes, int]]:
    """Members with subscriptions of their own, and assignments from an earlier day, topics gone and grown meanwhile."""
    counts = draw(COUNTS)
    ids = [f"m{n}" for n in range(draw(st.integers(1, 7)))]
    alike = draw(st.booleans())
    shared = draw(SUBSCRIPTIONS)
    old: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in ids}
    for topic_id in [*TOPICS, b"gone" * 4]:
        for partition in range(9):
            owner = draw(st.sampled_from([None, *ids]))
            if owner is not None:
                old[owner].setdefault(topic_id, set()).add(partition)
    specs = {
        member_id: MemberSpec(
            draw(st.sampled_from([None, f"i-{member_id}"])),
            shared if alike else draw(SUBSCRIPTIONS),
            {topic_id: frozenset(of) for topic_id, of in old[member_id].items()},
        )
        for member_id in ids
    }
    return specs, counts


@pytest.mark.parametrize("assign", ASSIGNORS, ids=["uniform", "range"])
@given(given_group=groups())
def test_every_partition_has_one_owner_who_wants_it_and_a_second_time_nothing_moves(
    assign: Assignor, given_group: tuple[dict[str, MemberSpec], dict[bytes, int]]
) -> None:
    specs, counts = given_group
    assigned = assign(specs, counts)
    check_whole(assigned, specs, counts)
    again = {member_id: spec._replace(assigned=assigned[member_id]) for member_id, spec in specs.items()}
    repeated = assign(again, counts)
    assert repeated == assigned
    assert all(repeated[member_id] is spec.assigned for member_id, spec in again.items())


@given(given_group=groups())
def test_uniform_is_as_even_as_subscriptions_allow(
    given_group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    specs, counts = given_group
    assigned = uniform_assignor.assign(specs, counts)
    size = {member_id: sum(map(len, of.values())) for member_id, of in assigned.items()}
    for member_id, of in assigned.items():
        for topic_id in of:
            takers = [other for other, spec in specs.items() if topic_id in spec.topics]
            assert size[member_id] <= min(size[other] for other in takers) + 1, "one move would make it more even"


@given(given_group=groups())
def test_range_gives_each_subscriber_of_a_topic_as_much_as_another(
    given_group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    specs, counts = given_group
    assigned = range_assignor.assign(specs, counts)
    for topic_id in TOPICS:
        shares = [len(of.get(topic_id, ())) for m, of in assigned.items() if topic_id in specs[m].topics]
        assert not shares or max(shares) - min(shares) <= 1


@pytest.mark.parametrize("assign", ASSIGNORS, ids=["uniform", "range"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12, 13, 40])
def test_of_who_comes_and_goes_no_more_moves_than_has_to(assign: Assignor, count: int) -> None:
    counts = {TOPICS[0]: 12}
    topics = frozenset(counts)
    before = assign(members(count, topics), counts)
    with_one_more = members(count + 1, topics, before)
    grown = assign(with_one_more, counts)
    assert moved(before, grown) == sum(map(len, grown[f"m{count}"].values())), "only what the new one gets moves"
    back = assign(members(count, topics, grown), counts)
    assert moved(grown, back) == 0, "those who stay keep all that they have"


def test_who_has_one_more_than_the_others_keeps_it() -> None:
    before: dict[str, Assignment] = {
        "m0": {TOPICS[0]: frozenset({0, 1, 2})},
        "m1": {TOPICS[0]: frozenset({3, 4, 5, 6})},
    }
    after = uniform_assignor.assign(members(2, frozenset(TOPICS[:1]), before), {TOPICS[0]: 7})
    assert after == before


def test_topics_that_can_be_joined_have_the_same_ranges() -> None:
    counts = {TOPICS[0]: 7, TOPICS[1]: 7, TOPICS[2]: 3}
    assigned = range_assignor.assign(members(3, frozenset(counts)), counts)
    assert all(of[TOPICS[0]] == of[TOPICS[1]] for of in assigned.values())
    assert [sorted(assigned[f"m{n}"][TOPICS[0]]) for n in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]


def test_static_members_keep_their_ranges_under_new_ids() -> None:
    counts = {TOPICS[0]: 4}
    topics = frozenset(counts)
    first = {"z": MemberSpec("a", topics, NOTHING), "y": MemberSpec("b", topics, NOTHING)}
    second = {"x": MemberSpec("b", topics, NOTHING), "w": MemberSpec("a", topics, NOTHING)}
    assert range_assignor.assign(first, counts)["z"] == range_assignor.assign(second, counts)["w"]


def test_nobody_has_anything_where_there_is_nothing() -> None:
    for assign in ASSIGNORS:
        assert assign({}, {}) == {}
        assert assign(members(2, frozenset()), {}) == {"m0": {}, "m1": {}}
