"""AsyncProducer against an obvious model of a broker, and against kbroker."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from kbroker.client import AsyncAdminClient, AsyncProducer, Consumer, ProducerHandler, QueuedRecord
from kbroker.client.aio.producer import TopicNotKnown
from kbroker.client.errors import BrokerError, ClientClosed, TimedOut
from kbroker.client.producer.errors import NoSuchPartition, QueueFull, RecordTooLarge
from kbroker.errors import ErrorCode
from tests.kit.brokers.produce import ProduceBroker
from tests.kit.brokers.whole import WholeBroker

Run = Callable[[Coroutine[Any, Any, None]], None]
SECONDS = 30.0
HARMLESS = ("refuse", "refuse and drop", "append and refuse", "append and drop", "drop")


def producer_of(broker: ProduceBroker | WholeBroker, **options: Any) -> AsyncProducer:
    quick = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 5}
    return AsyncProducer(bootstrap_servers=f"127.0.0.1:{broker.port}", **(quick | options))


async def all_sent(producer: AsyncProducer, partition: int, count: int) -> None:
    """One task's records, in order, with two thirds of them awaited in some way."""
    deliveries = []
    for i in range(count):
        value = b"%d %d" % (partition, i)
        match i % 3:
            case 0:
                deliveries.append(await producer.send("t", value, partition=partition))
            case 1 if i % 30 == 1:
                await producer.send_and_wait("t", value, partition=partition)
            case 2:
                deliveries.append(await producer.send_many("t", [value], partitions=partition))
            case _:
                await producer.send("t", value, partition=partition)
    for delivery in deliveries:
        await delivery


@pytest.mark.parametrize(
    "options", [{}, {"buffer_memory": 2000, "batch_size": 300}, {"queue_buffering_max_messages": 7}]
)
def test_tasks_keep_their_order_through_faults_and_a_full_queue(run: Run, options: dict[str, Any]) -> None:
    async def main() -> None:
        async with producer_of(broker, **options) as producer:
            await asyncio.gather(*(all_sent(producer, partition, 300) for partition in range(3)))

    with ProduceBroker(faults=HARMLESS, probability=0.05) as broker:
        run(main())
        for partition in range(3):
            assert broker.logs["t", partition] == [b"%d %d" % (partition, i) for i in range(300)]


def test_a_full_queue_is_awaited_while_the_loop_goes_on(run: Run) -> None:
    async def main() -> None:
        async with producer_of(broker, queue_buffering_max_messages=1, request_timeout_ms=500) as producer:
            await producer.await_topic("t")
            broker.silent = True
            await producer.send("t", b"a", partition=0)
            waits = asyncio.ensure_future(producer.send("t", b"b", partition=0))
            many = asyncio.ensure_future(producer.send_many("t", [b"c", b"d"], partitions=0))
            with pytest.raises(QueueFull):
                producer.send_nowait("t", b"e", partition=0)
            for _ in range(10):
                await turn()
            assert not waits.done()
            assert not many.done()
            broker.silent = False
            assert (await (await waits)).offset is not None
            assert await (await many) == 2

    with ProduceBroker() as broker:
        run(main())
        assert sorted(value or b"" for value in broker.logs["t", 0]) == [b"a", b"b", b"c", b"d"]


def test_what_lingers_goes_when_somebody_waits_for_room(run: Run) -> None:
    async def main() -> None:
        async with producer_of(broker, queue_buffering_max_messages=2, linger_ms=600_000) as producer:
            for i in range(20):
                await producer.send("t", b"%d" % i, partition=0)

    with ProduceBroker() as broker:
        run(main())
        assert broker.logs["t", 0] == [b"%d" % i for i in range(20)]


async def turn() -> None:
    """What is ready to run has run."""
    loop = asyncio.get_running_loop()
    turned = loop.create_future()
    loop.call_soon(turned.set_result, None)
    await turned


def test_who_waits_for_room_gets_no_more_than_his_time(run: Run) -> None:
    async def main() -> None:
        producer = producer_of(broker, queue_buffering_max_messages=1, queue_enqueue_timeout_ms=20)
        await producer.await_topic("t")
        broker.silent = True
        await producer.send("t", b"a", partition=0)
        with pytest.raises(QueueFull, match="records wait"):
            await producer.send("t", b"b", partition=0)
        with pytest.raises(QueueFull, match="no room for 3 of 3"):
            await producer.send_many("t", [b"b"] * 3, partitions=0)
        with pytest.raises(TimedOut, match="1 records are not delivered"):
            await producer.flush(0.01)
        waits = asyncio.ensure_future(producer.send("t", b"c", partition=0))
        await turn()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        await producer.close(0.01)

    with ProduceBroker() as broker:
        run(main())


