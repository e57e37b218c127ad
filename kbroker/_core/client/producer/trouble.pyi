from collections.abc import Callable
from typing import NamedTuple

from kbroker._core.client.producer.engine import ProduceEngine

class TroubledBatch(NamedTuple):
    error: int
    refusal: int
    text: str | None
    record_count: int
    attempts: int
    base_sequence: int
    age_ms: int
    leader: int
    leader_epoch: int

class Trouble:
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def batches(self) -> list[TroubledBatch]: ...
    def __init__(self) -> None: ...
    def resend(self, after_ms: int = 0, *, renumber: bool = False) -> None: ...
    def fail(self, error: BaseException, count: int = ...) -> None: ...
    def split(self, inflate: Callable[[int, bytes], bytes] | None = None) -> bool: ...

def troubles(engine: ProduceEngine) -> list[Trouble]: ...
