from typing import Any, final

from kbroker._core.rows.typed_columns import BinaryRows, TypedColumns

@final
class JsonRows(TypedColumns):
    def __init__(self, spec: tuple[Any, ...]) -> None: ...
    def decode(self, values: BinaryRows) -> None: ...