def test_a_topic_that_is_not_known_yet(run: Run, broker: WholeBroker) -> None:
    async def main() -> None:
        async with producer_of(broker) as producer:
            with pytest.raises(TopicNotKnown, match="'awaited-new'"):
                producer.send_nowait("awaited-new", b"a")
            await producer.await_topic("awaited-new")
            producer.send_nowait("awaited-new", b"a")
            assert (await producer.send_and_wait("awaited-newer", b"a")).offset is not None
            with pytest.raises(BrokerError) as refused:
                await producer.send("in/valid", b"a")
            assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION

    run(main())


def test_a_topic_that_grows_is_sent_to_at_once(run: Run, broker: WholeBroker) -> None:
    async def main() -> None:
        servers, topic = f"127.0.0.1:{broker.port}", uuid4().hex
        async with (
            AsyncProducer(bootstrap_servers=servers) as producer,
            AsyncAdminClient(bootstrap_servers=servers) as admin,
        ):
            await admin.create_topic(topic, 1)
            await producer.send_and_wait(topic, b"v")
            await admin.create_partitions(topic, 2)
            await (await producer.send(topic, b"v", partition=1))
            await admin.create_partitions(topic, 3)
            await (await producer.send_many(topic, [b"v"], partitions=[2]))
            with pytest.raises(NoSuchPartition, match="partitions 0 to 2, not 3"):
                await producer.send(topic, b"v", partition=3)

    run(main())


def test_what_is_refused_at_the_call_is_refused_in_the_await(run: Run) -> None:
    async def main() -> None:
        async with producer_of(broker, max_request_size=1000) as producer:
            with pytest.raises(RecordTooLarge):
                await producer.send("t", b"x" * 2000)
            with pytest.raises(TypeError, match="value must be bytes"):
                await producer.send("t", 5)
            with pytest.raises(RecordTooLarge) as refused:
                await producer.send_many("t", [b"a", b"x" * 2000], partitions=1)
            assert refused.value.__notes__ == ["1 records of this call were taken before"]
        with pytest.raises(ClientClosed):
            await producer.send("t", b"a")
        with pytest.raises(ClientClosed):
            await producer.flush()
        await producer.close()

    with ProduceBroker() as broker:
        run(main())
        assert broker.logs["t", 1] == [b"a"]


COUNT = 3000


@pytest.mark.parametrize(
    "values",
    [
        [b"%d" % i for i in range(COUNT)],
        np.array([b"%d" % i for i in range(COUNT)], dtype="S"),
        pa.array([b"%d" % i for i in range(COUNT)]),
        pa.chunked_array([[b"%d" % i for i in range(1000)], [], [b"%d" % i for i in range(1000, COUNT)]]),
    ],
    ids=["list", "numpy", "arrow", "chunked"],
)
def test_columns_go_on_where_the_room_ended(run: Run, values: Any) -> None:
    async def main() -> None:
        async with producer_of(broker, buffer_memory=1500, batch_size=500) as producer:
            keys = [b"k%d" % i for i in range(COUNT)]
            deliveries = await producer.send_many("t", values, keys, {"h": b"v"}, 0, range_of(COUNT))
            assert len(deliveries) == COUNT
            assert await deliveries == COUNT

    with ProduceBroker() as broker:
        run(main())
        assert broker.logs["t", 0] == [b"%d" % i for i in range(COUNT)]
        assert broker.batches > 100


def range_of(count: int) -> Any:
    return np.arange(count, dtype="int64")


def test_a_flush_waits_for_what_was_sent_before_it(run: Run) -> None:
    async def main() -> None:
        async with producer_of(broker, linger_ms=60_000) as producer:
            early = await producer.send("t", b"a", partition=0)
            await asyncio.gather(producer.flush(), producer.flush(30))
            assert early.done()
            late = await producer.send("t", b"b", partition=0)
            assert not late.done()

    with ProduceBroker() as broker:
        run(main())
        assert broker.logs["t", 0] == [b"a", b"b"]


def test_closing_ends_who_waits(run: Run) -> None:
    async def main() -> None:
        before = set(threading.enumerate())
        producer = producer_of(broker, queue_buffering_max_messages=1, compression_type="gzip")
        await producer.await_topic("t")
        broker.silent = True
        delivery = asyncio.ensure_future(await producer.send("t", b"a", partition=0))
        waits = asyncio.ensure_future(producer.send("t", b"b", partition=0))
        await turn()
        await asyncio.gather(producer.close(0.01), producer.close(0.01))
        for ended in (delivery, waits):
            with pytest.raises(ClientClosed):
                await ended
        begun = set(threading.enumerate()) - before
        assert not any(thread.name.startswith("kbroker") for thread in begun)

    with ProduceBroker() as broker:
        run(main())


def test_a_flush_ends_when_another_task_closes_the_producer(run: Run) -> None:
    async def main() -> None:
        broker.leader = -1
        producer = producer_of(broker)
        delivery = await producer.send("t", b"a", partition=0)
        flush = asyncio.ensure_future(producer.flush())
        await turn()
        await producer.close(0.2)
        async with asyncio.timeout(SECONDS):
            await flush
        with pytest.raises(ClientClosed):
            await delivery

    with ProduceBroker() as broker:
        run(main())


