"""The table of partitions: nobody who chooses names chooses where they stand."""

from __future__ import annotations

from itertools import count, islice

from kbroker._core.log.directory import LogDirectory
from kbroker._core.log.partition_state import PartitionState
from kbroker._core.log.partition_table import PartitionTable
from kbroker.storage.options import LogOptions


def fnv_1a(name: bytes) -> int:
    value = 2166136261
    for byte in name:
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value ^ (value >> 15)


def test_names_that_meet_in_a_table_without_a_secret_stand_apart() -> None:
    meeting = (name for name in (f"t{number}" for number in count()) if fnv_1a(name.encode()) % 256 == 0)
    directory = LogDirectory("nowhere")
    partition_table = PartitionTable()
    states = [
        PartitionState(directory, name, 0, number.to_bytes(16, "big"), LogOptions())
        for number, name in enumerate(islice(meeting, 250))
    ]
    for state in states:
        partition_table.add(state)
    assert partition_table.longest_chain < 25
    for state in states:
        partition_table.remove(state)
    assert len(partition_table) == 0
