"""One line of the log for what is said of many partitions."""

from __future__ import annotations

from kbroker.model import TopicPartition
from kbroker.rules.partition_notes import MOST_NAMED, PartitionNotes


def test_partitions_of_one_text_are_in_one_line() -> None:
    notes = PartitionNotes()
    notes.add("away", TopicPartition("a", 0))
    notes.add("somebody has come")
    notes.add("damaged", TopicPartition("b", 1))
    notes.add("away", TopicPartition("a", 2))
    assert notes.take() == ["a-0, a-2: away", "somebody has come", "b-1: damaged"]
    assert notes.take() == []


def test_a_line_names_not_more_than_some() -> None:
    notes = PartitionNotes()
    for partition_id in range(MOST_NAMED + 30):
        notes.add("away", TopicPartition("a", partition_id))
    (line,) = notes.take()
    assert line.endswith(f"a-{MOST_NAMED - 1} and 30 more: away")