def test_encoders_and_handlers_are_called_once_whatever_is_tried_again(run: Run) -> None:
    class Counting(ProducerHandler):
        before = 0
        added: tuple[bool, ...] = ()

        def before_enqueue(self, record: QueuedRecord) -> QueuedRecord | None:
            self.before += 1
            return None if record.value == "drop" else record

        def after_enqueue(self, record: QueuedRecord, added: bool) -> None:
            assert isinstance(record.value, str)
            self.added += (added,)

    encoded: list[Any] = []

    def encode(given: Any) -> Any:
        if given is None:
            return None
        encoded.append(given)
        return given.encode()

    async def main(counting: Counting | None) -> None:
        options = {} if counting is None else {"handlers": counting}
        async with producer_of(
            broker, queue_buffering_max_messages=1, value_encoder=encode, key_encoder=encode, **options
        ) as producer:
            for i in range(10):
                await producer.send("t", f"v{i}", f"k{i}", iter([("h", b"1")]), 0)
            values, keys = ([f"{letter}{i}" for i in range(10, 20)] for letter in "vk")
            many = await producer.send_many("t", values, keys, partitions=0)
            assert await many == 10
            if counting is not None:
                assert await producer.send("t", "drop") is None
                assert await producer.send_and_wait("t", "drop") is None
                assert await (await producer.send_many("t", ["drop", "v20"], partitions=0)) == 1
                producer.send_nowait("t", "v21", partition=0)
                broker.silent = True
                producer.send_nowait("t", "drop")
                with pytest.raises(QueueFull):
                    producer.send_nowait("t", "v22")
            await producer.close(0)

    for counting in (None, Counting()):
        encoded.clear()
        with ProduceBroker() as broker:
            run(main(counting))
            assert broker.logs["t", 0][:20] == [b"v%d" % i for i in range(20)]
        assert sorted(encoded)[:20] == sorted(f"k{i}" for i in range(20))
        assert len(encoded) == len(set(encoded))
        if counting is not None:
            assert counting.before == 20 + 3 + 4
            assert counting.added == (True,) * 22 + (False,)


def test_headers_that_can_be_read_once_are_there_after_a_full_queue(run: Run, broker: WholeBroker) -> None:
    async def main() -> None:
        async with producer_of(broker, queue_buffering_max_messages=1) as producer:
            for _ in range(20):
                await producer.send("headed-once", b"v", headers=iter([("h", b"1")]), partition=0)

    run(main())
    with Consumer(bootstrap_servers=f"127.0.0.1:{broker.port}", auto_offset_reset="earliest") as consumer:
        consumer.assign_topics("headed-once")
        headers: list[Any] = []
        while len(headers) < 20:
            headers += [record.headers for record in consumer.poll(SECONDS)]
    assert set(headers) == {(("h", b"1"),)}


def test_tasks_that_wait_hear_of_the_end_of_a_producer_that_nobody_closes(run: Run) -> None:
    """At the interpreter's exit, or when nobody has it any more."""

    async def main() -> None:
        broker.leader = -1
        producer = producer_of(broker, queue_buffering_max_messages=1)
        delivery = asyncio.ensure_future(await producer.send("t", b"a", partition=0))
        waits = asyncio.ensure_future(producer.send("t", b"b", partition=0))
        flush = asyncio.ensure_future(producer.flush())
        await turn()
        producer._accumulator.close()  # the first that happens at the exit, in another thread
        with pytest.raises(ClientClosed):
            await waits
        await turn()
        assert not flush.done()
        at_exit = producer._thread.at_exit
        assert at_exit is not None
        await asyncio.to_thread(at_exit, 0.2)  # meanwhile the flush waits again for what never comes
        async with asyncio.timeout(SECONDS):
            await flush
        with pytest.raises(ClientClosed):
            await delivery

        producer = producer_of(broker)
        delivery = asyncio.ensure_future(await producer.send("t", b"a", partition=0))
        with pytest.warns(ResourceWarning, match="was not closed"):
            del producer
            gc.collect()
        with pytest.raises(ClientClosed):
            await delivery

    with ProduceBroker() as broker:
        run(main())


def test_loops_of_several_threads_share_a_producer(run: Run) -> None:
    async def main(partition: int) -> None:
        await all_sent(producer, partition, 200)

    with ProduceBroker(faults=HARMLESS, probability=0.05) as broker:
        producer = producer_of(broker, buffer_memory=2000, batch_size=300)
        threads = [threading.Thread(target=run, args=[main(partition)]) for partition in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run(producer.close())
        for partition in range(3):
            assert broker.logs["t", partition] == [b"%d %d" % (partition, i) for i in range(200)]
