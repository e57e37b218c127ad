"""The assignors against what is obvious of them, for random groups that change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from kbroker.client.assignors import group_protocol
from kbroker.client.assignors.assignor import Assignor, Member, Topics
from kbroker.client.assignors.assignors import ASSIGNORS
from kbroker.errors import BadInput
from kbroker.model import TopicPartition

Shares = Mapping[str, Collection[TopicPartition]]
STICKY = ("sticky", "cooperative-sticky")


def settle(name: str, members: list[Member], topics: Topics, generation: int) -> tuple[list[Member], int]:
    """The members with what they own after rebalances, until nothing is withheld; how many that took."""
    assignor = ASSIGNORS[name]
    for rounds in range(1, 4):
        shares = assignor.assign(members, topics)
        check_valid(members, shares)
        if name == "cooperative-sticky":
            owners = {partition: member.member_id for member in members for partition in member.owned}
            for member_id, share in shares.items():
                assert all(owners.get(partition, member_id) == member_id for partition in share)
        members = [
            replace(member, owned=frozenset(shares[member.member_id]), generation=generation) for member in members
        ]
        if sum(map(len, shares.values())) == count_wanted(members, topics):
            return members, rounds
    raise AssertionError("partitions are withheld for ever")


def check_valid(members: list[Member], shares: Shares) -> None:
    assert set(shares) == {member.member_id for member in members}
    given = Counter(partition for share in shares.values() for partition in share)
    assert set(given.values()) <= {1}
    for member in members:
        assert {partition.topic for partition in shares[member.member_id]} <= member.topics


def count_wanted(members: list[Member], topics: Topics) -> int:
    return len(topics.of(frozenset().union(*(member.topics for member in members))))


def check_balanced(members: list[Member]) -> None:
    """Java's own: who has two more than another has nothing that the other wants."""
    for member in members:
        for other in members:
            if len(member.owned) > len(other.owned) + 1:
                assert not {partition.topic for partition in member.owned} & other.topics


def random_topics(chosen: random.Random) -> Topics:
    return Topics({f"t{n}": chosen.randrange(0, 9) for n in range(chosen.randrange(1, 5))})


def random_member(chosen: random.Random, number: int, topics: Topics, *, same: bool) -> Member:
    names = list(topics.counts)
    wanted = names if same else chosen.sample(names, chosen.randrange(1, len(names) + 1))
    instance = f"i{number}" if chosen.random() < 0.3 else None
    return Member(f"m{chosen.randrange(1000)}-{number}", frozenset(wanted), group_instance_id=instance)


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("same", [True, False])
def test_everything_is_given_to_one_who_wants_it_whoever_comes_and_goes(name: str, same: bool) -> None:
    for seed in range(150):
        chosen = random.Random(seed)
        topics = random_topics(chosen)
        members: list[Member] = []
        for generation in range(6):
            for _ in range(chosen.randrange(3)):
                members.append(random_member(chosen, len(members) * 10 + generation, topics, same=same))
            if len(members) > 1 and chosen.random() < 0.5:
                members.pop(chosen.randrange(len(members)))
            if chosen.random() < 0.3:
                topics = Topics({topic: count + chosen.randrange(3) for topic, count in topics.counts.items()})
            if not members:
                continue
            chosen.shuffle(members)
            members, rounds = settle(name, members, topics, generation)
            assert rounds <= ((2 if same else 3) if name == "cooperative-sticky" else 1)
            if name in STICKY or (name == "roundrobin" and same):
                check_balanced(members)


@pytest.mark.parametrize("name", STICKY)
def test_no_more_moves_than_must(name: str) -> None:
    for seed in range(300):
        chosen = random.Random(seed)
        topics = random_topics(chosen)
        first = [random_member(chosen, n, topics, same=True) for n in range(chosen.randrange(1, 8))]
        before, _ = settle(name, first, topics, 1)
        again, rounds = settle(name, before, topics, 2)
        assert again == [replace(member, generation=2) for member in before]
        assert rounds == 1
        # One leaves: everybody keeps all that is his.
        left = before[1:]
        if left:
            after, _ = settle(name, left, topics, 2)
            assert all(old.owned <= new.owned for old, new in zip(left, after, strict=True))
        # One comes: nobody gets anything but he, who gets what is fair and no more.
        newcomer = replace(random_member(chosen, 99, topics, same=True), generation=-1)
        after, _ = settle(name, [*before, newcomer], topics, 2)
        assert all(new.owned <= old.owned for old, new in zip(before, after[:-1], strict=True))
        assert len(after[-1].owned) == count_wanted(first, topics) // len(after)


