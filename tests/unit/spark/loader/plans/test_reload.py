"""Where a reload begins, and which files it replaces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.model import TopicPartition
from kbroker.spark.loader.commits.commit import LakeFile, Part
from kbroker.spark.loader.plans.reload import reload_from

PLACES = [TopicPartition("t", partition) for partition in range(3)]


def lake_file(name: str, *parts: tuple[int, int, int]) -> LakeFile:
    return LakeFile(name, "", "t", 0, 0, 0, 0, 0, tuple(Part(*part, 0) for part in parts))


@st.composite
def lakes(draw: st.DrawFn) -> list[LakeFile]:
    """Loads one after the other: each has a range of some partitions, whose offsets are shared out to a few files."""
    files: list[LakeFile] = []
    at = [0, 0, 0]
    for load in range(draw(st.integers(1, 4))):
        hours: list[dict[int, list[int]]] = [{}, {}]
        for partition in range(3):
            for _ in range(draw(st.integers(0, 4))):
                hours[draw(st.integers(0, 1))].setdefault(partition, []).append(at[partition])
                at[partition] += draw(st.integers(1, 2))
        for hour, of in enumerate(hours):
            if draw(st.booleans()):
                found = [(partition, offsets[0], offsets[-1]) for partition, offsets in of.items()]
                files += [lake_file(f"{load}-{hour}", *found)] if found else []
            else:
                files += [lake_file(f"{load}-{hour}-{p}", (p, o[0], o[-1])) for p, o in of.items()]
    return files


OFFSETS = st.fixed_dictionaries({place: st.integers(0, 30) for place in PLACES})


@given(lakes(), OFFSETS, OFFSETS)
def test_a_reload_replaces_whole_files_that_the_brokers_have(
    files: list[LakeFile], wanted: dict[TopicPartition, int], first: dict[TopicPartition, int]
) -> None:
    starts, removed = reload_from(files, wanted, first)
    assert starts.keys() == wanted.keys()
    for place in PLACES:
        assert starts[place] >= first[place]
    for file in files:
        for part in file.parts:
            start = starts[TopicPartition("t", part.partition)]
            if file.path in removed:
                assert part.first >= start  # all of it is read again
            else:
                assert part.last < start  # and nothing of the others
    held = any(part.first < first[TopicPartition("t", part.partition)] for file in files for part in file.parts)
    if not held:
        assert all(starts[place] <= max(wanted[place], first[place]) for place in PLACES)


def test_it_begins_at_the_files_that_are_cut_by_the_time() -> None:
    files = [
        lake_file("a", (0, 0, 9)),
        lake_file("b", (0, 10, 18)),
        lake_file("c", (0, 11, 19)),
        lake_file("d", (0, 20, 29)),
    ]
    wanted = {PLACES[0]: 15}
    assert reload_from(files, wanted, {PLACES[0]: 0}) == ({PLACES[0]: 10}, ("b", "c", "d"))
    assert reload_from(files, wanted, {PLACES[0]: 12}) == ({PLACES[0]: 20}, ("d",))


def test_partitions_of_one_file_go_together() -> None:
    files = [lake_file("a", (0, 0, 9), (1, 0, 9)), lake_file("b", (0, 10, 19)), lake_file("c", (1, 10, 19))]
    wanted = {PLACES[0]: 5, PLACES[1]: 15}
    assert reload_from(files, wanted, {PLACES[0]: 0, PLACES[1]: 0}) == ({PLACES[0]: 0, PLACES[1]: 0}, ("a", "b", "c"))
    assert reload_from(files, wanted, {PLACES[0]: 0, PLACES[1]: 1}) == ({PLACES[0]: 10, PLACES[1]: 10}, ("b", "c"))
