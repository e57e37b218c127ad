"""Both brokers and their answers: every chosen scenario at every chosen version, many at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.kafka.process import KafkaInMemory
from tests.oracle.scenario import Run, Scenario, run
from tests.oracle.scenarios.produce import INFLATED_LIMIT

AT_ONCE = 8
"""How many scenarios run at a time against each broker: most of them wait for something."""

NODE_ID = 0
# The same for both, so that answers can be the same: short times, small groups, nothing that acts on its own.
SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "group.max.session.timeout.ms": 60000,
    "group.max.size": 3,
    "offset.metadata.max.bytes": 100,
    "num.partitions": 2,
    "log.retention.ms": -1,
    "log.index.size.max.bytes": 65536,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
    "max.incremental.fetch.session.cache.slots": 5000,
}
KAFKA_SETTINGS: dict[str, object] = {**SETTINGS, "node.id": NODE_ID}
OUR_SETTINGS: dict[str, object] = {**SETTINGS, "broker.id": NODE_ID, "kbroker.inflated.batch.max.bytes": INFLATED_LIMIT}

NOT_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
)

Case = tuple[Scenario, int]


def warm_up(port: int) -> None:
    """Make internal topics and blocks of producer ids before the scenarios: brokers make them when first needed."""
    deadline = time.monotonic() + 60

    def until_it_is_there(
        client: WireClient, api: ApiKey, version: int, message: Message, code: Callable[[Any], int]
    ) -> None:
        while code(client.call(api, version, message)) in NOT_YET:
            assert time.monotonic() < deadline, f"{api.label} is not served"
            time.sleep(0.02)

    with WireClient("127.0.0.1", port) as client:
        for kind in (0, 1):
            request = M.FindCoordinatorRequest(coordinator_keys=["warm"], key_type=kind)
            until_it_is_there(
                client, ApiKey.FIND_COORDINATOR, 4, request, lambda answer: answer.coordinators[0].error_code
            )
        part = M.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        topic = M.OffsetCommitRequest.OffsetCommitRequestTopic(name="warm", partitions=[part])
        topics = M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name="warm")])
        until_it_is_there(client, ApiKey.METADATA, 8, topics, lambda answer: answer.topics[0].error_code)
        for number in range(10):  # every partition of the topic of offsets, most likely, is written to
            until_it_is_there(
                client,
                ApiKey.OFFSET_COMMIT,
                7,
                M.OffsetCommitRequest(group_id=f"warm-{number}", topics=[topic]),
                lambda answer: answer.topics[0].partitions[0].error_code,
            )
        for transactional_id in (None, *(f"warm-{number}" for number in range(20))):
            asked = M.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60000)
            until_it_is_there(client, ApiKey.INIT_PRODUCER_ID, 4, asked, lambda answer: answer.error_code)


class Matrix:
    """Runs cases against both brokers; `of` waits for one case."""

    def __init__(
        self, kafka_port: int | None = None, our_port: int | None = None, kafka: type[KafkaInMemory] = KafkaInMemory
    ):
        self.kafka = kafka
        self.ports = {"kafka": kafka_port, "kbroker": our_port}
        self.stack = ExitStack()
        self.pools: list[ThreadPoolExecutor] = []
        self.runs: dict[tuple[str, int], tuple[Future[Run], Future[Run]]] = {}

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(2) as starting:
                for port in list(starting.map(self._start, self.ports)):
                    warm_up(port)
        except BaseException:
            self.stack.close()
            raise
        return self

    def _start(self, name: str) -> int:
        port = self.ports[name]
        if port is None:
            made = self.kafka(KAFKA_SETTINGS) if name == "kafka" else BrokerProcess(OUR_SETTINGS)
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
        """Start running cases; cases that must run alone run at the end, one after the other."""
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
        for future in others:
            with suppress(CancelledError):  # no test wants it any more
                future.exception()
        return run(scenario, version, "127.0.0.1", port)

    def of(self, scenario: Scenario, version: int) -> tuple[Run, Run]:
        """Return Kafka's run and ours.

        If Kafka did not come to the end of its run, both are run again after all others: on a busy machine Kafka can
        stall for longer than anyone waits.
        """
        kafka, ours = (future.result() for future in self.runs[scenario.id, version])
        if kafka.stopped is None:
            return kafka, ours
        wait([future for futures in self.runs.values() for future in futures])
        kafka, ours = (run(scenario, version, "127.0.0.1", self.ports[name] or 0, "again") for name in self.ports)
        return kafka, ours
