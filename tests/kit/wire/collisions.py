"""Numbers that collide in a hash table. A request that names them would make its reader search for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from time import thread_time

import numpy as np

COUNT = 21_800
"""As many numbers as a dict of `SLOTS` slots takes before it grows: two thirds of them."""
SLOTS = 1 << 15
PLAIN = range(1 << 20, (1 << 20) + COUNT)
"""As many numbers of the same size that do not collide."""
ROTATION = 31
WORD = 1 << 64
PRIMES = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x27D4EB2F165667C5
"""The primes of CPython's hash of tuples (xxHash)."""


@cache
def colliding_in_a_dict() -> tuple[int, ...]:
    """Return int32 numbers for which a dict takes time quadratic in their count, as an int is its own hash.

    A key that collides goes from place to place, first by the bits of its hash, then along the cycle 5i + 1. Half of
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
    """Return (int64, int16, int32) triples.

    Tuples that begin with different triples and end alike have the same hash.
    """
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
    """Whether `act` takes about as long for colliding numbers as for others.

    Else it takes about twenty times as long.
    """

    def shortest_of(numbers: Sequence[int]) -> float:
        times = []
        for _ in range(3):
            before = thread_time()
            act(numbers)
            times.append(thread_time() - before)
        return min(times)

    return shortest_of(colliding_in_a_dict()) < 4 * shortest_of(PLAIN)
