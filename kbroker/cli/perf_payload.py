"""The values that `kbroker perf` sends: made before the clock runs, and used again and again."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from kbroker.errors import KbrokerError

DEFAULT_SIZE = 100
MADE_BYTES = 16 << 20
MADE_MESSAGES = 100_000  #: so many that no batch has a message twice, which would help the codecs
LETTERS = bytes(ord("A") + byte % 26 for byte in range(256))
SEED = 7


def values_of(arguments: argparse.Namespace) -> list[bytes]:
    """Return the lines of `--payload`, or values of random letters, `--size` bytes each, the same in each run.

    Raises KbrokerError if the file is empty, OSError if it cannot be read.
    """
    if arguments.payload is not None:
        data = Path(arguments.payload).read_bytes()
        lines = data.removesuffix(b"\n").split(b"\n") if data else []
        if not lines:
            raise KbrokerError(f"{arguments.payload}: it has no line, and so no message")
        return lines
    size = DEFAULT_SIZE if arguments.size is None else arguments.size
    source = random.Random(SEED)
    count = max(1, min(MADE_MESSAGES, MADE_BYTES // max(size, 1)))
    return [source.randbytes(size).translate(LETTERS) for _ in range(count)]


class Payload:
    """Hands out the values in turn."""

    def __init__(self, values: list[bytes], most: int):
        """`most`: the largest `count` of `next_values`."""
        self._count = len(values)
        # Repeated so often that `next_values` is one slice, wherever it begins.
        self._values = values * (-(-most // len(values)) + 1)
        self._next = 0

    def next_values(self, count: int) -> list[bytes]:
        first = self._next
        self._next = (first + count) % self._count
        return self._values[first : first + count]
