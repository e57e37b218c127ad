"""AsyncAdminClient, and the two faces of a client."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kbroker.client import AdminClient, AsyncAdminClient
from kbroker.client.errors import BrokerError, ClientClosed
from kbroker.client.network.faces import operation
from kbroker.errors import ErrorCode
from tests.kit.brokers.scripted import Peer, ScriptedBroker
from tests.kit.brokers.whole import WholeBroker

SECONDS = 30.0
Run = Callable[[Coroutine[Any, Any, None]], None]


def admin_of(port: int) -> AsyncAdminClient:
    return AsyncAdminClient(bootstrap_servers=f"127.0.0.1:{port}")


def test_everything_is_there_on_both_faces_and_says_what_it_is() -> None:
    operations = {
        name for owner in AdminClient.__mro__ for name, it in vars(owner).items() if isinstance(it, operation)
    }
    assert len(operations) > 15
    for name in operations:
        blocking, awaited = getattr(AdminClient, name), getattr(AsyncAdminClient, name)
        assert inspect.iscoroutinefunction(awaited)
        assert not inspect.iscoroutinefunction(blocking)
        assert inspect.signature(blocking) == inspect.signature(awaited)
        assert blocking.__name__ == awaited.__name__ == name
        assert blocking.__doc__ == awaited.__doc__


def test_topics_come_and_go(run: Run, broker: WholeBroker) -> None:
    async def main() -> None:
        async with admin_of(broker.port) as admin:
            await admin.create_topic("awaited", 3, 1)
            described = (await admin.describe_topics(["awaited"]))["awaited"]
            assert len(described.partitions) == 3
            cluster, topics = await asyncio.gather(admin.describe_cluster(), admin.list_topics())
            assert len(cluster.brokers) == 1
            assert "awaited" in topics
            with pytest.raises(BrokerError) as refused:
                await admin.create_topic("awaited")
            assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
            await admin.delete_topics(["awaited"])
            assert "awaited" not in await admin.list_topics()

    run(main())


class Silent(ScriptedBroker):
    """Takes what comes and does not answer."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        super().__init__(self.serve)

    def serve(self, peer: Peer) -> None:
        peer.request()
        self.asked.set()
        peer.wait_for_end()


async def begun(coroutine: object, broker: Silent) -> asyncio.Task[object]:
    task = asyncio.ensure_future(coroutine)  # type: ignore[call-overload]
    await asyncio.to_thread(broker.asked.wait, SECONDS)
    return task  # type: ignore[no-any-return]


def test_a_cancelled_call_ends_on_the_clients_thread_too(run: Run) -> None:
    async def main() -> None:
        with Silent() as broker:
            async with admin_of(broker.port) as admin:
                task = await begun(admin.list_topics(), broker)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await admin.list_topics()
                thread = admin._thread
                ended = asyncio.wrap_future(thread.submit(_others()))
                assert await ended == []

    run(main())


async def _others() -> list[str]:
    """Calls of a user that still run on the client's thread, a turn after they were cancelled."""
    turned = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turned.set_result, None)
    await turned
    return [repr(task) for task in asyncio.all_tasks() if "list_topics" in repr(task)]


def test_a_closed_client_tells_who_waits(run: Run) -> None:
    async def main() -> None:
        with Silent() as broker:
            admin = admin_of(broker.port)
            task = await begun(admin.list_topics(), broker)
            await asyncio.gather(admin.close(), admin.close())
            with pytest.raises(ClientClosed):
                await task
            with pytest.raises(ClientClosed):
                await admin.list_topics()
            await admin.close()
            assert not any(thread.name == admin._thread.name for thread in threading.enumerate())

    run(main())


def test_a_loop_that_is_closed_in_the_middle_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with Silent() as broker:
        admin = admin_of(broker.port)
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(begun(admin.list_topics(), broker))
        closing = loop.create_task(admin.close())
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        admin._thread.stop(SECONDS)
        assert not task.done()
        assert not closing.done()
        assert not [found for found in caplog.records if found.name.startswith(("kbroker", "concurrent"))]


def test_several_loops_use_one_client(run: Run, broker: WholeBroker) -> None:
    admin = admin_of(broker.port)
    found: list[int] = []

    async def use() -> None:
        for _ in range(5):
            cluster = await admin.describe_cluster()
            found.append(len(cluster.brokers))

    threads = [threading.Thread(target=run, args=[use()]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    run(admin.close())
    assert found == [1] * 20
