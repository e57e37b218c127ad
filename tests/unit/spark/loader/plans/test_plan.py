"""Where loads begin and end, as the brokers change meanwhile."""

from __future__ import annotations

from kbroker.model import TopicPartition
from kbroker.spark.loader.commits.commit import Commit, TopicState
from kbroker.spark.loader.plans.brokers import Partitions
from kbroker.spark.loader.plans.plan import beginnings
from kbroker.spark.loader.settings import CONTINUE

PLACE = TopicPartition("t", 0)


def partitions(start: int, end: int) -> Partitions:
    return Partitions({"t": "id"}, {PLACE: start}, {PLACE: end}, {PLACE: end}, 1)


def commit(next_offset: int) -> Commit:
    return Commit(1, "run", 1, {"t": TopicState("id")}, {PLACE: next_offset}, {})


def test_what_retention_takes_behind_the_end_of_a_load_is_lost_once() -> None:
    """The next round found it gone, the one after it before the end, and so on for ever."""
    found = partitions(100, 105).up_to(partitions(50, 90))
    begun = beginnings(commit(60), found, {}, CONTINUE)
    assert begun.lost == ("t-0: offsets 60 to 99 are deleted",)
    assert begun.starts == {PLACE: 100}
    again = beginnings(commit(100), found, {}, CONTINUE)
    assert again.lost == ()
    assert again.starts == {PLACE: 100}
