"""Both brokers and what they answered: every chosen scenario at every chosen version, many at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.broker import BrokerProcess, KafkaProcess
from tests.kit.wire import WireClient
from tests.oracle.scenario import Run, Scenario, run

AT_ONCE = 8
"""Scenarios that run at a time against each broker: most of them wait for something."""

NODE_ID = 0
# The same for both, so that answers can be the same: short times, small groups, nothing that acts on its own.
SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "group.max.session.timeout.ms": 60000,
    "group.max.size": 3,
    "offset.metadata.max.bytes": 100,
    "num.partitions": 2,
    "log.retention.ms": -1,
    "log.index.size.max.bytes": 65536,
    "max.incremental.fetch.session.cache.slots": 5000,
}
KAFKA_SETTINGS: dict[str, object] = {**SETTINGS, "node.id": NODE_ID}
OUR_SETTINGS: dict[str, object] = {**SETTINGS, "broker.id": NODE_ID}

Case = tuple[Scenario, int]


def await_coordinator(port: int) -> None:
    """The topic of offsets is made when it is first needed; scenarios find it there."""
    deadline = time.monotonic() + 60
    request = M.FindCoordinatorRequest(coordinator_keys=["warm"], key_type=0)
    with WireClient("127.0.0.1", port) as client:
        while client.call(ApiKey.FIND_COORDINATOR, 6, request).coordinators[0].error_code:
            assert time.monotonic() < deadline, "no coordinator"
            time.sleep(0.05)
        for group in ("a", "b", "c", "d", "e", "f", "g", "h"):
            while _commit(client, group):
                assert time.monotonic() < deadline, "the coordinator does not load"
                time.sleep(0.05)


def _commit(client: WireClient, group: str) -> int:
    request = M.OffsetFetchRequest(groups=[M.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=f"warm-{group}", topics=None)])
    error_code: int = client.call(ApiKey.OFFSET_FETCH, 8, request).groups[0].error_code
    return error_code


class Matrix:
    """Runs cases against both brokers; `of` waits for one case."""

    def __init__(self, kafka_port: int | None = None, our_port: int | None = None):
        self.ports = {"kafka": kafka_port, "kbroker": our_port}
        self.stack = ExitStack()
        self.pools: list[ThreadPoolExecutor] = []
        self.runs: dict[tuple[str, int], tuple[Future[Run], Future[Run]]] = {}

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(2) as starting:
            for port in list(starting.map(self._start, self.ports)):
                await_coordinator(port)
        return self

    def _start(self, name: str) -> int:
        port = self.ports[name]
        if port is None:
            made = KafkaProcess(KAFKA_SETTINGS) if name == "kafka" else BrokerProcess(OUR_SETTINGS)
            self.stack.enter_context(made)
            port = self.ports[name] = made.port
        return port

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self.pools:
            pool.shutdown(cancel_futures=True)
        self.stack.close()

    def begin(self, cases: Iterable[Case]) -> None:
        """Start running cases; those that want to be alone run at the end, one after the other."""
        ordered = sorted(cases, key=lambda case: case[0].alone)
        started: dict[tuple[str, int], list[Future[Run]]] = {}
        for port in self.ports.values():
            assert port is not None
            pool = ThreadPoolExecutor(AT_ONCE)
            last = ThreadPoolExecutor(1)
            self.pools += [pool, last]
            others: list[Future[Run]] = []
            for scenario, version in ordered:
                if scenario.alone:
                    future = last.submit(self._run_alone, list(others), scenario, version, port)
                else:
                    future = pool.submit(run, scenario, version, "127.0.0.1", port)
                    others.append(future)
                started.setdefault((scenario.id, version), []).append(future)
        self.runs.update({key: (kafka, ours) for key, (kafka, ours) in started.items()})

    @staticmethod
    def _run_alone(others: list[Future[Run]], scenario: Scenario, version: int, port: int) -> Run:
        wait(others)
        return run(scenario, version, "127.0.0.1", port)

    def of(self, scenario: Scenario, version: int) -> tuple[Run, Run]:
        """Kafka's run and ours."""
        kafka, ours = self.runs[scenario.id, version]
        return kafka.result(), ours.result()
