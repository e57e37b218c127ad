"""A whole broker in this process, for tests that look inside while a client talks to it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbroker.config.broker_config import load_config
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from kbroker.server.broker import Broker
from tests.kit.wire import WireClient


class WholeBroker:
    """A context manager: started, and stopped. `call` asks it over a connection that stays open."""

    def __init__(self, folder: Path, settings: dict[str, object] | None = None):
        given = {"listeners": "PLAINTEXT://127.0.0.1:0", "num.network.threads": 1, **(settings or {})}
        overrides = [f"{name}={value}" for name, value in given.items()]
        self.broker = Broker(load_config(None, overrides, folder, environment={}))

    @property
    def port(self) -> int:
        return self.broker.endpoints[0].port

    def call(self, api_key: ApiKey, version: int, message: Message) -> Any:
        return self.client.call(api_key, version, message)

    def __enter__(self) -> Self:
        self.broker.start()
        self.client = WireClient("127.0.0.1", self.port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.broker.stop()
