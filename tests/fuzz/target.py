"""What a target is: a function of bytes that lets nothing out but what its docstring promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
LONG = 70_000
"""Bytes of an input in which a field can be longer than 16 bits can say."""


def nothing() -> Iterable[bytes]:
    return ()


@dataclass(frozen=True)
class Target:
    """`feed` raises whatever is a finding. `seeds` are inputs to begin with, made rather than kept."""

    name: str
    feed: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]] = nothing
    max_size: int = 4096
    share: int = 1
    """Of the time of a run."""
    change: Callable[[bytes, Random], bytes] | None = None
    """Changes an input as no flip of bits would."""

    @property
    def corpus_path(self) -> Path:
        return CORPUS / f"{self.name}.hex"

    def corpus(self) -> Iterator[bytes]:
        """The kept inputs: a line each, as hex; what follows a # is for people."""
        for path in (self.corpus_path, CORPUS / f"{self.name}-recorded.hex"):
            for line in path.read_text().splitlines() if path.exists() else ():
                if text := line.partition("#")[0].strip():
                    yield bytes.fromhex(text)

    def inputs(self) -> Iterator[bytes]:
        yield from self.seeds()
        yield from self.corpus()
