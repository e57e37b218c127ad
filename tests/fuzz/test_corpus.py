"""What the fuzzers have found so far, and a little more of the same: runs in every `make test`, in any build."""

from __future__ import annotations

import random
import time

import pytest

from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

MUTATING_S = 1.5
INTERESTING = [0, 1, 2, 0x7F, 0x80, 0xFF]
INTERESTING_WORDS = [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\xff\xff\xff\xff\x0f"]


def mutated(random_: random.Random, inputs: list[bytes], max_size: int) -> bytes:
    """One of `inputs` with a few changes."""
    data = bytearray(random_.choice(inputs))
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(data) + 1)
        match random_.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << random_.randrange(8)
            case 1 if data:
                data[at % len(data)] = random_.choice(INTERESTING)
            case 2:
                word = random_.choice(INTERESTING_WORDS)
                data[at : at + len(word)] = word
            case 3:
                del data[at : at + random_.randint(1, 8)]
            case 4:
                data[at:at] = random_.randbytes(random_.randint(1, 8))
            case 5:
                del data[at:]
            case _:
                other = random_.choice(inputs)
                data[at:] = other[random_.randrange(len(other) + 1) :]
    return bytes(data[:max_size])


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_nothing_gets_out_that_was_found_before(target: Target) -> None:
    for data in target.inputs():
        try:
            target.feed(data)
        except Exception as error:
            raise AssertionError(f"{target.name} on {data.hex()}") from error


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_nothing_gets_out_near_what_was_found_before(target: Target) -> None:
    random_ = random.Random(target.name)
    inputs = [b"", *target.inputs()]
    until = time.monotonic() + MUTATING_S
    while time.monotonic() < until:
        data = mutated(random_, inputs, target.max_size)
        if target.change is not None and random_.random() < 0.2:
            data = target.change(data, random_)[: target.max_size]
        try:
            target.feed(data)
        except Exception as error:
            raise AssertionError(f"{target.name} on {data.hex()}") from error
