"""`on_delivery` and `add_done_callback`: who is called, when, where and with what."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kbroker.client import Deliveries, Delivery
from kbroker.client.errors import BrokerError, ClientClosed
from kbroker.errors import ErrorCode
from tests.kit.brokers.produce import ProduceBroker
from tests.unit.client.producer.test_producer import SECONDS, producer_of

Heard = list[tuple[BaseException | None, Any]]


class Hearing:
    """What a callback was called with; `calls` can be waited for."""

    def __init__(self) -> None:
        self.heard: Heard = []
        self.threads: set[str] = set()
        self._called = threading.Semaphore(0)

    def __call__(self, error: BaseException | None, delivery: Any) -> None:
        self.heard.append((error, delivery))
        self.threads.add(threading.current_thread().name)
        self._called.release()

    def wait(self, calls: int) -> Heard:
        for _ in range(calls):
            assert self._called.acquire(timeout=SECONDS)
        return self.heard


def test_on_delivery_hears_of_each_record_in_order_on_the_producers_thread() -> None:
    hearing = Hearing()
    with ProduceBroker(1) as broker, producer_of(broker, client_id="told", linger_ms=20) as producer:
        sent = [producer.send("t", b"%d" % i, on_delivery=hearing) for i in range(10)]
        assert hearing.wait(10) == [(None, delivery) for delivery in sent]
        assert [delivery.offset for _, delivery in hearing.heard] == list(range(10))
        assert hearing.threads == {"kbroker-client-told"}
        broker.fatal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        failing = producer.send("t", b"x", on_delivery=hearing)
        error, delivery = hearing.wait(1)[-1]
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert delivery is failing


def test_on_delivery_hears_of_records_that_nobody_sends_any_more() -> None:
    hearing = Hearing()
    with ProduceBroker(1) as broker:
        producer = producer_of(broker, linger_ms=60_000)
        producer.send("t", b"a", on_delivery=hearing)
        producer.send_many("t", [b"b", b"c"], on_delivery=hearing)
        producer.close(0)
        assert [type(error) for error, _ in hearing.wait(2)] == [ClientClosed, ClientClosed]


def test_on_delivery_of_many_is_called_once_for_all() -> None:
    hearing = Hearing()
    with ProduceBroker(3) as broker, producer_of(broker, linger_ms=20, batch_size=300) as producer:
        many = producer.send_many("t", [b"%d" % i for i in range(500)], on_delivery=hearing)
        assert hearing.wait(1) == [(None, many)]
        assert many.done()
        assert sum(len(log) for log in broker.logs.values()) == 500
        producer.send_many("t", [], on_delivery=hearing)
        error, none = hearing.wait(1)[-1]
        assert (error, len(none)) == (None, 0)
        broker.fatal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        producer.send_many("t", [b"x"] * 20, on_delivery=hearing)
        error, _ = hearing.wait(1)[-1]
        assert isinstance(error, BrokerError)
        assert len(hearing.heard) == 3


def test_callbacks_of_a_batch_that_is_split_wait_for_its_parts() -> None:
    one, all_of_them = Hearing(), Hearing()
    with ProduceBroker(1, largest_batch=500) as broker, producer_of(broker, linger_ms=50) as producer:
        sent = [producer.send("t", b"%03d" % i * 10, on_delivery=one) for i in range(50)]
        many = producer.send_many("t", [b"%03d" % i * 10 for i in range(50)], on_delivery=all_of_them)
        heard = one.wait(50)
        assert all_of_them.wait(1) == [(None, many)]
        assert {id(delivery): error for error, delivery in heard} == {id(each): None for each in sent}
        assert [each.offset for each in sent] == list(range(50))
        assert len(one.heard) == 50


def test_add_done_callback_of_many_is_called_at_once_when_all_is_known() -> None:
    with ProduceBroker(1) as broker, producer_of(broker) as producer:
        many = producer.send_many("t", [b"a", b"b"])
        assert many.result(SECONDS) == 2
        producer.flush(SECONDS)
        called: list[Deliveries] = []
        ended = threading.Event()
        many.add_done_callback(lambda each: (called.append(each), ended.set()))
        assert ended.wait(SECONDS)
        assert called == [many]
        with pytest.raises(TypeError, match="is not callable"):
            many.add_done_callback(5)  # type: ignore[arg-type]


def test_what_cannot_be_called_is_refused_and_nothing_is_sent() -> None:
    with ProduceBroker(1) as broker, producer_of(broker) as producer:
        for send, value in ((producer.send, b"a"), (producer.send_many, [b"a"])):
            with pytest.raises(TypeError, match="on_delivery must be a callable or None, not int"):
                send("t", value, on_delivery=5)  # type: ignore[arg-type]
        producer.flush(SECONDS)
        assert not broker.logs["t", 0]


def test_a_callback_that_raises_is_logged_and_the_next_is_called(caplog: pytest.LogCaptureFixture) -> None:
    hearing = Hearing()

    def fails(error: BaseException | None, delivery: Delivery) -> None:
        raise ZeroDivisionError

    with ProduceBroker(1) as broker, producer_of(broker, linger_ms=20) as producer:
        producer.send("t", b"a", on_delivery=fails)
        producer.send("t", b"b", on_delivery=hearing)
        assert hearing.wait(1)[0][0] is None
    assert "A delivery callback failed" in caplog.text


def test_a_synchronous_producer_calls_on_delivery_too() -> None:
    hearing = Hearing()
    with ProduceBroker(1) as broker, producer_of(broker, producer_type="sync") as producer:
        producer.send("t", b"a", on_delivery=hearing)
        producer.send_many("t", [b"b"], on_delivery=hearing)
        assert [error for error, _ in hearing.wait(2)] == [None, None]


def test_without_acknowledgements_on_delivery_is_called_when_it_was_sent() -> None:
    hearing = Hearing()
    with ProduceBroker(1) as broker, producer_of(broker, acks=0) as producer:
        producer.send("t", b"a", on_delivery=hearing)
        ((error, delivery),) = hearing.wait(1)
        assert (error, delivery.offset) == (None, None)
