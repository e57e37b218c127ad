"""Whether all replicas of a partition have the same bytes, by their files."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

HEAD = struct.Struct(">qi")
"""A batch begins with its base offset and the size of what follows."""
OFFSET_DELTA = 23
"""Where a batch has the last of its records' offsets, less its base offset."""


class Batch(NamedTuple):
    """A stored batch."""

    base_offset: int
    next_offset: int
    data: bytes


def batches(partition: Path) -> Iterator[Batch]:
    """Yield the batches of a partition's directory in order. What a running broker is writing just now is left out."""
    for file in sorted(partition.glob("*.log")):
        data = file.read_bytes()
        at = 0
        while at + HEAD.size + OFFSET_DELTA <= len(data):
            base_offset, size = HEAD.unpack_from(data, at)
            whole = data[at : at + HEAD.size + size]
            if size <= 0 or len(whole) < HEAD.size + size:
                break
            (delta,) = struct.unpack_from(">i", whole, OFFSET_DELTA)
            yield Batch(base_offset, base_offset + delta + 1, whole)
            at += HEAD.size + size


def differences(replicas: Mapping[int, Path], name: str, *, is_compacted: bool = False) -> list[str]:
    """Return how the replicas of a partition differ; `replicas` maps broker ids to the partition's directories.

    Each replica must end at the same offset, and from the latest log start on each has the same batches. Compaction
    goes on at another time at each replica: of a compacted partition only the ends are compared.
    """
    found = {node_id: list(batches(folder)) for node_id, folder in replicas.items()}
    wrong = []
    for node_id, stored in found.items():
        for before, after in pairwise(stored):
            if after.base_offset < before.next_offset or (not is_compacted and after.base_offset != before.next_offset):
                wrong.append(f"{name} on {node_id}: {after.base_offset} comes after {before.next_offset - 1}")
    ends = {node_id: stored[-1].next_offset if stored else 0 for node_id, stored in found.items()}
    if len(set(ends.values())) > 1:
        wrong.append(f"{name} ends differ: {ends}")
    if is_compacted or not all(found.values()):
        return wrong
    start = max(stored[0].base_offset for stored in found.values())
    end = min(ends.values())
    first, *others = [
        (node_id, [one for one in stored if start <= one.base_offset < end]) for node_id, stored in found.items()
    ]
    for node_id, stored in others:
        for ours, theirs in zip(first[1], stored, strict=False):
            if ours != theirs:
                wrong.append(
                    f"{name} at {ours.base_offset} on {first[0]}, {theirs.base_offset} on {node_id}: not the same batch"
                )
                break
        else:
            if len(first[1]) != len(stored):
                wrong.append(f"{name}: {len(first[1])} batches on {first[0]}, {len(stored)} on {node_id}")
    return wrong
