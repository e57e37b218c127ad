"""How clients of every class end: closed, forgotten, over and over."""

from __future__ import annotations

import gc
import resource
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

from kbroker.client import AdminClient, Producer
from kbroker.client.consumer.consumer import Consumer
from kbroker.testing import Broker

Client = AdminClient | Consumer | Producer
SECONDS = 60.0
ROUNDS = 1000
WARM = 100  #: rounds after which what is made once has been made


def use_admin(port: int) -> AdminClient:
    admin = AdminClient(bootstrap_servers=f"127.0.0.1:{port}", client_id="ends")
    assert admin.list_topics() is not None
    return admin


def use_consumer(port: int) -> Consumer:
    consumer = Consumer(bootstrap_servers=f"127.0.0.1:{port}", client_id="ends")
    consumer.assign({("ends", 0): 0})  # type: ignore[dict-item]
    assert len(consumer.poll(SECONDS, 1)) == 1
    return consumer


def use_producer(port: int) -> Producer:
    producer = Producer(bootstrap_servers=f"127.0.0.1:{port}", client_id="ends")
    producer.send("ends", b"again")
    producer.flush(SECONDS)
    return producer


USES: list[Callable[[int], Client]] = [use_admin, use_consumer, use_producer]


def threads_left() -> list[str]:
    """Those of clients, once what is ending has had its time."""
    ending = [each for each in threading.enumerate() if each.name == "kbroker-client-ends"]
    for each in ending:
        each.join(SECONDS)
    return [each.name for each in ending if each.is_alive()]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a broker whose descriptors are not of this process."""
    with Broker() as broker:
        broker.create_topic("ends")
        use_producer(broker.port).close()
        yield broker.port


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_a_thousand_rounds_leave_nothing_behind(
    port: int, descriptors: Callable[[], int], use: Callable[[int], Client]
) -> None:
    for _ in range(WARM):
        use(port).close()
    gc.collect()
    before, peak = descriptors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(ROUNDS - WARM):
        use(port).close()
    gc.collect()
    assert threads_left() == []
    assert descriptors() <= before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 30 << 10


@pytest.mark.parametrize("use", [use_admin, use_consumer])
def test_a_forgotten_client_ends_and_says_so(
    port: int, descriptors: Callable[[], int], use: Callable[[int], Client]
) -> None:
    use(port).close()
    gc.collect()
    before = descriptors()
    with pytest.warns(ResourceWarning, match="was not closed: kbroker-client-ends"):
        use(port)
        gc.collect()
    assert threads_left() == []
    gc.collect()  # what the thread still held
    assert descriptors() <= before


@pytest.mark.parametrize("use", USES)
def test_a_closed_client_is_collected_in_silence(port: int, use: Callable[[int], Client]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(port).close()
        gc.collect()
    assert threads_left() == []
