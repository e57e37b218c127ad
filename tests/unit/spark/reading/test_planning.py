"""Which offsets of which partitions are meant."""

from __future__ import annotations

import pytest

from kbroker.client import Producer
from kbroker.model import TopicPartition
from kbroker.spark.errors import WrongOption
from kbroker.spark.options.format_options import SparkOptions, Use
from kbroker.spark.reading.planning import Planner
from kbroker.testing import Broker


@pytest.mark.parametrize(("isolation", "end"), [("READ_COMMITTED", 1), ("Read_Uncommitted", 2)])
def test_isolation_is_the_consumers_however_it_is_written(isolation: str, end: int) -> None:
    """Tasks waited in vain for what the plan took from behind an open transaction."""
    with Broker() as broker:
        broker.create_topic("t")
        servers = broker.bootstrap_servers
        given = {"kafka.bootstrap.servers": servers, "subscribe": "t", "kafka.isolation.level": isolation}
        with Producer(bootstrap_servers=servers, transactional_id="x") as producer:
            producer.init_transactions()
            with Producer(bootstrap_servers=servers) as other:
                other.send("t", b"v").result(10)
            producer.begin_transaction()
            producer.send("t", b"open").result(10)
            with Planner(SparkOptions(given, Use.READ)) as planner:
                assert planner.latest({}) == {TopicPartition("t", 0): end}


def test_an_isolation_that_is_none_is_said_before_any_task() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "kafka.isolation.level": "commited"}
    with pytest.raises(WrongOption, match=r"option kafka.isolation.level='commited': must be one of"):
        Planner(SparkOptions(given, Use.READ))
