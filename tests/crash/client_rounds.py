"""Our own clients under faults, over and over (`python -m tests.crash.client_rounds`; a few rounds in `make test`).

One round is one seed: a new broker behind a proxy that knows frames, clients of every kind (client_actors.py) on
threads, and faults in between: the broker is killed or stopped and started again, or held (SIGSTOP); connections are
cut, refused, or end before or after a request has been done; answers come late or are error codes; members of groups
come, go and die; a mover stands still in the middle of a transaction until others have its partitions. When all is
over, and everybody has had the time to come to an end, everything that is stored is read by another client, and
client_ledger.py says what is wrong. `--kafka 4.3.1`: against Apache Kafka, which is killed as well.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from kbroker.client import AdminClient
from kbroker.testing.fault_proxy import FaultProxy
from tests.crash.client_actors import CLASSIC, CONSUMER, POLL_INTERVAL_MS, QUICK, Actor, Member, Mover, Writer, end
from tests.crash.client_ledger import IN, OUT, PARTITIONS, Ledger, Stored, check
from tests.kit.brokers.process import BrokerProcess, free_port
from tests.kit.kafka.process import Kafka4InMemory, KafkaInMemory, KafkaProcess

SETTLE_S = 120.0
MISTAKE_SHOWS_S = 8.0
LARGEST_REQUEST = 100 << 20
SETTINGS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "transaction.state.log.num.partitions": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.heartbeat.interval.ms": 300,
}
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
KAFKAS: dict[str, type[KafkaInMemory]] = {"3.9.1": KafkaInMemory, "4.3.1": Kafka4InMemory}
HEAP = "256m"

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "futures": ("send", {"linger_ms": 2}),
    "nowait": ("send_nowait", {"compression_type": "lz4", "linger_ms": 5}),
    "many": ("send_many", {"batch_size": 2000}),
    "aio": ("asyncio", {}),
}
GROUPS: dict[str, dict[str, Any]] = {
    "eager": CLASSIC | {"partition_assignment_strategy": "range", "enable_auto_commit": False},
    "cooperative": CLASSIC | {"partition_assignment_strategy": "cooperative-sticky", "auto_commit_interval_ms": 50},
    "uniform": CONSUMER | {"enable_auto_commit": False},
    "ranges": CONSUMER | {"group_remote_assignor": "range", "auto_commit_interval_ms": 50},
}
MEMBERS, MOVERS = 2, 2

PLACES = ("NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE")
COORDINATORS = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
CODES: dict[str, tuple[str, ...]] = {
    "Produce": (*PLACES, "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "KAFKA_STORAGE_ERROR", "CORRUPT_MESSAGE"),
    "Fetch": (*PLACES, "FETCH_SESSION_ID_NOT_FOUND", "INVALID_FETCH_SESSION_EPOCH", "UNKNOWN_LEADER_EPOCH"),
    "ListOffsets": (*PLACES, "OFFSET_NOT_AVAILABLE"),
    "Metadata": ("LEADER_NOT_AVAILABLE",),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"),
    "JoinGroup": (*COORDINATORS, "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS"),
    "SyncGroup": (*COORDINATORS, "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION"),
    "Heartbeat": (*COORDINATORS, "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION"),
    "ConsumerGroupHeartbeat": (*COORDINATORS, "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"),
    "OffsetCommit": (*COORDINATORS, "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION"),
    "OffsetFetch": (*COORDINATORS, "UNSTABLE_OFFSET_COMMIT"),
    "InitProducerId": (*COORDINATORS, "CONCURRENT_TRANSACTIONS"),
    "AddPartitionsToTxn": (*COORDINATORS, "CONCURRENT_TRANSACTIONS"),
    "AddOffsetsToTxn": (*COORDINATORS, "CONCURRENT_TRANSACTIONS"),
    "TxnOffsetCommit": (*COORDINATORS, "UNKNOWN_TOPIC_OR_PARTITION", "ILLEGAL_GENERATION"),
    "EndTxn": (*COORDINATORS, "CONCURRENT_TRANSACTIONS"),
}
"""API -> error codes that may be answered instead of doing what was asked. Clients have to cope with them."""

MISTAKES = ("no sequences", "careless movers", "forgetful members")
"""Mistakes that clients can be told to make, which the round must find."""


class Round:
    """A round: a broker behind a proxy, clients, and the faults that are done to them."""

    def __init__(self, broker: BrokerProcess, proxy: FaultProxy, address: str, seed: int, mistake: str | None):
        self.broker, self.proxy, self.address = broker, proxy, address
        self.chance = random.Random(seed)
        protocols = [CLASSIC] if type(broker) is KafkaInMemory else [CLASSIC, CONSUMER]  # that one has it in preview
        self.groups = {
            name: options
            for name, options in GROUPS.items()
            if any(protocol.items() <= options.items() for protocol in protocols)
        }
        self.ledger = Ledger(list(self.groups))
        self.mistake = mistake
        unsequenced = {"enable_idempotence": False} if mistake == "no sequences" else {}
        self.writers = [
            Writer(name, address, self.ledger, way, options | unsequenced) for name, (way, options) in WAYS.items()
        ]
        self.movers = [
            Mover(
                f"mover{number}",
                address,
                self.ledger,
                seed + number,
                protocols[seed % len(protocols)],
                careless=mistake == "careless movers",
            )
            for number in range(MOVERS)
        ]
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.done: Counter[str] = Counter()

    def new_member(self, group: str) -> None:
        name = f"{group}{len(self.members) + len(self.gone)}"
        forgetful = self.mistake == "forgetful members"
        member = Member(name, self.address, self.ledger, group, self.groups[group], forgetful=forgetful)
        self.members.append(member)
        member.start()

    # --- faults -----------------------------------------------------------------------------------------
    def kill_broker(self) -> None:
        with self.having_nothing_open():
            self.broker.kill()
            time.sleep(self.chance.choice((0, 0, 0.3)))
            self.broker.start()
        with self.having_nothing_under_way():
            pass  # nothing is under way from before it to after the next one

    def restart_broker(self) -> None:
        with self.having_nothing_under_way(), self.having_nothing_open():
            self.broker.restart()

    @contextlib.contextmanager
    def having_nothing_under_way(self) -> Iterator[None]:
        """Hold the writers of an Apache Kafka at a moment when no batch of theirs is under way.

        When Kafka starts, it remembers only one batch of each producer in its last snapshot. It takes earlier batches a
        second time when their producer sends them again (docs/formats/PRODUCER_SNAPSHOT.md).
        """
        with contextlib.ExitStack() as stack:
            if isinstance(self.broker, KafkaProcess):
                for writer in self.writers:
                    stack.enter_context(writer.having_nothing_under_way())
            yield

    @contextlib.contextmanager
    def having_nothing_open(self) -> Iterator[None]:
        """Hold the movers of an Apache Kafka at a moment when no transaction is open.

        If Kafka ends a transaction while it starts, it notes the transaction as complete, but writes no markers to
        partitions that have no leader yet. The next transaction's marker then ends that transaction too.
        """
        with contextlib.ExitStack() as stack:
            if isinstance(self.broker, KafkaProcess):
                for mover in self.movers:
                    stack.enter_context(mover.between)
                admin = stack.enter_context(AdminClient(QUICK | {"bootstrap_servers": self.address}))  # type: ignore[arg-type]
                deadline = time.monotonic() + SETTLE_S
                while still := admin.list_transactions(OPEN):
                    assert time.monotonic() < deadline, still
                    time.sleep(0.05)
            yield

    def hold_broker(self) -> None:
        assert self.broker.process is not None
        self.broker.process.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.choice((0.05, 0.5, 2.0)))
        self.broker.process.send_signal(signal.SIGCONT)

    def cut_connections(self) -> None:
        self.proxy.faults.drop_connections()

    def refuse_connections(self) -> None:
        self.proxy.faults.refuse_connections()
        self.proxy.faults.drop_connections()
        time.sleep(self.chance.choice((0.05, 0.5)))
        self.proxy.faults.accept_connections()

    def lose_requests(self) -> None:
        for api in self.apis():
            self.proxy.faults.drop(api, self.chance.randint(1, 3), handled=False)

    def lose_answers(self) -> None:
        for api in self.apis():
            self.proxy.faults.drop(api, self.chance.randint(1, 3), handled=True)

    def delay_answers(self) -> None:
        for api in self.apis():
            self.proxy.faults.delay(api, self.chance.choice((0.05, 0.3, 1.0)), self.chance.randint(1, 5))

    def answer_errors(self) -> None:
        for api in self.apis():
            self.proxy.faults.error(api, self.chance.choice(CODES[api]), self.chance.randint(1, 4))

    def exchange_member(self) -> None:
        """Let a new member join, and another one leave or die."""
        member = self.chance.choice(self.members)
        self.members.remove(member)
        self.gone.append(member)
        if self.chance.random() < 0.5:
            member.kill()
        else:
            member.stopping.set()
        self.new_member(member.group)

    def hold_mover(self) -> None:
        """Hold a mover until its group has given its partitions to others, or only for a moment."""
        self.chance.choice(self.movers).hold_s = self.chance.choice((0.1, 0.5, POLL_INTERVAL_MS / 1000 + 1))

    def apis(self) -> list[str]:
        """Draw one or two data APIs, and two others."""
        data, control = ["Produce", "Fetch"], [each for each in CODES if each not in ("Produce", "Fetch")]
        return self.chance.sample(data, self.chance.randint(1, 2)) + self.chance.sample(control, 2)

    # --- the round --------------------------------------------------------------------------------------
    def run(self, steps: int, faults: list[str]) -> list[str]:
        """Do `steps` faults, and return what is wrong afterwards."""
        with AdminClient(QUICK | {"bootstrap_servers": self.address}) as admin:  # type: ignore[arg-type]
            for name in (IN, OUT):
                admin.create_topic(name, PARTITIONS)
        for group in self.groups:
            for _ in range(MEMBERS):
                self.new_member(group)
        steady: list[Actor] = [*self.writers, *self.movers]
        for actor in steady:
            actor.start()
        for fault in self.chance.choices(faults, k=steps):
            self.done[fault] += 1
            step: Callable[[], None] = getattr(self, fault)
            step()
            time.sleep(self.chance.uniform(0.05, 0.5))
        self.proxy.faults.clear()
        end(self.writers, SETTLE_S, self.ledger.wrong)
        self.settle()
        end([*self.movers, *self.members, *self.gone], SETTLE_S, self.ledger.wrong)
        return check(self.ledger, self.read_whole(IN), self.read_whole(OUT))

    def settle(self) -> None:
        """Wait until groups have read everything and everything is moved, for SETTLE_S at most.

        The check comes later.
        """
        deadline = time.monotonic() + (SETTLE_S if self.mistake is None else MISTAKE_SHOWS_S)
        while any(self.ledger.missing(group) > 0 for group in self.groups) or self.lag() > 0:
            if time.monotonic() > deadline or self.ledger.wrongs:
                return
            time.sleep(0.1)

    def lag(self) -> int:
        """The number of records that movers have not committed."""
        own: dict[str, Any] = {"bootstrap_servers": self.address, "default_api_timeout_ms": 60_000}
        with AdminClient(QUICK | own) as admin:  # type: ignore[arg-type]
            committed = admin.committed("movers")
        return self.ledger.count - sum(found.offset for found in committed.values())

    def read_whole(self, topic: str) -> Stored:
        """Read all committed records with a client that is not ours."""
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": "whole", "enable.auto.commit": False}
            | {"isolation.level": "read_committed", "enable.partition.eof": True, "fetch.queue.backoff.ms": 5}
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        stored: Stored = [[] for _ in range(PARTITIONS)]
        left = set(range(PARTITIONS))
        deadline = time.monotonic() + SETTLE_S
        while left:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    stored[message.partition()].append((message.offset(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise KafkaException(error)
            assert time.monotonic() < deadline, f"{topic}: {left} could not be read to the end"
        consumer.close()
        return stored


FAULTS = [
    "kill_broker",
    "restart_broker",
    "hold_broker",
    "cut_connections",
    "refuse_connections",
    "lose_requests",
    "lose_answers",
    "delay_answers",
    "answer_errors",
    "answer_errors",
    "exchange_member",
    "hold_mover",
]


@dataclass
class Result:
    seed: int
    wrong: list[str]
    ledger: Ledger
    faults: Counter[str]

    def __str__(self) -> str:
        moves = self.ledger.moves.values()
        committed = sum(move.is_committed for move in moves)
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        failures = ", ".join(f"{count} {name}" for name, count in sorted(self.ledger.failures.items()))
        counts = f"{self.ledger.count} records, {committed} of {len(moves)} transactions committed"
        rest = f"{faults}; passed: {failures or 'nothing'}; {len(self.wrong)} wrong"
        return f"seed {self.seed}: {counts}; {rest}" + "".join(f"\n  {line}" for line in self.wrong)


def run(
    seed: int, *, steps: int = 15, faults: list[str] = FAULTS, kafka: str | None = None, mistake: str | None = None
) -> Result:
    """Run one round."""
    address = "127.0.0.1", free_port()
    settings = SETTINGS | {"advertised.listeners": f"PLAINTEXT://{address[0]}:{address[1]}"}
    broker = BrokerProcess(settings)
    if kafka is not None:
        broker = KAFKAS[kafka](settings)
        broker.heap = HEAP
    with broker:
        proxy = FaultProxy(address, ("127.0.0.1", broker.port), LARGEST_REQUEST)
        proxy.open()
        try:
            one = Round(broker, proxy, f"{address[0]}:{address[1]}", seed, mistake)
            return Result(seed, one.run(steps, faults), one.ledger, one.done)
        finally:
            proxy.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first round")
    parser.add_argument("--steps", type=int, default=15, help="faults in each round")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--kafka", choices=KAFKAS, help="against Apache Kafka of this version")
    parser.add_argument("--mistake", choices=MISTAKES, help="that clients make, to test the test")
    arguments = parser.parse_args()
    logging.getLogger("kbroker.client").setLevel(logging.CRITICAL)  # all that passes is said there
    began, bad = time.monotonic(), 0
    for seed in range(arguments.first, arguments.first + arguments.rounds):
        result = run(
            seed, steps=arguments.steps, faults=arguments.faults, kafka=arguments.kafka, mistake=arguments.mistake
        )
        bad += bool(result.wrong)
        print(result, flush=True)
    print(f"{arguments.rounds} rounds in {time.monotonic() - began:.0f} s, {bad} of them bad")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
