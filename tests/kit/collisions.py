"""Numbers that meet in one place of a table: what a request names when it wants its reader to search for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from time import thread_time

import numpy as np

COUNT = 21_800
"""Fills a dict of `SLOTS` before it grows: it has at most two thirds of them."""
SLOTS = 1 << 15
PLAIN = range(1 << 20, (1 << 20) + COUNT)
"""As many numbers of the same size that do not meet."""
ROTATION = 31
WORD = 1 << 64
PRIMES = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x27D4EB2F165667C5
"""Of the hash of tuples (xxHash)."""


@cache
def colliding_in_a_dict() -> tuple[int, ...]:
    """So many int32 that a dict of them takes the square of their number: an int is its own hash.

    A key that meets others goes from place to place, first by the bits of its hash, then along a cycle, 5i + 1. Half of
    the numbers fill a run of the cycle; the others begin at its first quarter when their bits are used up.
    """
    half = COUNT // 2
    on_cycle = np.empty(SLOTS, dtype=np.int64)
    run = []
    at = 1
    for step in range(SLOTS):
        on_cycle[at] = step
        run.append(at)
        at = (5 * at + 1) % SLOTS
    keys = np.arange(SLOTS, 1 << 24)
    bits, places = keys, keys % SLOTS
    while len(keys):
        meets = on_cycle[places] < half
        keys, bits, places = keys[meets], bits[meets], places[meets]
        if not bits.any():
            break
        bits = bits >> 5
        places = (places * 5 + bits + 1) % SLOTS
    late = keys[on_cycle[places] < half // 2][: COUNT - half].tolist()
    assert len(late) == COUNT - half
    return (*run[:half], *late)


def triples_of_one_hash(count: int) -> list[tuple[int, int, int]]:
    """An int64, an int16 and an int32 each; a tuple that begins with one triple has the hash of one with any other."""
    backwards = [pow(prime, -1, WORD) for prime in PRIMES[:2]]

    def before(mixed: int, lane: int) -> int:
        turned = mixed * backwards[0] % WORD
        return ((turned >> ROTATION | turned << 64 - ROTATION) - lane * PRIMES[1]) % WORD

    found: list[tuple[int, int, int]] = []
    third = 0
    while len(found) < count:
        for second in range(1 << 15):
            first = (before(before(before(1, third), second), 0) - PRIMES[2]) * backwards[1] % WORD
            if first < 2**61 - 1:  # it is its own hash
                found.append((first, second, third))
        third += 1
    assert len({hash(triple) for triple in found}) == 1
    return found[:count]


def takes_as_long(act: Callable[[Sequence[int]], object]) -> bool:
    """Whether `act` takes about as long for numbers that meet as for others: else some twenty times that."""

    def shortest_of(numbers: Sequence[int]) -> float:
        times = []
        for _ in range(3):
            before = thread_time()
            act(numbers)
            times.append(thread_time() - before)
        return min(times)

    return shortest_of(colliding_in_a_dict()) < 4 * shortest_of(PLAIN)
