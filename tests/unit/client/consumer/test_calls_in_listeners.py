"""What a RebalanceListener may call: everything but what waits for the poll that it is called in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kbroker.client import AsyncConsumer, ClientClosed, RebalanceListener
from kbroker.client.consumer.consumer import Consumer
from kbroker.model import TopicPartition
from tests.unit.client.consumer.conftest import MakeMembers

protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])
occasions = pytest.mark.parametrize("occasion", ["assigned", "revoked"])


class Calling(RebalanceListener):
    """Calls something once, on one occasion."""

    def __init__(self, occasion: str, call: Callable[[], Any]):
        self.occasion = occasion
        self.call = call
        self.heard: list[str] = []

    def _hear(self, occasion: str) -> Any:
        self.heard.append(occasion)
        return self.call() if self.heard.count(self.occasion) == 1 and occasion == self.occasion else None

    def on_assigned(self, partitions: list[TopicPartition]) -> Any:
        return self._hear("assigned")

    def on_revoked(self, partitions: list[TopicPartition]) -> Any:
        return self._hear("revoked")


@protocols
@occasions
@pytest.mark.parametrize("outer", [Consumer.unsubscribe, Consumer.close])
def test_a_listener_may_close_its_consumer(
    members_of: MakeMembers, protocol: str, occasion: str, outer: Callable[[Consumer], None]
) -> None:
    members = members_of(1)
    listener = Calling(occasion, lambda: consumer.close())
    consumer = members.join(listener, group_protocol=protocol)
    members.poll_until(lambda: listener.heard)
    if occasion == "revoked":
        outer(consumer)
    assert listener.heard == ["assigned", "revoked"]
    with pytest.raises(ClientClosed):
        consumer.poll(0.0)
    successor = members.join(group_protocol=protocol)
    members.alive.remove(consumer)
    members.poll_until(lambda: len(successor.assignment()) == 1)


@protocols
@occasions
@pytest.mark.parametrize("outer", [AsyncConsumer.unsubscribe, AsyncConsumer.close])
def test_a_listener_may_close_its_consumer_with_asyncio(
    members_of: MakeMembers, protocol: str, occasion: str, outer: Callable[[AsyncConsumer], Coroutine[Any, Any, None]]
) -> None:
    members = members_of(1)

    async def run() -> None:
        listener = Calling(occasion, lambda: consumer.close())
        consumer = AsyncConsumer(
            bootstrap_servers=f"127.0.0.1:{members.broker.port}", group_id=members.group_id, group_protocol=protocol
        )
        await consumer.subscribe(members.topic, listener)
        while not listener.heard:
            await consumer.poll(0.05)
        if occasion == "revoked":
            await outer(consumer)
        assert listener.heard == ["assigned", "revoked"]
        with pytest.raises(ClientClosed):
            await consumer.poll(0.0)

    asyncio.run(run())


@protocols
@occasions
def test_a_listener_may_commit_poll_and_unsubscribe(members_of: MakeMembers, protocol: str, occasion: str) -> None:
    members = members_of(1)
    members.append(0, [b"0"])

    def everything() -> None:
        consumer.commit()
        consumer.poll(0.0)
        consumer.unsubscribe()

    listener = Calling(occasion, everything)
    consumer = members.join(listener, group_protocol=protocol)
    members.poll_until(lambda: listener.heard)
    consumer.unsubscribe()
    assert listener.heard == ["assigned", "revoked"]
    assert consumer.assignment() == []
    consumer.subscribe(members.topic)
    members.poll_until(lambda: members.values() == [b"0"])
