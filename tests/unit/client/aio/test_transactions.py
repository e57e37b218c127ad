"""Transactions of AsyncProducer, against kbroker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from uuid import uuid4

import pytest

from kbroker.client import AsyncProducer, ConsumerGroupMetadata, OffsetAndMetadata
from kbroker.client.errors import ClientClosed, TimedOut, UsageError
from kbroker.client.producer.errors import ProducerFenced
from kbroker.testing import Broker
from tests.kit.clients.transactions import PARTITIONS, QUICK, SECONDS, committed, committed_offset, new_id

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(inprocess=True, faults=True, settings={"num.partitions": PARTITIONS}) as started:
        yield started


@pytest.fixture
def topic(broker: Broker) -> str:
    broker.faults.clear()
    return f"t-{uuid4().hex[:8]}"


def producer_of(broker: Broker, name: str | None = None, **options: Any) -> AsyncProducer:
    given: dict[str, Any] = {"transactional_id": name or new_id(), **QUICK, **options}
    return AsyncProducer(bootstrap_servers=broker.bootstrap_servers, **given)


def values_of(broker: Broker, topic: str) -> list[str]:
    """What readers of committed records find."""
    return sorted(value for partition in committed(broker, topic) for value in partition)


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(run: Run, broker: Broker, topic: str) -> None:
    async def send(producer: AsyncProducer, task: int, round_: int) -> None:
        for partition in range(PARTITIONS):
            await producer.send(topic, f"{round_}.{task}.{partition}", partition=partition)

    async def main() -> None:
        async with producer_of(broker) as producer:
            await producer.init_transactions()
            for round_ in range(4):
                await producer.begin_transaction()
                await asyncio.gather(*(send(producer, task, round_) for task in range(3)))
                await (producer.abort_transaction() if round_ % 2 else producer.commit_transaction(SECONDS))

    run(main())
    expected = [f"{round_}.{task}.{part}" for round_ in (0, 2) for task in range(3) for part in range(PARTITIONS)]
    assert values_of(broker, topic) == sorted(expected)


def test_the_block_commits_or_aborts_and_offsets_go_with_it(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        group = ConsumerGroupMetadata(f"g-{topic}")
        async with producer_of(broker) as producer:
            await producer.init_transactions()
            async with producer.transaction() as same:
                assert same is producer
                await producer.send(topic, "kept")
                await producer.send_offsets_to_transaction({(topic, 0): OffsetAndMetadata(5)}, group)
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, "dropped")
                    await producer.send_offsets_to_transaction({(topic, 0): 9}, group)
                    raise ZeroDivisionError
            await producer.begin_transaction()
            with pytest.raises(ValueError, match="offset -1"):
                await producer.send_offsets_to_transaction({(topic, 0): -1}, group)
            with pytest.raises(TypeError, match="ConsumerGroupMetadata, not str"):
                await producer.send_offsets_to_transaction({(topic, 0): 1}, topic)  # type: ignore[arg-type]
            await producer.abort_transaction()

    run(main())
    assert values_of(broker, topic) == ["kept"]
    assert committed_offset(broker, topic) == 5


def test_a_task_that_is_cancelled_in_a_transaction_aborts_it(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with producer_of(broker) as producer:
            await producer.init_transactions()
            is_sent = asyncio.Event()

            async def work() -> None:
                async with producer.transaction():
                    await producer.send_and_wait(topic, "dropped")
                    is_sent.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await is_sent.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction():
                await producer.send(topic, "kept")

    run(main())
    assert values_of(broker, topic) == ["kept"]


def test_an_end_that_takes_too_long_goes_on_and_the_loop_with_it(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with producer_of(broker) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send(topic, "kept")
            broker.faults.delay("EndTxn", 0.5, times=1)
            with pytest.raises(TimedOut, match=r"commit_transaction took longer than 0\.05 s"):
                await producer.commit_transaction(0.05)
            with pytest.raises(UsageError, match="commit_transaction waits for it"):
                await producer.begin_transaction()
            ending = asyncio.create_task(producer.commit_transaction())
            turns = 0
            while not ending.done():
                await asyncio.wait([ending], timeout=0.01)
                turns += 1
            await ending
            assert turns > 1  # a loop that is blocked has one
            async with producer.transaction():
                await producer.send(topic, "too")

    run(main())
    assert values_of(broker, topic) == ["kept", "too"]


@pytest.mark.parametrize("timeout", [None, SECONDS])
def test_the_end_of_a_producer_aborts_what_is_open(run: Run, broker: Broker, topic: str, timeout: float | None) -> None:
    async def main() -> None:
        producer = producer_of(broker)
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send(topic, "kept")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, "dropped", partition=0)
        await producer.close(timeout)
        for call in (producer.init_transactions, producer.begin_transaction, producer.abort_transaction):
            with pytest.raises(ClientClosed):
                await call()

    run(main())

    # A transaction that was still open would hide what is written behind it.
    async def again() -> None:
        async with producer_of(broker) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send(topic, "behind", partition=0)

    run(again())
    assert values_of(broker, topic) == ["behind", "kept"]


def test_who_has_the_id_next_fences(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        name = new_id()
        async with producer_of(broker, name) as first, producer_of(broker, name) as second:
            await first.init_transactions()
            await first.begin_transaction()
            await first.send_and_wait(topic, "dropped")
            await second.init_transactions()
            with pytest.raises(ProducerFenced):
                await first.commit_transaction()
            async with second.transaction():
                await second.send(topic, "kept")

    run(main())
    assert values_of(broker, topic) == ["kept"]


def test_calls_out_of_order_are_refused(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with producer_of(broker) as producer:
            with pytest.raises(UsageError, match="init_transactions has to be called first"):
                await producer.begin_transaction()
            await producer.init_transactions()
            with pytest.raises(UsageError, match="begin_transaction has to be called first"):
                await producer.send(topic, "never")
            with pytest.raises(UsageError, match="begin_transaction has to be called first"):
                await producer.commit_transaction()
        async with AsyncProducer(bootstrap_servers=broker.bootstrap_servers) as plain:
            with pytest.raises(UsageError, match=r"no transactional\.id"):
                await plain.init_transactions()

    run(main())


@pytest.mark.parametrize("options", [{"producer.type": "sync"}, {"producer_type": "sync"}])
def test_a_producer_that_would_block_the_loop_is_refused(run: Run, broker: Broker, options: dict[str, str]) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match=r"producer\.type=sync would block the event loop"):
            AsyncProducer({"bootstrap.servers": broker.bootstrap_servers, **options})
        async with AsyncProducer({"bootstrap.servers": broker.bootstrap_servers, "producer.type": "async"}):
            pass

    run(main())
