from typing_extensions import Buffer

from kbroker._core.client.pump import Engine

class ProbeEngine(Engine):
    @property
    def turns(self) -> int: ...
    @property
    def opened(self) -> int: ...
    @property
    def closed(self) -> int: ...
    def send(
        self,
        node_id: int,
        api_key: int,
        api_version: int,
        frame: Buffer,
        timeout_ms: int,
        *,
        number: int = 0,
        pieces: int = 1,
        silent: bool = False,
    ) -> None: ...
    def ask_turn(self, due_ms: int) -> None: ...
    def wake(self) -> None: ...
    def take(self) -> list[tuple[int, bytes | None, str | None]]: ...
