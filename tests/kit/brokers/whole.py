"""A whole broker in this process, for tests that look inside while a client talks to it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbroker.config.broker_config import load_config
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from kbroker.protocol.records import encode_batch
from kbroker.server.broker import Broker
from kbroker.storage.log import Log
from tests.kit.clients.wire import WireClient


class WholeBroker:
    """A broker as a context manager. `call` sends it a request over a connection that stays open."""

    def __init__(self, folder: Path, settings: dict[str, object] | None = None):
        given = {"listeners": "PLAINTEXT://127.0.0.1:0", "num.network.threads": 1, **(settings or {})}
        overrides = [f"{name}={value}" for name, value in given.items()]
        data = None if "log.dirs" in given else folder
        self.broker = Broker(load_config(None, overrides, data, environment={}))

    @property
    def port(self) -> int:
        return self.broker.endpoints[0].port

    def call(self, api_key: ApiKey, version: int, message: Message) -> Any:
        return self.client.call(api_key, version, message)

    def create_topic(self, name: str, partitions: int) -> None:
        wanted = M.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        answer = self.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[wanted], timeout_ms=10_000))
        assert answer.topics[0].error_code == 0

    def log_of(self, topic: str, partition: int) -> Log:
        log = self.broker._logs.get(TopicPartition(topic, partition))
        assert log is not None
        return log

    def append(self, topic: str, partition: int, values: list[bytes], **options: Any) -> None:
        """Append one batch of records without keys, with timestamps from 1000 on.

        `options` are those of `encode_batch`.
        """
        batch = encode_batch([(1000 + place, None, value) for place, value in enumerate(values)], **options)
        data = M.ProduceRequest.PartitionProduceData(index=partition, records=batch)
        to = M.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        answer = self.call(ApiKey.PRODUCE, 7, M.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[to]))
        assert answer.responses[0].partition_responses[0].error_code == 0

    def __enter__(self) -> Self:
        self.broker.start()
        self.client = WireClient("127.0.0.1", self.port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.broker.stop()
