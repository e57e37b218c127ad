"""Deliveries that are awaited, in one event loop or several, of a producer of threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kbroker.client import Delivery, Producer
from kbroker.client.errors import BrokerError, ClientClosed
from kbroker.errors import ErrorCode
from tests.kit.brokers.produce import ProduceBroker

SECONDS = 30.0
Run = Callable[[Coroutine[Any, Any, Any]], Any]


def producer_of(broker: ProduceBroker, **options: Any) -> Producer:
    return Producer(bootstrap_servers=f"127.0.0.1:{broker.port}", retry_backoff_ms=1, **options)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts what other threads tell it."""

    told = 0

    def call_soon_threadsafe(self, *arguments: Any, **keywords: Any) -> asyncio.Handle:
        self.told += 1
        return super().call_soon_threadsafe(*arguments, **keywords)


async def waiting_for(*deliveries: Delivery) -> list[asyncio.Future[Delivery]]:
    """Tasks that have begun to await them."""
    tasks = [asyncio.ensure_future(delivery) for delivery in deliveries]
    loop = asyncio.get_running_loop()
    turned = loop.create_future()
    loop.call_soon(turned.set_result, None)
    await turned
    return tasks


def test_it_gives_itself_once_the_record_is_delivered(run: Run) -> None:
    async def main(producer: Producer) -> None:
        early = producer.send("t", b"a", partition=0)
        assert not early.done()
        assert await early is early
        assert early.offset == 0
        assert await early is early  # again, now that it is known

    with ProduceBroker() as broker, producer_of(broker, linger_ms=20) as producer:
        run(main(producer))


def test_it_raises_why_the_record_is_not_delivered(run: Run) -> None:
    async def main(producer: Producer) -> None:
        delivery = producer.send("t", b"a", partition=0)
        for _ in range(2):
            with pytest.raises(BrokerError) as refused:
                await delivery
            assert refused.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    with ProduceBroker() as broker, producer_of(broker) as producer:
        broker.fatal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        run(main(producer))


def test_a_loop_is_told_once_of_a_batch_with_many_who_wait(run: Run) -> None:
    async def main(producer: Producer) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        tasks = await waiting_for(*(producer.send("t", b"%d" % i, partition=0) for i in range(500)))
        loop.told = 0
        await asyncio.gather(*tasks)
        assert [task.result().offset for task in tasks] == list(range(500))
        assert loop.told == 1

    with ProduceBroker() as broker, producer_of(broker, linger_ms=500) as producer:
        producer.send("t", partition=1).result(SECONDS)  # all it needs is there
        with asyncio.Runner(loop_factory=CountingLoop) as runner:
            runner.run(asyncio.wait_for(main(producer), SECONDS))
        assert len(broker.logs["t", 0]) == 500
        assert broker.batches == 2


def test_those_of_a_batch_that_was_split_are_told_by_its_parts(run: Run) -> None:
    async def main(producer: Producer) -> None:
        deliveries = [producer.send("t", b"%d" % i, partition=0) for i in range(100)]
        many = producer.send_many("t", [b"%d" % i for i in range(100, 200)], partitions=0)
        assert await many == 200 - 100
        found = await asyncio.gather(*deliveries)
        assert [each.offset for each in found] == list(range(100))

    with ProduceBroker(largest_batch=200) as broker, producer_of(broker, linger_ms=50) as producer:
        producer.send("t", partition=1).result(SECONDS)
        run(main(producer))
        assert broker.logs["t", 0] == [b"%d" % i for i in range(200)]
        assert broker.batches > 20


def test_many_records_of_one_call_are_awaited_together_or_fail(run: Run) -> None:
    async def main(producer: Producer, broker: ProduceBroker) -> None:
        assert await producer.send_many("t", [b"x"] * 300) == 300
        broker.fatal = ErrorCode.INVALID_RECORD
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            await producer.send_many("t", [b"x"] * 300)

    with ProduceBroker() as broker, producer_of(broker, batch_size=500) as producer:
        run(main(producer, broker))
        assert sum(map(len, broker.logs.values())) == 300


def test_who_is_cancelled_leaves_the_others_and_the_record(run: Run) -> None:
    async def main(producer: Producer) -> None:
        one, other = await waiting_for(*(producer.send("t", b"x", partition=0) for _ in range(2)))
        one.cancel()
        assert (await other).offset == 1
        assert one.cancelled()

    with ProduceBroker() as broker, producer_of(broker, linger_ms=50) as producer:
        run(main(producer))
        assert broker.logs["t", 0] == [b"x", b"x"]


def test_a_loop_that_was_closed_meanwhile_harms_nobody(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with ProduceBroker() as broker, producer_of(broker, linger_ms=300) as producer:
        producer.send("t", partition=1).result(SECONDS)
        delivery = producer.send("t", b"x", partition=0)
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(waiting_for(delivery))[0]
        loop.close()
        assert delivery.result(SECONDS).offset == 0
        assert run(_awaited(delivery)).offset == 0
        assert not task.done()
        assert not [found for found in caplog.records if found.name.startswith(("kbroker", "concurrent"))]


async def _awaited(delivery: Delivery) -> Delivery:
    return await delivery


def test_several_loops_await_the_same_delivery(run: Run) -> None:
    with ProduceBroker() as broker, producer_of(broker, linger_ms=100) as producer:
        delivery = producer.send("t", b"x", partition=0)
        found: list[Delivery] = []
        threads = [threading.Thread(target=lambda: found.append(run(_awaited(delivery)))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert found == [delivery] * 4


def test_a_producer_that_is_closed_tells_who_waits(run: Run) -> None:
    async def main(broker: ProduceBroker) -> None:
        broker.silent = True
        producer = producer_of(broker)
        (task,) = await waiting_for(producer.send("t", b"x", partition=0))
        closing = threading.Thread(target=producer.close, args=[0.1])
        closing.start()
        with pytest.raises(ClientClosed):
            await task
        closing.join(SECONDS)

    with ProduceBroker() as broker:
        run(main(broker))
