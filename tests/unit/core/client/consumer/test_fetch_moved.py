"""A partition goes to another broker while the one that it was asked of has not answered yet."""

from __future__ import annotations

import pytest

from kbroker._core.client.consumer.fetch import FetchEngine
from kbroker._core.client.pump import Pump
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import inflate
from kbroker.protocol.records import Record
from tests.kit.brokers.fetch import FetchBroker, Key
from tests.kit.models.consumer import Log, LogBatch

A: Key = ("a", 0)
B: Key = ("b", 0)
OLD, NEW = 3, 7


def simple_log(count: int) -> Log:
    """Batches of one record each."""
    return Log([LogBatch(at, at, (Record(at, 5, None, b"%d" % at),)) for at in range(count)])


class Two:
    """An engine with a partition that two brokers have."""

    def __init__(self, logs: dict[Key, Log]) -> None:
        self.pump = Pump({ApiKey.FETCH: 12})
        self.engine = FetchEngine(lambda codec, data, magic: inflate(codec, data, 1 << 20, magic=magic), max_wait_ms=0)
        self.pump.add(self.engine)
        self.old, self.new = FetchBroker(logs), FetchBroker(logs)
        self.old.connect(self.pump, OLD)
        self.new.connect(self.pump, NEW)
        for topic, partition in logs:
            self.engine.assign(topic, partition, 0)
            self.engine.lead(topic, partition, OLD)

    def serve(self, broker: FetchBroker) -> None:
        self.pump.run(0)
        assert broker.serve()
        self.pump.run(0)

    def polled(self, key: Key = A) -> list[int]:
        return [record.offset for record in self.engine.poll(0, 100) if (record.topic, record.partition) == key]


@pytest.mark.parametrize("is_first", [True, False], ids=["the old one first", "the new one first"])
def test_records_that_both_bring_are_given_once(is_first: bool) -> None:
    two = Two({A: simple_log(3)})
    two.pump.run(0)
    two.engine.lead(*A, NEW)
    two.pump.run(0)
    for broker in (two.old, two.new) if is_first else (two.new, two.old):
        two.serve(broker)
    assert two.polled() + two.polled() == [0, 1, 2]
    assert two.engine.position(*A) == 3
    two.pump.close("the end")


def test_the_old_one_is_told_to_forget_it() -> None:
    """The session of its first answer went on bringing the partition, at once and for ever."""
    two = Two({A: simple_log(3), B: simple_log(0)})
    two.pump.run(0)
    two.engine.lead(*A, NEW)
    two.serve(two.new)
    two.serve(two.old)
    two.serve(two.old)
    assert two.old.session is not None
    assert two.old.session.offsets == {B: 0}
    two.pump.close("the end")