@pytest.mark.parametrize("name", STICKY)
def test_of_two_who_own_a_partition_the_later_generation_is_believed(name: str) -> None:
    topics = Topics({"t": 2})
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    wanted = frozenset({"t"})
    ghost = Member("ghost", wanted, frozenset({zero}), generation=1)
    holder = Member("holder", wanted, frozenset({zero}), generation=2)
    members, _ = settle(name, [ghost, holder], topics, 3)
    assert [member.owned for member in members] == [{one}, {zero}]


def test_range_and_roundrobin_are_as_everybody_knows_them() -> None:
    both = frozenset({"a", "b"})
    members = [Member("x", both), Member("y", frozenset({"a"})), Member("w", both, group_instance_id="z")]
    topics = Topics({"a": 4, "b": 3})

    def shares_of(name: str) -> dict[str, list[str]]:
        found = ASSIGNORS[name].assign(members, topics)
        return {member_id: [str(partition) for partition in share] for member_id, share in found.items()}

    assert shares_of("range") == {"w": ["a-0", "a-1", "b-0", "b-1"], "x": ["a-2", "b-2"], "y": ["a-3"]}
    assert shares_of("roundrobin") == {"w": ["a-0", "a-3", "b-1"], "x": ["a-1", "b-0", "b-2"], "y": ["a-2"]}


# --- bytes ------------------------------------------------------------------------------------------------

OWNED = frozenset({TopicPartition("b", 2), TopicPartition("b", 1), TopicPartition("a", 0)})


def test_a_subscription_is_what_java_writes() -> None:
    written = group_protocol.encode_subscription({"b", "a"}, OWNED, 7, "r1", b"\0\0\0\7")
    assert written == bytes.fromhex(
        "0003"  # version
        "00000002" "0001" "61" "0001" "62"  # topics
        "00000004" "00000007"  # user data
        "00000002" "0001" "61" "00000001" "00000000" "0001" "62" "00000002" "00000001" "00000002"  # owned
        "00000007"  # generation
        "0002" "7231"  # rack
    )  # fmt: skip
    read = group_protocol.decode_subscription(written, "m", "i")
    assert read == Member("m", frozenset({"a", "b"}), OWNED, 7, b"\0\0\0\7", "i", "r1")


@pytest.mark.parametrize("version", [0, 1, 2, 3, 9])
def test_subscriptions_of_all_versions_are_read(version: int) -> None:
    whole = group_protocol.encode_subscription({"a"}, OWNED, 7, "r", None)
    ends = {0: 2 + 4 + 3 + 4, 1: len(whole) - 3 - 4, 2: len(whole) - 3, 3: len(whole), 9: len(whole)}
    data = version.to_bytes(2) + whole[2 : ends[version]] + (b"more" if version == 9 else b"")
    read = group_protocol.decode_subscription(data, "m", None)
    assert read.topics == {"a"}
    assert read.owned == (OWNED if version >= 1 else frozenset())
    assert read.generation == (7 if version >= 2 else -1)
    assert read.rack == ("r" if version >= 3 else None)


def test_what_does_not_parse_is_refused_or_counts_for_nothing() -> None:
    whole = group_protocol.encode_subscription({"a"}, OWNED, 7, "r", b"data")
    for data in [b"", b"\0", b"\xff\xff" + whole[2:], *(whole[:size] for size in range(2, len(whole)))]:
        with pytest.raises(BadInput):
            group_protocol.decode_subscription(data, "m", None)
    assignment = group_protocol.encode_assignment(OWNED)
    assert group_protocol.decode_assignment(assignment) == OWNED
    assert group_protocol.decode_assignment(b"") == frozenset()
    for size in range(1, len(assignment)):
        with pytest.raises(BadInput):
            group_protocol.decode_assignment(assignment[:size])
    previous = group_protocol.encode_previous(OWNED, 5)
    assert previous[-4:] == b"\0\0\0\5"
    assert group_protocol.decode_previous(previous) == (OWNED, 5)
    assert group_protocol.decode_previous(previous[:-4]) == (OWNED, -1)
    for data in (None, b"", b"\0", previous[:5], previous + b"xy"):
        assert group_protocol.decode_previous(data) == (frozenset(), -1)
    assert group_protocol.decode_generation(b"\0\0") == -1


@pytest.mark.parametrize("name", STICKY)
def test_what_a_member_tells_its_leader_is_understood(name: str) -> None:
    assignor: Assignor = ASSIGNORS[name]
    topics = frozenset({"a", "b"})
    owned = frozenset[TopicPartition]() if name == "sticky" else OWNED
    data = group_protocol.encode_subscription(topics, owned, 4, None, assignor.user_data(topics, OWNED, 4))
    member = assignor.as_told(group_protocol.decode_subscription(data, "m", None))
    assert (member.owned, member.generation) == (OWNED, 4)
