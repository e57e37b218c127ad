"""The checker of transactions finds a planted fault of each kind, and nothing in a history without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kit.crash.transaction_history import KINDS, History, OffsetRead, Outcome, Poll, Sent, Transaction, anomalies

A, B, OUT = ("in", 0), ("in", 1), ("out", 0)


class Story:
    """A history that is told step by step. Every step takes one unit of time."""

    def __init__(self) -> None:
        self.history = History()
        self.now = 0
        self.stretches: dict[str, int] = {}

    def tick(self) -> int:
        self.now += 1
        return self.now

    def begin(self, name: str, client: str = "writer") -> Transaction:
        transaction = Transaction(name, client, outcome=Outcome.ABORTED)  # as long as no commit is asked for
        self.history.transactions.append(transaction)
        return transaction

    def send(self, transaction: Transaction, place: tuple[str, int], value: str, offset: int | None) -> Sent:
        sent = Sent(place, value, self.tick(), None if offset is None else self.tick(), offset)
        transaction.sent.append(sent)
        return sent

    def use(self, transaction: Transaction, place: tuple[str, int], offset: int, value: str) -> None:
        transaction.group = "movers"
        transaction.consumed.append((place, offset, value))
        transaction.offsets[place] = offset + 1

    def commit(self, transaction: Transaction, is_told: bool = True) -> None:
        transaction.commit_asked = self.tick()
        transaction.outcome = Outcome.COMMITTED if is_told else Outcome.UNKNOWN
        transaction.told = self.tick() if is_told else None

    def poll(self, client: str, *records: tuple[tuple[str, int], int, str], is_committed: bool = True) -> Poll:
        stretch = self.stretches.get(client, 0)
        poll = Poll(client, stretch, self.tick(), self.tick(), list(records), is_committed)
        self.history.polls.append(poll)
        return poll

    def seek(self, client: str) -> None:
        self.stretches[client] = self.stretches.get(client, 0) + 1

    def ask_offset(self, place: tuple[str, int], offset: int) -> OffsetRead:
        read = OffsetRead("movers", place, offset, self.tick(), self.tick())
        self.history.offset_reads.append(read)
        return read

    def found(self) -> list[str]:
        return [one.kind for one in anomalies(self.history)]


def good() -> Story:
    """Two writers commit and abort, a mover makes one output of two inputs, readers read all of it, some twice."""
    story = Story()
    first, aborted, second = story.begin("t1"), story.begin("t2", "other"), story.begin("t3")
    story.send(first, A, "a1", 0)
    story.send(aborted, A, "x1", 1)
    story.send(first, B, "b1", 0)
    story.commit(first)
    story.send(second, A, "a2", 4)
    story.send(second, A, "a3", 5)
    story.commit(second, is_told=False)
    story.poll("dirty reader", (A, 0, "a1"), (A, 1, "x1"), is_committed=False)
    story.poll("reader", (A, 0, "a1"), (B, 0, "b1"))
    story.poll("reader", (A, 4, "a2"))
    story.ask_offset(A, -1)
    mover = story.begin("m1", "mover")
    story.use(mover, A, 0, "a1")
    story.use(mover, A, 4, "a2")
    story.send(mover, OUT, "o1", 0)
    story.commit(mover)
    story.ask_offset(A, 5)
    story.seek("reader")
    story.poll("reader", (A, 0, "a1"), (A, 4, "a2"), (A, 5, "a3"), (B, 0, "b1"), (OUT, 0, "o1"))
    story.history.read_to_end = {A, B, OUT}
    return story


def transaction(story: Story, name: str) -> Transaction:
    (found,) = [one for one in story.history.transactions if one.name == name]
    return found


def last_poll(story: Story) -> Poll:
    return story.history.polls[-1]


def lose_a_write(story: Story) -> None:
    lost = story.begin("t4")
    story.send(lost, B, "b9", None)
    story.commit(lost)


def lose_a_write_behind_a_reader(story: Story) -> None:
    """A lost write is found without reading to the end, if its producer was told an offset below what was read."""
    story.history.read_to_end = set()
    lost = story.begin("t4", "third")
    story.send(lost, A, "a9", 2)
    story.commit(lost)
    lost.sent[0].asked, lost.sent[0].told = transaction(story, "t3").sent[0].asked, None  # the order in time is right


def tear(story: Story) -> None:
    """Tear the transaction t3, whose end nobody was told: a3 is there, its other half in B is not."""
    story.send(transaction(story, "t3"), B, "b3", 3)


def read_aborted(story: Story) -> None:
    story.seek("reader")
    story.poll("reader", (A, 1, "x1"))


def read_early(story: Story) -> None:
    story.history.polls[1].ended = (transaction(story, "t1").commit_asked or 0) - 1


def read_what_nobody_sent(story: Story) -> None:
    story.poll("reader", (OUT, 7, "?"))


def double(story: Story) -> None:
    story.poll("reader", (A, 9, "a3"))


def put_two_at_one_offset(story: Story) -> None:
    aborted = story.begin("t4", "third")
    sent = story.send(aborted, A, "a9", 4)
    sent.asked, sent.told = transaction(story, "t3").sent[0].asked, None  # the order in time is another kind


def reorder(story: Story) -> None:
    """Read a2 behind a3, though the writer sent it first. What the writer was told is removed."""
    for sent in transaction(story, "t3").sent:
        sent.told = sent.offset = None
    story.history.polls.remove(story.history.polls[2])
    last_poll(story).records[1:3] = [(A, 4, "a3"), (A, 5, "a2")]
    transaction(story, "m1").consumed[1] = (A, 4, "a3")


def send_backwards(story: Story) -> None:
    """Give two values of an aborted transaction falling offsets. Nobody reads them, but the producer was told."""
    aborted = story.begin("t4", "third")
    story.send(aborted, B, "b8", 8)
    story.send(aborted, B, "b7", 7)
    aborted.sent[0].told = None  # the order in time is another kind


def poll_backwards(story: Story) -> None:
    story.poll("reader", (B, 0, "b1"))


def skip(story: Story) -> None:
    story.poll("another", (A, 0, "a1"), (A, 5, "a3"))


def skip_uncommitted(story: Story) -> None:
    story.poll("dirty", (A, 0, "a1"), (A, 5, "a3"), is_committed=False)


def write_in_a_circle(story: Story) -> None:
    """Place a producer's value before another's that was acknowledged before the first one was sent."""
    for name, client, offset in (("t4", "third", 9), ("t5", "fourth", 8)):
        story.send(story.begin(name, client), A, name, offset)


def read_in_a_circle(story: Story) -> None:
    for name, place, value, source in (("m2", ("p", 0), "p1", "q1"), ("m3", ("q", 0), "q1", "p1")):
        made = story.begin(name, name)
        made.consumed = [(("q" if place[0] == "p" else "p", 0), 0, source)]
        story.send(made, place, value, 0)
        story.commit(made)


def use_twice(story: Story) -> None:
    again = story.begin("m2", "mover 2")
    story.use(again, A, 4, "a2")
    story.send(again, OUT, "o2", 2)
    story.commit(again)
    story.poll("reader", (OUT, 2, "o2"))


def miss_an_input(story: Story) -> None:
    del transaction(story, "m1").consumed[0]


def keep_an_aborted_offset(story: Story) -> None:
    aborted = story.begin("m2", "mover")
    story.use(aborted, A, 5, "a3")
    story.ask_offset(A, 6)


def tell_an_offset_early(story: Story) -> None:
    read = story.ask_offset(A, 5)
    read.began = read.ended = (transaction(story, "m1").commit_asked or 0) - 1


def lose_an_offset(story: Story) -> None:
    story.ask_offset(A, -1)


def stay_undecided(story: Story) -> None:
    story.history.undecided[A] = (6, 8)


PLANTED: dict[Callable[[Story], None], str] = {
    lose_a_write: "lost write",
    lose_a_write_behind_a_reader: "lost write",
    tear: "torn transaction",
    read_aborted: "aborted read (G1a)",
    read_early: "intermediate read (G1b)",
    read_what_nobody_sent: "foreign value",
    double: "duplicate",
    put_two_at_one_offset: "inconsistent offset",
    reorder: "reordering",
    send_backwards: "non-monotonic send",
    poll_backwards: "non-monotonic poll",
    skip: "skipped record",
    skip_uncommitted: "skipped record",
    write_in_a_circle: "write cycle (G0)",
    read_in_a_circle: "circular reads (G1c)",
    use_twice: "doubled input",
    miss_an_input: "missed input",
    keep_an_aborted_offset: "aborted offset",
    tell_an_offset_early: "intermediate offset",
    lose_an_offset: "lost offset",
    stay_undecided: "hanging transaction",
}


def test_a_history_without_a_fault_has_no_anomaly() -> None:
    assert anomalies(good().history) == []


def test_an_old_offset_is_borne_only_while_a_kafka_coordinates_its_group_and_may_be_cut_off() -> None:
    story = good()
    lose_an_offset(story)
    read = story.history.offset_reads[-1]
    story.history.unheard = {"movers": [(read.began, read.ended)]}
    assert anomalies(story.history) == []
    story.history.unheard = {"movers": [(0, read.began - 1), (read.ended + 1, read.ended + 2)]}
    assert set(story.found()) == {"lost offset"}
    story.history.unheard = {"others": [(read.began, read.ended)]}
    assert set(story.found()) == {"lost offset"}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_and_nothing_else(plant: Callable[[Story], None]) -> None:
    story = good()
    plant(story)
    assert set(story.found()) == {PLANTED[plant]}, anomalies(story.history)


def test_a_fault_of_every_kind_is_planted() -> None:
    assert set(PLANTED.values()) == set(KINDS)


def test_who_saw_one_value_knows_that_all_are_committed() -> None:
    """If no value of a transaction was seen, none is committed, so that its input is no doubled input."""
    story = good()
    unknown = story.begin("m2", "mover 2")
    story.use(unknown, A, 4, "a2")
    story.send(unknown, OUT, "o2", None)
    story.commit(unknown, is_told=False)
    assert story.found() == []
    story.poll("reader", (OUT, 2, "o2"))
    assert story.found() == ["doubled input"]
