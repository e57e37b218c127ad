from typing import Any, Final, final

from kbroker._core.typed_columns import BinaryRows, TypedColumns

STEPS: Final[tuple[str, ...]]

@final
class AvroRows(TypedColumns):
    def __init__(self, spec: tuple[Any, ...], framed: bool) -> None: ...
    def add(self, schema_id: int, plan: tuple[Any, ...] | None) -> None: ...
    def decode(self, values: BinaryRows) -> int | None: ...
