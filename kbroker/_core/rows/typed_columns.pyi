from typing import Any, Final, final

from typing_extensions import Buffer

from kbroker._core.wire.columns import FlatBuffer

KINDS: Final[tuple[str, ...]]
REASONS: Final[tuple[str, ...]]

class TypedColumns:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def finish(self) -> tuple[tuple[Any, ...], tuple[FlatBuffer, FlatBuffer, FlatBuffer]]: ...

@final
class BinaryRows:
    def __init__(self, validity: Buffer | None, offsets: Buffer, data: Buffer | None, start: int,
                 count: int) -> None: ...
    def not_utf8(self) -> FlatBuffer: ...
