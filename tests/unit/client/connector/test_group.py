"""Members of one group: they come, go and die, and ZooKeeper does, while messages flow."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import ConsumerConnector, ConsumerRebalanceListener, ConsumerTimeout, UsageError
from kbroker.client.connector.membership import ConsumerRebalanceFailed
from kbroker.coordination.store import WatchEvent
from kbroker.model import TopicPartition
from tests.kit.clients.connector_member import MemberProcess
from tests.kit.clients.connectors import QUICK, Reading
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.unit.client.connector.conftest import PARTITIONS, Place


class Sending:
    """Records are sent without end while the context lasts; `values` are those that the broker has."""

    def __init__(self, place: Place):
        self.place = place
        self.values: set[bytes] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def _send(self) -> None:
        while not self._is_over.wait(0.002):
            self.values |= self.place.send(20)

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def read_by(*members: Reading) -> list[bytes]:
    return [value for member in members for value in member.values if value is not None]


def is_owned_by(place: Place, members: list[Reading]) -> bool:
    """Whether each partition is owned by one of them; some may have none."""
    said = [each.partition_id for member in members for each in member.connector.assignment()]
    return sorted(place.owners()) == sorted(said) == list(range(PARTITIONS))


def in_order(member: Reading) -> bool:
    """Whether no partition has gone back, nor been cut."""
    last: dict[TopicPartition, int] = {}
    for partition, offset, _ in list(member.records):
        if offset <= last.get(partition, -1):
            return False
        last[partition] = offset
    return True


def test_members_that_come_and_go_share_everything_and_read_it_once(place: Place) -> None:
    with place.reading() as first:
        with Sending(place) as sending:
            place.wait(lambda: place.is_shared_by(first.connector))
            with place.reading(streams=2) as second:
                place.wait(lambda: place.is_shared_by(first.connector, second.connector))
                with place.reading() as third:
                    place.wait(lambda: place.is_shared_by(first.connector, second.connector, third.connector))
                    place.wait(lambda: all(len(each.values) > 100 for each in (first, second, third)))
                place.wait(lambda: place.is_shared_by(first.connector, second.connector))
            place.wait(lambda: place.is_shared_by(first.connector))
            seen = len(first.values)
            place.wait(lambda: len(first.values) > seen + 100)
        place.wait(lambda: set(read_by(first, second, third)) >= sending.values)
        counted = Counter(read_by(first, second, third))
        assert {value for value, count in counted.items() if count > 1} == set()
        assert all(in_order(each) for each in (first, second, third))
    assert sum(place.offsets().values()) == len(sending.values)


def test_what_a_member_keeps_is_read_on_without_a_pause(place: Place) -> None:
    """A rebalance moves what changes hands, and that only."""
    with place.reading() as first:
        place.wait(lambda: place.is_shared_by(first.connector))
        before = {number: place.tree.get(path(place, number))[1].creation_id for number in range(PARTITIONS)}
        with place.reading() as second:
            place.wait(lambda: place.is_shared_by(first.connector, second.connector))
            now = {number: place.tree.get(path(place, number))[1].creation_id for number in range(PARTITIONS)}
    kept = {number for number in range(PARTITIONS) if before[number] == now[number]}
    assert len(kept) == PARTITIONS // 2


def path(place: Place, number: int) -> str:
    return f"/consumers/{place.group}/owners/{place.topic}/{number}"


def test_a_member_whose_session_expires_loses_its_share_and_comes_back(
    place: Place, zookeeper: ZooKeeperProcess
) -> None:
    with place.reading() as first, place.reading() as second:
        place.wait(lambda: place.is_shared_by(first.connector, second.connector))
        with Sending(place) as sending:
            for victim in (first, second):
                place.wait(lambda: len(first.values) > 20 and len(second.values) > 20)
                zookeeper.expire(victim.connector._session.store)
                place.wait(lambda: place.is_shared_by(first.connector, second.connector))
                seen = len(victim.values)
                place.wait(lambda victim=victim, seen=seen: len(victim.values) > seen + 20)
        place.wait(lambda: set(read_by(first, second)) >= sending.values)


def test_what_a_dead_member_has_not_committed_is_read_by_the_others(place: Place, zookeeper: ZooKeeperProcess) -> None:
    values = place.send(400)
    with place.connector(auto_commit_enable=False) as dead:
        (stream,) = dead.create_message_streams({place.topic: 1})[place.topic]
        taken = [next(stream) for _ in range(100)]
        with place.reading() as heir:
            place.wait(lambda: place.is_shared_by(dead, heir.connector))
            # It dies: nothing of it says a word any more, and ZooKeeper ends its session.
            dead._session.on_renewed.clear()
            zookeeper.expire(dead._session.store)
            place.wait(lambda: place.is_shared_by(heir.connector))
            place.wait(lambda: set(heir.values) >= values)
            assert len(taken) == 100
            # What was fetched for it and not given yet, it gives no more: it is the heir's.
            stream._timeout_s = 0.05
            with pytest.raises(ConsumerTimeout):
                next(stream)


def test_at_no_time_does_a_partition_have_two_owners(place: Place) -> None:
    """What members read and commit is in the order of the nodes that say who owns it."""
    history: list[tuple[int, str]] = []
    done = threading.Event()

    def watch(number: int) -> None:
        def heard(_event: WatchEvent | None = None) -> None:
            if done.is_set():
                return
            node = place.tree.exists(path(place, number), heard)
            if node is not None:
                with contextlib.suppress(Exception):
                    history.append((number, place.tree.get(path(place, number))[0].decode()))

        heard()

    with Sending(place) as sending, place.reading() as first:
        place.wait(lambda: place.is_shared_by(first.connector))
        for number in range(PARTITIONS):
            watch(number)
        members = [first]
        with contextlib.ExitStack() as stack:
            members += [stack.enter_context(place.reading()) for _ in range(4)]
        place.wait(lambda: place.is_shared_by(first.connector))
    done.set()
    assert len({owner for _, owner in history}) >= 3
    offsets: dict[TopicPartition, list[tuple[int, int]]] = {}
    for who, member in enumerate(members):
        for partition, offset, _ in member.records:
            offsets.setdefault(partition, []).append((offset, who))
    for partition, each in offsets.items():
        assert sorted(offset for offset, _ in each) == list(range(len(each))), partition
    assert sum(len(each) for each in offsets.values()) <= len(sending.values)


class Heard(ConsumerRebalanceListener):
    def __init__(self, place: Place, connector: ConsumerConnector):
        self.place = place
        self.connector = connector
        self.events: list[Any] = []

    def before_starting_fetchers(self, consumer_id: str, assignment: Mapping[str, Mapping[int, str]]) -> None:
        assert consumer_id == self.connector.consumer_id
        shares = assignment[self.place.topic]
        self.events.append(sorted(number for number, owner in shares.items() if owner == f"{consumer_id}-0"))
        assert sorted(shares) == list(range(PARTITIONS))
        raise ZeroDivisionError  # which changes nothing

    def before_releasing_partitions(self, partitions: Mapping[str, set[int]]) -> None:
        (numbers,) = partitions.values()
        still = {number for number, owner in self.place.owners().items() if owner == f"{self.connector.consumer_id}-0"}
        assert numbers <= still
        self.connector.commit_offsets()
        self.events.append(numbers)


def test_a_listener_is_told_what_comes_and_what_goes(place: Place) -> None:
    values = place.send(400)
    with place.connector(auto_commit_enable=False) as connector:
        heard = Heard(place, connector)
        connector.set_consumer_rebalance_listener(heard)
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        assert heard.events == [[0, 1, 2, 3]]
        given = [next(stream) for _ in range(250)]
        assert place.offsets() == {}
        with place.reading() as second:
            place.wait(lambda: place.is_shared_by(connector, second.connector))
            gone = set(range(PARTITIONS)) - {each.partition_id for each in connector.assignment()}
            assert heard.events[1:] == [gone]
            # What was given of them was committed by the listener: nothing comes twice.
            left = len(gone) * len(values) // PARTITIONS - sum(record.partition in gone for record in given)
            place.wait(lambda: len(second.values) == left)
            assert {record.value for record in given}.isdisjoint(second.values)
        place.wait(lambda: len(heard.events) == 3)
        assert heard.events[2] == [0, 1, 2, 3]
        with pytest.raises(UsageError, match="set the listener before"):
            connector.set_consumer_rebalance_listener(heard)


def owners_of(place: Place) -> list[str]:
    """Who has something, once each partition has an owner."""
    owners = place.owners()
    return sorted({owner.rpartition("-")[0] for owner in owners.values()}) if len(owners) == PARTITIONS else []


def test_processes_that_stand_still_or_die_lose_their_share_and_no_record(place: Place, tmp_path: Path) -> None:
    short = QUICK | {"zookeeper_session_timeout_ms": 2_000, "auto_commit_interval_ms": 100}

    def member(name: str) -> MemberProcess:
        return MemberProcess(tmp_path, place.topic, place.options(consumer_id=name, **short))

    def is_shared_by(*members: MemberProcess) -> bool:
        return owners_of(place) == sorted(each.consumer_id for each in members)

    with member("a") as a, member("b") as b, member("c") as c, Sending(place) as sending:
        place.wait(lambda: is_shared_by(a, b, c))
        place.wait(lambda: all(len(each.values) > 50 for each in (a, b, c)))
        a.hold(True)  # until its session has expired
        place.wait(lambda: is_shared_by(b, c))
        seen = len(b.values)
        place.wait(lambda: len(b.values) > seen + 50)
        a.hold(False)
        place.wait(lambda: is_shared_by(a, b, c))
        seen = len(a.values)
        place.wait(lambda: len(a.values) > seen + 50)
        b.kill()
        place.wait(lambda: is_shared_by(a, c))
        c.kill()
        place.wait(lambda: is_shared_by(a))
        sending._is_over.set()
        sending._thread.join(60)
        place.wait(lambda: a.values | b.values | c.values >= sending.values)
        assert a.values | b.values | c.values == sending.values


@pytest.mark.slow
def test_a_group_that_never_rests_loses_nothing(place: Place, zookeeper: ZooKeeperProcess) -> None:
    chance = random.Random(7)
    gone: list[Reading] = []
    with place.reading() as stays, contextlib.ExitStack() as stack:
        living = [stays]
        with Sending(place) as sending:
            for _ in range(40):
                what = chance.choice(("join", "join", "leave", "expire"))
                if what == "join" and len(living) < PARTITIONS:
                    living.append(stack.enter_context(place.reading(streams=chance.randint(1, 2))))
                elif what == "leave" and len(living) > 1:
                    gone.append(living.pop(chance.randrange(1, len(living))))
                    gone[-1].connector.shutdown()
                else:
                    zookeeper.expire(chance.choice(living).connector._session.store)
                if chance.random() < 0.5:
                    place.wait(lambda: is_owned_by(place, living))
        place.wait(lambda: set(read_by(*living, *gone)) >= sending.values)


def test_reading_goes_on_while_zookeeper_is_away(own: tuple[Place, ZooKeeperProcess]) -> None:
    place, server = own
    with place.reading(auto_commit_interval_ms=50) as first, place.reading(auto_commit_interval_ms=50) as second:
        place.wait(lambda: place.is_shared_by(first.connector, second.connector))
        server.stop()
        values = place.send(200)
        place.wait(lambda: set(read_by(first, second)) >= values)
        server.start()
        place.wait(lambda: place.is_shared_by(first.connector, second.connector))
        values |= place.send(200)
        place.wait(lambda: set(read_by(first, second)) >= values)
        place.wait(lambda: sum(place.offsets().values()) == 400)
        with place.reading() as third:
            place.wait(lambda: place.is_shared_by(first.connector, second.connector, third.connector))


# --- lies -------------------------------------------------------------------------------------------------


def prepare(place: Place, *names: str) -> None:
    for name in ("", "/ids", "/owners", f"/owners/{place.topic}", "/offsets", f"/offsets/{place.topic}", *names):
        place.tree.create(f"/consumers/{place.group}{name}")


def test_a_partition_that_somebody_keeps_is_named_and_nothing_else_is_taken(place: Place) -> None:
    prepare(place)
    place.tree.create(path(place, 2), b"somebody")
    with place.connector(rebalance_max_retries=2) as connector:
        with pytest.raises(ConsumerRebalanceFailed, match=f"{place.topic}-2 is owned by somebody"):
            connector.create_message_streams({place.topic: 1})
        assert set(place.owners()) == {2}, "what was claimed besides is not let go of"
    place.tree.delete(path(place, 2))
    with place.reading() as first:
        place.wait(lambda: place.is_shared_by(first.connector))


def test_a_member_goes_on_trying_after_it_has_its_streams(place: Place) -> None:
    prepare(place)
    values = place.send(40)
    with place.reading(rebalance_max_retries=1) as first:
        place.wait(lambda: place.is_shared_by(first.connector))
        place.admin.create_partitions(place.topic, PARTITIONS + 1)
        place.tree.create(path(place, PARTITIONS + 1), b"somebody")
        place.admin.create_partitions(place.topic, PARTITIONS + 2)
        more = place.send(40)
        place.wait(lambda: PARTITIONS + 1 in place.owners() and place.owners()[PARTITIONS + 1] == "somebody")
        place.tree.delete(path(place, PARTITIONS + 1))
        place.wait(lambda: set(first.values) >= values | more)


@pytest.mark.parametrize("data", [b"", b"rubbish", b'{"pattern":"static","subscription":{"t":-1}}', b"\xff"])
def test_a_member_that_cannot_be_understood_is_named(place: Place, data: bytes) -> None:
    prepare(place, "/ids/liar")
    place.tree.set(f"/consumers/{place.group}/ids/liar", data)
    with (
        place.connector(rebalance_max_retries=2) as connector,
        pytest.raises(ConsumerRebalanceFailed, match=f"/consumers/{place.group}/ids/liar"),
    ):
        connector.create_message_streams({place.topic: 1})
    assert place.owners() == {}


@pytest.mark.parametrize("data", [b"", b"rubbish", b"9" * 40])
def test_an_offset_that_is_none_is_named(place: Place, data: bytes) -> None:
    prepare(place)
    place.tree.create(f"/consumers/{place.group}/offsets/{place.topic}/1", data)
    with (
        place.connector(rebalance_max_retries=1) as connector,
        pytest.raises(ConsumerRebalanceFailed, match=f"offsets/{place.topic}/1"),
    ):
        connector.create_message_streams({place.topic: 1})
    assert place.owners() == {}


def test_a_topic_that_cannot_be_understood_is_named(place: Place) -> None:
    name = f"liar-{place.number}"
    place.tree.create(f"/brokers/topics/{name}", b'{"partitions":[]}')
    with (
        place.connector(rebalance_max_retries=1) as connector,
        pytest.raises(ConsumerRebalanceFailed, match=f"/brokers/topics/{name}"),
    ):
        connector.create_message_streams({name: 1})
    place.tree.delete(f"/brokers/topics/{name}")


def test_an_id_that_somebody_deletes_is_registered_again(place: Place) -> None:
    with place.reading() as first:
        place.wait(lambda: place.is_shared_by(first.connector))
        place.tree.delete(f"/consumers/{place.group}/ids/{first.connector.consumer_id}")
        place.wait(lambda: place.tree.children(f"/consumers/{place.group}/ids") == [first.connector.consumer_id])
        values = place.send(40)
        place.wait(lambda: set(first.values) >= values)
