"""Plans loading again from a point in time, in place of what is in the lake. No I/O.

Files are replaced whole. So a reload begins at that point, or as much before it as whole files need, but never where
the brokers no longer have all that is in the files that would be replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.model import TopicPartition
from kbroker.spark.loader.commits.commit import LakeFile
from kbroker.spark.options.offsets import Offsets

Spans = list[tuple[TopicPartition, int, int]]


def reload_from(
    files: Iterable[LakeFile], wanted: Mapping[TopicPartition, int], first: Offsets
) -> tuple[Offsets, tuple[str, ...]]:
    """Return where to begin again in the partitions of `wanted`, and the paths of the files that are replaced.

    `files`: the files of these topics' present generation. `wanted`: the offsets at the point in time. `first`: the
    first offsets that the brokers have.
    """
    spans = {file.path: _spans(file) for file in files}
    cuts = _Cuts(span for found in spans.values() for span in found)
    floor = {place: cuts.at_or_after(place, first[place]) for place in wanted}
    changed = True
    while changed:  # a file that has to stay keeps its other partitions from being loaded again, too
        changed = False
        for found in spans.values():
            if any(start < floor.get(place, start + 1) for place, start, _ in found):
                for place, _, last in found:
                    if place in floor and floor[place] <= last:
                        floor[place] = cuts.at_or_after(place, last + 1)
                        changed = True
    starts = {place: max(floor[place], cuts.at_or_before(place, offset)) for place, offset in wanted.items()}
    changed = True
    while changed:  # a file that goes is loaded again whole
        changed = False
        for found in spans.values():
            if _goes(found, starts):
                for place, start, _ in found:
                    if start < starts[place]:
                        starts[place] = cuts.at_or_before(place, start)
                        changed = True
    return starts, tuple(path for path, found in spans.items() if _goes(found, starts))


def _spans(file: LakeFile) -> Spans:
    return [(TopicPartition(file.topic, part.partition), part.first, part.last) for part in file.parts]


def _goes(spans: Spans, starts: Offsets) -> bool:
    return any(last >= starts.get(place, last + 1) for place, _, last in spans)


class _Cuts:
    """Finds offsets that divide no file. Files of several hours can span the same offsets."""

    def __init__(self, spans: Iterable[tuple[TopicPartition, int, int]]):
        self._merged: dict[TopicPartition, list[tuple[int, int]]] = {}
        for place, first, last in sorted(spans):
            merged = self._merged.setdefault(place, [])
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))

    def at_or_before(self, place: TopicPartition, offset: int) -> int:
        for first, last in self._merged.get(place, ()):
            if first < offset <= last:
                return first
        return offset

    def at_or_after(self, place: TopicPartition, offset: int) -> int:
        for first, last in self._merged.get(place, ()):
            if first < offset <= last:
                return last + 1
        return offset
