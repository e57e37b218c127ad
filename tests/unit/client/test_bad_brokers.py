"""Brokers that lie, are silent and go away in the middle: clients say so in time, and go on when it is over."""

from __future__ import annotations

import asyncio
import gzip
import io
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import (
    AdminClient,
    AsyncAdminClient,
    AsyncConsumer,
    AsyncProducer,
    ClientError,
    Consumer,
    Producer,
    SimpleConsumer,
    UnreadableRecords,
)
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import encode_batch
from tests.kit.brokers.whole import WholeBroker
from tests.kit.proxies.lying import LIES, LyingProxy
from tests.kit.wire.batches import changed
from tests.unit.client.consumer.test_simple_consumer import Liar, fetched

LENGTH_AT, HEADER_SIZE = 8, 61
TOPIC = "lies"
TIMEOUT_MS = 1500
QUICK: dict[str, Any] = {
    "request_timeout_ms": 500,
    "default_api_timeout_ms": TIMEOUT_MS,
    "socket_connection_setup_timeout_ms": 500,
    "retry_backoff_ms": 10,
    "retry_backoff_max_ms": 50,
    "reconnect_backoff_ms": 10,
    "reconnect_backoff_max_ms": 50,
}
LONGEST_S = 20.0
"""All timeouts are far shorter; a machine that is busy is not to be taken for a hang."""
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LyingProxy]:
    with LyingProxy() as made:
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{made.port}"}
        with WholeBroker(tmp_path_factory.mktemp("broker"), advertised) as broker:
            made.target_port = broker.port
            broker.create_topic(TOPIC, 1)
            broker.append(TOPIC, 0, [b"%d" % number for number in range(100)])
            yield made


