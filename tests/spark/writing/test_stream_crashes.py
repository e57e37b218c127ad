"""The exactly-once sink when its processes are killed: rows are there once for readers of committed records."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from kbroker.testing import Broker
from kbroker.testing.broker import LARGEST_REQUEST
from kbroker.testing.fault_proxy import FaultProxy
from kbroker.testing.faults import Fault, Faults
from kbroker.testing.reserved_port import ReservedPort
from tests.kit.kafka.process import Kafka4InMemory, KafkaInMemory
from tests.kit.kafka.zookeeper import Kafka25
from tests.kit.parts.processors import wait_until
from tests.kit.spark.sink_query import PARTITIONS, QueryProcess, committed, exactly_once, is_decided, open_transactions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOST = "127.0.0.1"
ROWS = 3000  # of a batch
QUICK: dict[str, object] = {
    "num.partitions": PARTITIONS,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
}


class Faulty:
    """A broker behind a proxy that does what it is told."""

    def __init__(self, servers: str, faults: Faults, *, lists_transactions: bool = True):
        self.servers = servers
        self.faults = faults
        self.lists_transactions = lists_transactions


@contextmanager
def kafka(kind: type[KafkaInMemory]) -> Iterator[Faulty]:
    """Start a Kafka behind a proxy. In ZooKeeper mode its own controller goes through the proxy too."""
    port = ReservedPort(HOST)
    address = f"{HOST}:{port.port}"
    broker = kind({**QUICK, "advertised.listeners": f"PLAINTEXT://{address}"})
    proxy = FaultProxy((HOST, port.port), (HOST, broker.port), LARGEST_REQUEST)
    try:
        proxy.open()
        with broker:
            yield Faulty(address, proxy.faults, lists_transactions=kind is not Kafka25)
    finally:
        proxy.close()
        port.release()


@pytest.fixture(scope="module")
def faulty(request: pytest.FixtureRequest) -> Iterator[Faulty]:
    if request.param == "kbroker":
        with Broker(faults=True, settings=QUICK) as broker:
            yield Faulty(broker.bootstrap_servers, broker.faults)
    else:
        with kafka(request.param) as broker:
            yield broker


on_kbroker = pytest.mark.parametrize("faulty", ["kbroker"], indirect=True)
LISTING = {"kbroker": "kbroker", "4.3.1": Kafka4InMemory, "3.9.1": KafkaInMemory}
on_listing = pytest.mark.parametrize("faulty", LISTING.values(), indirect=True, ids=LISTING)
on_each = pytest.mark.parametrize("faulty", [*LISTING.values(), Kafka25], indirect=True, ids=[*LISTING, "2.5.1"])


@pytest.fixture
def query(faulty: Faulty, topic: str, tmp_path: Path) -> dict[str, Any]:
    """Two batches of three tasks."""
    faulty.faults.clear()
    return exactly_once(faulty.servers, topic, tmp_path, ROWS)


def check(faulty: Faulty, query: dict[str, Any]) -> None:
    if faulty.lists_transactions:
        assert open_transactions(query["servers"]) == []
    assert is_decided(query["servers"], query["sink"])
    found = committed(query["servers"], query["sink"])
    assert len(found) == len(set(found)) == 2 * ROWS
    assert found == list(range(2 * ROWS))


def stopped_at(faults: Faults, step: str) -> Fault:
    """The query comes so far and no further. EndTxn: one for the decision, then one for each of three tasks."""
    if step == "writing":
        return faults.error("TxnOffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=None)
    if step == "after the last EndTxn":
        return faults.delay("ListTransactions", 30)
    after = {"before the decision": 0, "after the decision": 1, "between two EndTxn": 2, "before the last EndTxn": 3}
    return faults.error("EndTxn", "CONCURRENT_TRANSACTIONS", times=None, after=after[step])


def kill_and_run_again(faulty: Faulty, query: dict[str, Any], tmp_path: Path, step: str) -> None:
    log = tmp_path / "query.log"
    fault = stopped_at(faulty.faults, step)
    with QueryProcess(query, log) as process:
        process.kill_when(lambda: fault.struck > 0)
    faulty.faults.clear()
    with QueryProcess(query, log) as process:
        process.wait()
    check(faulty, query)


@on_each
@pytest.mark.parametrize("step", ["before the decision", "between two EndTxn"])
def test_a_driver_is_killed(faulty: Faulty, query: dict[str, Any], tmp_path: Path, step: str) -> None:
    kill_and_run_again(faulty, query, tmp_path, step)


@on_listing
def test_a_driver_is_killed_when_all_is_committed(faulty: Faulty, query: dict[str, Any], tmp_path: Path) -> None:
    kill_and_run_again(faulty, query, tmp_path, "after the last EndTxn")


@on_kbroker
@pytest.mark.parametrize("step", ["writing", "after the decision", "before the last EndTxn"])
def test_a_driver_is_killed_at_other_steps(faulty: Faulty, query: dict[str, Any], tmp_path: Path, step: str) -> None:
    kill_and_run_again(faulty, query, tmp_path, step)


@on_kbroker
def test_a_driver_is_killed_again_and_again(faulty: Faulty, query: dict[str, Any], tmp_path: Path) -> None:
    """Each run is killed a step later than the one before, in what it does anew or finishes."""
    log = tmp_path / "query.log"
    for after in range(6):
        fault = faulty.faults.error("EndTxn", "CONCURRENT_TRANSACTIONS", times=None, after=after)
        with QueryProcess(query, log) as process:
            process.kill_when(lambda fault=fault: fault.struck > 0)  # type: ignore[misc]
        faulty.faults.clear()
    with QueryProcess(query, log) as process:
        process.wait()
    check(faulty, query)


def workers(process: QueryProcess) -> list[psutil.Process]:
    """Python processes that run tasks."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        try:
            if "pyspark.daemon" in each.cmdline() and "pyspark.daemon" in each.parent().cmdline():  # type: ignore[union-attr]
                found.append(each)
        except psutil.Error:
            pass
    return found


@on_each
def test_tasks_are_killed_and_tried_again(faulty: Faulty, query: dict[str, Any], tmp_path: Path) -> None:
    """When they have written their rows; what they leave open is aborted by who comes after them."""
    query |= {"master": "local[3,4]"}
    if not faulty.lists_transactions:
        query["options"]["kafka.transaction.timeout.ms"] = "90000"
    fault = faulty.faults.error("TxnOffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=None)
    with QueryProcess(query, tmp_path / "query.log") as process:
        wait_until(lambda: fault.struck > 20, "tasks that write", 120)
        killed = workers(process)
        assert killed
        for each in killed:
            os.kill(each.pid, signal.SIGKILL)
        faulty.faults.clear()
        process.wait()
    if not faulty.lists_transactions:  # nobody knows of what is open before its time is over
        wait_until(lambda: is_decided(query["servers"], query["sink"]), "transactions that time out", 180)
    check(faulty, query)


@on_kbroker
def test_the_broker_is_away_for_a_while(faulty: Faulty, query: dict[str, Any], tmp_path: Path) -> None:
    fault = faulty.faults.drop("TxnOffsetCommit", times=3, handled=True)
    lost = faulty.faults.drop("EndTxn", times=5, handled=True)
    faulty.faults.drop("Produce", times=4, handled=True)
    with QueryProcess(query, tmp_path / "query.log") as process:
        process.wait()
    assert fault.struck and lost.struck
    check(faulty, query)
