from collections.abc import Iterable
from typing import Any, ClassVar, Self, dataclass_transform

from typing_extensions import Buffer

@dataclass_transform(kw_only_default=True, eq_default=True)
class Struct:
    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __eq__(self, other: object, /) -> bool: ...

class Message(Struct):
    API_KEY: ClassVar[int | None]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_FROM: ClassVar[int | None]
    def encode(self, version: int) -> bytes: ...
    @classmethod
    def decode(cls, body: Buffer, version: int) -> Self: ...
    @classmethod
    def decode_prefix(cls, body: Buffer, version: int) -> tuple[Self, int]: ...

def lazily[T](count: int, items: Iterable[T]) -> list[T]: ...
def make_message(name: str, schema: list[Any], module: str) -> type[Message]: ...
