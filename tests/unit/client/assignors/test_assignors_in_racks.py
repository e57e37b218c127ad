"""Assignors that know racks (KIP-881), for random groups: what Apache Kafka's own do."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.client.assignors import group_protocol
from kbroker.client.assignors.assignor import Member, Topics
from kbroker.client.assignors.assignors import ASSIGNORS
from kbroker.model import TopicPartition
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import compile_java

JAVA = Path(__file__).parent / "java"
GROUPS = 400
RACKS = ("r1", "r2", "r3")

Shares = dict[str, set[TopicPartition]]


def random_topics(chosen: random.Random) -> Topics:
    spread = chosen.choice([1, 1, 2, 3])
    counts = {f"t{number}": chosen.choice([0, 1, 3, 4, 4, 6, 6]) for number in range(chosen.randint(1, 4))}
    known = RACKS if chosen.random() < 0.9 else ()
    racks = {}
    for name, count in counts.items():
        for number in range(count):
            # Now and then a broker that does not say where it is.
            replicas = chosen.sample([*known, ""], min(spread, len(known) + 1)) if known else [""]
            racks[TopicPartition(name, number)] = frozenset(filter(None, replicas))
    return Topics(counts, racks)


def random_members(chosen: random.Random, topics: Topics) -> list[Member]:
    same = chosen.random() < 0.6
    names = sorted(topics.counts)
    members = []
    for number in range(chosen.randint(1, 7)):
        wanted = names if same else chosen.sample(names, chosen.randint(1, len(names)))
        instance = f"i{chosen.randrange(100)}-{number}" if chosen.random() < 0.3 else None
        rack = chosen.choice([*RACKS, *RACKS, "r9", None])
        members.append(
            Member(f"m{chosen.randrange(100)}-{number}", frozenset(wanted), group_instance_id=instance, rack=rack)
        )
    return members


def lines_of(name: str, members: Collection[Member], topics: Topics) -> list[str]:
    lines = []
    for topic, count in topics.counts.items():
        if count:
            racks = (",".join(sorted(topics.racks[TopicPartition(topic, n)])) or "-" for n in range(count))
            lines.append(f"topic {topic} {';'.join(racks)}")
    for member in members:
        data = group_protocol.encode_previous(member.owned, member.generation).hex() if member.owned else "-"
        wanted = ",".join(sorted(member.topics))
        lines.append(
            f"member {member.member_id} {member.group_instance_id or '-'} {member.rack or '-'} {data} {wanted}"
        )
    return [*lines, f"assign {name}"]


def given_by_kafka(groups: Collection[tuple[str, list[Member], Topics]]) -> list[Shares]:
    try:
        java = compile_java(JAVA, "Shares", "4.3.1", "org.apache.kafka:kafka-clients:4.3.1", options=("-Xmx128m",))
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    asked = [line for name, members, topics in groups for line in lines_of(name, members, topics)]
    done = subprocess.run(java, input="\n".join(asked) + "\n", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = []
    for (_, members, _), block in zip(groups, done.stdout.split(".\n"), strict=False):
        shares: Shares = {member.member_id: set() for member in members}
        for line in block.splitlines():
            member_id, topic, number = line.split(" ")
            shares[member_id].add(TopicPartition(topic, int(number)))
        found.append(shares)
    assert len(found) == len(groups)
    return found


def ours(name: str, members: Collection[Member], topics: Topics) -> Shares:
    return {member_id: set(share) for member_id, share in ASSIGNORS[name].assign(members, topics).items()}


def near(members: Collection[Member], topics: Topics, shares: Mapping[str, Collection[TopicPartition]]) -> int:
    """How many partitions have a replica in the rack of who has them."""
    return sum(member.rack in topics.racks[each] for member in members for each in shares[member.member_id])


@pytest.mark.slow
def test_range_gives_what_javas_gives() -> None:
    chosen = random.Random(881)
    groups = []
    for _ in range(GROUPS):
        topics = random_topics(chosen)
        groups.append(("range", random_members(chosen, topics), topics))
    unlike = 0
    for (name, members, topics), theirs in zip(groups, given_by_kafka(groups), strict=True):
        assert ours(name, members, topics) == theirs, lines_of(name, members, topics)
        nowhere = [replace(member, rack=None) for member in members]
        unlike += ours(name, nowhere, topics) != theirs
    assert unlike > GROUPS / 5  # racks do change something


def check_even(members: Collection[Member], shares: Shares) -> None:
    """Who has two more than another has nothing that the other wants."""
    for member in members:
        for other in members:
            if len(shares[member.member_id]) > len(shares[other.member_id]) + 1:
                assert not {partition.topic for partition in shares[member.member_id]} & other.topics


def check_whole(members: Collection[Member], topics: Topics, shares: Shares) -> None:
    given = [each for share in shares.values() for each in share]
    assert sorted(given) == topics.of(frozenset().union(*(member.topics for member in members)))
    assert all({each.topic for each in shares[member.member_id]} <= member.topics for member in members)


@pytest.mark.slow
def test_sticky_is_as_near_as_javas() -> None:
    """And as even. Members come, go and move between racks, and own what they were given before."""
    chosen = random.Random(882)
    groups: list[tuple[str, list[Member], Topics]] = []
    for _ in range(GROUPS):
        topics = random_topics(chosen)
        members = random_members(chosen, topics)
        shares = ours("sticky", chosen.sample(members, chosen.randint(1, len(members))), topics)
        again = [replace(each, owned=frozenset(shares.get(each.member_id, ())), generation=5) for each in members]
        moved = [replace(each, rack=chosen.choice(RACKS)) if chosen.random() < 0.3 else each for each in again]
        groups += [("sticky", members, topics), ("sticky", moved, topics)]
    nearer = stays = 0
    for (name, members, topics), theirs in zip(groups, given_by_kafka(groups), strict=True):
        found = ours(name, members, topics)
        check_whole(members, topics, found)
        check_even(members, found)
        more = near(members, topics, found) - near(members, topics, theirs)
        assert more >= -1, lines_of(name, members, topics)
        nearer += more
        stays += sum(
            len(member.owned & found[member.member_id]) - len(member.owned & theirs[member.member_id])
            for member in members
        )
    assert nearer >= 0
    assert stays >= 0


# --- what is obvious --------------------------------------------------------------------------------------

T = [TopicPartition("t", number) for number in range(4)]
CROSSED = Topics({"t": 4}, {each: frozenset({RACKS[each.partition_id % 2]}) for each in T})
WANTED = frozenset({"t"})
PAIR = [Member("a", WANTED, rack="r2"), Member("b", WANTED, rack="r1")]
STICKY = ("sticky", "cooperative-sticky")


@pytest.mark.parametrize("name", ["range", *STICKY])
def test_everybody_reads_what_is_near(name: str) -> None:
    assert ours(name, PAIR, CROSSED) == {"a": {T[1], T[3]}, "b": {T[0], T[2]}}


@pytest.mark.parametrize("name", ["range", *STICKY])
@pytest.mark.parametrize(
    "racks",
    [
        {},
        dict.fromkeys(T, frozenset(RACKS)),
        {each: frozenset({"elsewhere"} if each.partition_id else ()) for each in T},
    ],
    ids=["not known", "everywhere", "elsewhere"],
)
def test_racks_that_make_no_difference_change_nothing(name: str, racks: dict[TopicPartition, frozenset[str]]) -> None:
    nowhere = [replace(each, rack=None) for each in PAIR]
    assert ours(name, PAIR, Topics({"t": 4}, racks)) == ours(name, nowhere, CROSSED)


@pytest.mark.parametrize("name", STICKY)
def test_evenness_comes_before_nearness_and_nearness_before_staying(name: str) -> None:
    alone = Topics({"t": 4}, {each: frozenset({"r1" if each.partition_id < 3 else "r2"}) for each in T})
    shares = ours("sticky", PAIR, alone)
    assert (len(shares["a"]), len(shares["b"])) == (2, 2)
    assert T[3] in shares["a"]
    far = [replace(each, owned=frozenset(T[number::2]), generation=3) for number, each in enumerate(PAIR)]
    assert ours("sticky", far, CROSSED) == {"a": {T[1], T[3]}, "b": {T[0], T[2]}}
    # What is far from both stays where it is.
    far = [
        replace(PAIR[0], owned=frozenset({T[0]}), generation=3),
        replace(PAIR[1], owned=frozenset(T[1:2]), generation=3),
    ]
    strange = Topics({"t": 2}, {T[0]: frozenset({"r3"}), T[1]: frozenset({"r3", "r1"})})
    assert ours(name, far, strange) == {"a": {T[0]}, "b": {T[1]}}


def test_cooperative_withholds_what_moves_nearer() -> None:
    far = [replace(each, owned=frozenset(T[number::2]), generation=3) for number, each in enumerate(PAIR)]
    assert ours("cooperative-sticky", far, CROSSED) == {"a": set(), "b": set()}


def test_topics_that_go_together_stay_together_in_racks() -> None:
    both = frozenset({"t", "u"})
    members = [replace(each, topics=both) for each in PAIR]
    racks = {**CROSSED.racks, **{TopicPartition("u", each.partition_id): at for each, at in CROSSED.racks.items()}}
    shares = ours("range", members, Topics({"t": 4, "u": 4}, racks))
    for share in shares.values():
        assert {n for topic, n in share if topic == "t"} == {n for topic, n in share if topic == "u"}
    assert shares["a"] >= {T[1], T[3]}
