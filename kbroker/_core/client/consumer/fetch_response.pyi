from typing import Any

from typing_extensions import Buffer

def decode_fetch(version: int, body: Buffer) -> tuple[int, int, int, list[dict[str, Any]]]: ...
