"""An input as the decisions of a program."""

from __future__ import annotations

from typing import Any

from kbroker.protocol.api import SERVED, ApiKey

WILD = [0, 1, -1, 2, 127, -128, 32767, -32768, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]


class Program:
    """The bytes of the input, one decision after the other; zeros when it is over."""

    def __init__(self, data: bytes):
        self.data = data
        self.at = 0

    @property
    def is_over(self) -> bool:
        return self.at >= len(self.data)

    def byte(self) -> int:
        value = self.data[self.at] if self.at < len(self.data) else 0
        self.at += 1
        return value

    def short(self) -> int:
        return self.byte() << 8 | self.byte()

    def bytes(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        self.at += size
        return found + b"\0" * (size - len(found))

    def pick(self, choices: list[Any]) -> Any:
        return choices[self.byte() % len(choices)]

    def number(self, right: int, bits: int) -> int:
        """Mostly what is right; else near it, or far off."""
        how = self.byte()
        if how < 160:
            return right
        wrong = right + how - 200 if how < 240 else int(self.pick(WILD))
        return max(-(1 << bits - 1), min((1 << bits - 1) - 1, wrong))

    def version(self, key: ApiKey) -> int:
        low, high = SERVED[key].min, SERVED[key].max
        return low + self.byte() % (high - low + 1)