class Use:
    """A client, and something that it asks of its broker again and again."""

    api_keys: frozenset[ApiKey]

    def __init__(self, port: int):
        self.options = QUICK | {"bootstrap_servers": f"127.0.0.1:{port}"}
        self.open()

    def open(self) -> None:
        raise NotImplementedError

    def ask(self) -> object:
        """What it is answered; something false for nothing in time."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Produces(Use):
    api_keys = frozenset({ApiKey.PRODUCE})

    def open(self) -> None:
        self.producer = Producer(self.options, delivery_timeout_ms=TIMEOUT_MS, max_block_ms=TIMEOUT_MS)

    def ask(self) -> object:
        return self.producer.send(TOPIC, b"x").result(LONGEST_S)

    def close(self) -> None:
        self.producer.close(1)


class Reads(Use):
    api_keys = frozenset({ApiKey.FETCH})

    def open(self) -> None:
        self.consumer = Consumer(self.options)
        self.consumer.assign({(TOPIC, 0): 0})  # type: ignore[dict-item]

    def ask(self) -> object:
        found = len(self.consumer.poll(1.0))
        self.consumer.seek(TOPIC, 0, 0)
        return found

    def close(self) -> None:
        self.consumer.close(1)


class Administers(Use):
    api_keys = frozenset({ApiKey.METADATA, ApiKey.LIST_GROUPS})

    def open(self) -> None:
        self.admin = AdminClient(self.options)

    def ask(self) -> object:
        return (self.admin.list_groups(), self.admin.list_topics())

    def close(self) -> None:
        self.admin.close()


class ReadsSimply(Use):
    api_keys = frozenset({ApiKey.FETCH, ApiKey.LIST_OFFSETS})

    def open(self) -> None:
        self.consumer = SimpleConsumer(self.options)

    def ask(self) -> object:
        (end,) = self.consumer.get_offsets_before(TOPIC, 0, -1)
        return [end, *(record.value for record in self.consumer.fetch(TOPIC, 0, 0))]

    def close(self) -> None:
        self.consumer.close()


class WithAsyncio(Use):
    """All three; whichever fails first is what comes out."""

    api_keys = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_GROUPS})
    numbers = itertools.count()

    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.runner.run(self.begin())

    async def begin(self) -> None:
        self.producer = AsyncProducer(self.options, delivery_timeout_ms=TIMEOUT_MS, max_block_ms=TIMEOUT_MS)
        self.consumer = AsyncConsumer(self.options)
        self.admin = AsyncAdminClient(self.options)
        await self.producer.await_topic(TOPIC)
        await self.consumer.assign({(TOPIC, 0): 0})  # type: ignore[dict-item]

    def ask(self) -> object:
        async def all_three() -> object:
            which = next(self.numbers) % 3
            if which == 0:
                return await self.producer.send_and_wait(TOPIC, b"x")
            if which == 1:
                return (await self.admin.list_groups(),)
            found = len(await self.consumer.poll(1.0))
            self.consumer.seek(TOPIC, 0, 0)
            return found

        return self.runner.run(all_three())

    def close(self) -> None:
        async def close() -> None:
            await self.producer.close(1)
            await self.consumer.close()
            await self.admin.close()

        self.runner.run(close())
        self.runner.close()


ALWAYS = ("an answer cut in half", "half an answer and the end", "silence")
USES: list[type[Use]] = [Produces, Reads, Administers, ReadsSimply, WithAsyncio]


def asked_until(use: Use, is_answered: bool) -> list[ClientError]:
    """Asks until something is answered, or not; what was raised, each time within LONGEST_S."""
    errors = []
    deadline = time.monotonic() + PATIENCE_S
    while True:
        began = time.monotonic()
        try:
            answered = bool(use.ask())
        except ClientError as error:
            answered = False
            errors.append(error)
        assert time.monotonic() - began < LONGEST_S
        if answered == is_answered:
            return errors
        assert time.monotonic() < deadline, errors


@pytest.mark.parametrize(
    "lie", [lie if lie in ALWAYS else pytest.param(lie, marks=pytest.mark.slow) for lie in LIES], ids=str
)
@pytest.mark.parametrize("of", USES)
def test_a_lie_is_an_error_of_ours_in_time_and_when_it_is_over_all_goes_on(
    proxy: LyingProxy, of: type[Use], lie: str
) -> None:
    use = of(proxy.port)
    try:
        assert not asked_until(use, True)
        proxy.told, proxy.lie, proxy.api_keys = 0, lie, frozenset(map(int, use.api_keys))
        try:
            errors = asked_until(use, False)
        finally:
            proxy.lie = None
        assert proxy.told
        assert all(str(error) and error.code for error in errors)
        asked_until(use, True)
    finally:
        use.close()


def test_a_broker_that_lies_while_clients_connect(proxy: LyingProxy) -> None:
    for lie in ("another correlation id", "a length of 2 GiB", "rubbish", "the end"):
        proxy.lie, proxy.api_keys = lie, frozenset({int(ApiKey.API_VERSIONS)})
        try:
            with AdminClient(QUICK, bootstrap_servers=f"127.0.0.1:{proxy.port}") as admin, pytest.raises(ClientError):
                admin.list_topics()
        finally:
            proxy.lie = None


GIB = 1 << 30
LIMIT = 16 << 20


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A batch of one megabyte that inflates to a GiB."""
    records = io.BytesIO()
    with gzip.GzipFile(fileobj=records, mode="wb", compresslevel=9) as file:
        for _ in range(GIB >> 20):
            file.write(bytes(1 << 20))
    small = encode_batch([(1000, None, b"x" * 100)], codec=Codec.GZIP)
    batch = small[:HEADER_SIZE] + records.getvalue()
    return changed(batch, LENGTH_AT, (len(batch) - LENGTH_AT - 4).to_bytes(4))


def peak() -> int:
    """The most memory that this process has had since `forget_peak`."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


Read = Callable[[Any], object]
WAYS: list[Read] = [list, lambda records: records.arrow(), lambda records: records.numpy(), lambda records: records[0]]


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("face", ["consumer", "asyncio", "simple"])
def test_a_bomb_takes_no_more_memory_than_it_may(bomb: bytes, face: str, way: int) -> None:
    with Liar(lambda asked: fetched(bomb)) as liar:
        options = QUICK | {"bootstrap_servers": f"127.0.0.1:{liar.broker.port}", "inflated_max_bytes": LIMIT}
        forget_peak()
        before = peak()
        if face == "consumer":
            with Consumer(options) as consumer:
                consumer.assign({("t", 0): 0})  # type: ignore[dict-item]
                with pytest.raises(UnreadableRecords, match="inflates to more"):
                    WAYS[way](consumer.poll(PATIENCE_S))
                consumer.seek("t", 0, 1)  # the rest goes on
                assert consumer.position("t", 0) == 1
        elif face == "simple":
            with SimpleConsumer(options) as simple, pytest.raises(UnreadableRecords, match="inflates to more"):
                WAYS[way](simple.fetch("t", 0, 0))
        else:
            asyncio.run(read_with_asyncio(options, WAYS[way]))
        assert peak() - before < 12 * LIMIT


async def read_with_asyncio(options: Any, read: Read) -> None:
    async with AsyncConsumer(options) as consumer:
        await consumer.assign({("t", 0): 0})  # type: ignore[dict-item]
        with pytest.raises(UnreadableRecords, match="inflates to more"):
            read(await consumer.poll(PATIENCE_S))
