"""One simulation: brokers, tree, clients and faults, from its start to the end of its liveness phase.

    with simulated(Plan.of(seed)) as simulation:
        simulation.run()

A history has three parts: a quiet start, the time of faults, and the liveness phase, in which all faults are over and
everything has to be served again within `RECOVERY`.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from uuid import UUID

from kbroker.coordination import paths
from kbroker.coordination.store import Create
from kbroker.model import TopicPartition
from kbroker.rules.controller import reassignment
from tests.kit.logs.quick_disk import quick_directory
from tests.simulation.admin import Administrator, Deleter
from tests.simulation.broker import CLUSTER_ID, Broker, Life
from tests.simulation.checker import Checker
from tests.simulation.clocks import EPOCH_MS
from tests.simulation.faults import IDS, Faults
from tests.simulation.invariants import Ledger, Violation
from tests.simulation.network import Network, Weather
from tests.simulation.real import RealKit
from tests.simulation.scheduler import SECOND, Scheduler
from tests.simulation.stored import Stored
from tests.simulation.tree import TREE, TreeServer
from tests.simulation.workload import Client, Consumer, Newcomers, Producer, Transactions

START_LIMIT = 30 * SECOND
RECOVERY = 90 * SECOND
"""Within this time after the last fault everything is served again."""
MAX_STEPS = 400_000
CHUNK = 1
"""Partitions with whose reassignments a controller goes on before it looks at other events."""


@dataclass(frozen=True)
class Plan:
    """What kind of history a seed is."""

    seed: int
    broker_count: int
    topics: tuple[tuple[str, int, int], ...]
    """Name, partitions, replicas."""
    flushes: bool
    """Whether every ack waits for fsync. Then all brokers may lose power at once."""
    duration: int
    faults: tuple[str, ...]
    transactions: bool
    segment_bytes: int

    @classmethod
    def of(cls, seed: int) -> Plan:
        chance = random.Random(f"plan {seed}")
        brokers = chance.choice((3, 3, 3, 4))
        topics = [("orders", chance.choice((1, 2, 3)), 3)]
        if chance.random() < 0.3:
            topics.append(("views", 1, chance.choice((2, 3))))
        kinds = (
            "kill", "power", "pause", "cut", "one-way", "reset", "tree", "lie", "empty", "full", "admin", "clock",
            "stop",
            "damage",
        )  # fmt: skip
        faults = tuple(kind for kind in kinds if chance.random() < 0.5) or ("kill",)
        plan = cls(
            seed, brokers, tuple(topics), chance.random() < 0.4, chance.choice((8, 12, 20)) * SECOND, faults,
            chance.random() < 0.5, chance.choice((700, 2000, 1 << 20)),
        )  # fmt: skip
        more = tuple(kind for kind in ("delete", IDS) if chance.random() < 0.5)
        return replace(plan, faults=(*faults, *more))

    def __str__(self) -> str:
        topics = ", ".join(f"{name} {count}x{replicas}" for name, count, replicas in self.topics)
        acks = "fsync before ack" if self.flushes else "page cache"
        return f"{self.broker_count} brokers, {topics}, {acks}, {self.duration // SECOND} s of {', '.join(self.faults)}"


@dataclass
class Simulation:
    """The whole world of one seed."""

    plan: Plan
    home: Path
    kit: Any
    history: list[str] = field(default_factory=list)
    brokers: dict[int, Broker] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    touched: list[Life] = field(default_factory=list)
    known: set[tuple[UUID, int]] = field(default_factory=set)
    """Partitions that have clients, by topic id."""
    gone: set[UUID] = field(default_factory=set)
    """Topics that were deleted."""

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(f"simulation {self.plan.seed}")
        self.network = Network(self.scheduler, self._weather())
        self.tree = TreeServer(self.scheduler, self.network)
        self.checker = Checker(lambda text: self.note("", text))
        self.checker.lives = lambda node_id: self.brokers[node_id].life
        self.checker.reader = self.kit.reader
        self.tree.changed.append(self.checker.tree_changed)
        self.tree.changed.append(self._note_change)
        self.tree.changed.append(self._note_topics)
        self.faults = Faults(self)
        self.administrator = Administrator(self, "ad")
        self.deleter = Deleter(self, "del")
        self._make_tree()
        for node_id in range(1, self.plan.broker_count + 1):
            self.brokers[node_id] = Broker(self, node_id, self.home / f"b{node_id}")

    def _weather(self) -> Weather:
        spike = self.scheduler.chance.choice((0.0, 0.01, 0.05))
        return Weather(spike_share=spike, most=self.scheduler.chance.choice((1000, 3000, 20_000)))

    def _make_tree(self) -> None:
        operations = []
        known = {"/"}
        for path in (*paths.PERSISTENT, paths.CLUSTER_ID, paths.CONTROLLER_EPOCH):
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                above = "/" + "/".join(parts[:depth])
                if above not in known:
                    known.add(above)
                    data = {paths.CLUSTER_ID: paths.encode_cluster_id(CLUSTER_ID), paths.CONTROLLER_EPOCH: b"0"}.get(
                        above, b""
                    )
                    operations.append(Create(above, data))
        self.tree.apply(0, operations)

    # --- what everybody uses

    @property
    def wall_ms(self) -> int:
        return EPOCH_MS + self.scheduler.now // 1000

    def note(self, who: str, text: str) -> None:
        self.history.append(f"{self.scheduler.now / 1_000_000:11.6f} {who:>4} {text}")

    def _note_change(self, session_id: int, operations: Any, tree: Any) -> None:
        for operation in operations:
            data = getattr(operation, "data", b"")
            self.note(TREE, f"{type(operation).__name__} {operation.path} {data.decode()}")

    def _note_topics(self, session_id: int, operations: Any, tree: Any) -> None:
        """Note topics that were deleted, and give clients to partitions that are new, while there are faults."""
        if not any(operation.path.count("/") == 3 for operation in operations):
            return
        now = {assignment.topic_id for assignment in self.topics().values()}
        self.gone |= {topic_id for topic_id, _ in self.known if topic_id not in now}
        if self.clients and not self.faults.is_over:
            self._start_clients()

    def ledger(self, at: TopicPartition, topic_id: UUID) -> Ledger | None:
        return self.checker.ledgers.get((topic_id, at.partition_id))

    def acknowledged(self, at: TopicPartition, topic_id: UUID, offset: int, values: list[bytes]) -> None:
        self.note("", f"acknowledged: {at} {offset} {b', '.join(values).decode()}")
        ledger = self.ledger(at, topic_id)
        if ledger is None:
            raise Violation(f"{at}: {values[0]!r} was acknowledged at {offset}, and nothing is committed")
        self.checker.acknowledged(ledger, offset, values)

    def out_of_order(self, at: TopicPartition, topic_id: UUID, node_id: int, value: bytes) -> bool:
        """A leader has refused the next batch of an idempotent producer, as if one before it were lost.

        One that leads no more, and does not know it yet, may do so. Returns True if records may have been lost.
        """
        ledger = self.ledger(at, topic_id)
        if ledger is not None and ledger.is_lossy:
            return True
        state = self.checker.states.get(paths.partition_state_path(*at))
        life = self.brokers[node_id].life
        log = life.log(at) if life is not None else None
        if state is None or log is None or log.state.role != "leader":
            return False
        if (state.leader, state.leader_epoch) == (node_id, log.state.leader_epoch):
            raise Violation(f"{at}: {value!r} is out of order for its leader, broker {node_id}")
        return False

    def producer_unknown(self, at: TopicPartition, topic_id: UUID, node_id: int, value: bytes) -> None:
        """A leader does not know the batches before this one of a transactional producer: its log has begun later."""
        life = self.brokers[node_id].life
        log = life.log(at) if life is not None else None
        if log is not None and log.topic_id == topic_id and log.state.log_start_offset == 0:
            raise Violation(f"{at}: the producer of {value!r} is unknown to broker {node_id}, whose log is whole")

    def consumed(
        self, consumer: Consumer, node_id: int, start: int, end: int, batches: list[Stored], seen: list[Stored] | None
    ) -> None:
        ledger = self.ledger(consumer.at, consumer.topic_id)
        if ledger is None:
            raise Violation(f"{consumer.at}: {consumer.name} got {batches} and nothing is committed")
        for batch in batches:
            self.checker.consumed(ledger, node_id, batch)
        if seen is not None:
            self.checker.consumed_committed(ledger, node_id, start, end, seen)

    def start_of(self, at: TopicPartition, topic_id: Any) -> int:
        ledger = self.ledger(at, topic_id)
        return ledger.start if ledger is not None else 0

    def readable_end(self, at: TopicPartition, topic_id: UUID) -> int:
        """Up to this offset everybody can read in the end; 0 after an unclean election."""
        ledger = self.ledger(at, topic_id)
        return ledger.end if ledger is not None and not ledger.is_lossy else 0

    # --- running

    def step(self, until: int) -> bool:
        """Let the next event happen, and look at what it has changed."""
        if not self.scheduler.step(until):
            return False
        while self.touched:
            life = self.touched.pop(0)
            if not life.process.is_alive:
                continue
            life.settle()
            if life.logs is not None:
                for log in life.logs.all():
                    self.checker.look_at(life.node_id, log)
        if self.scheduler.steps > MAX_STEPS:
            raise Violation("the history never comes to an end")
        return True

    def run_until(self, when: int) -> None:
        while self.step(when):
            pass

    def run(self) -> None:
        """The whole history. Raises Violation."""
        self.note("", str(self.plan))
        for broker in self.brokers.values():
            self.scheduler.after(self.scheduler.chance.randrange(1, SECOND), broker.start)
        self._await(lambda: self.kit.may_begin(self), START_LIMIT, "the brokers do not start")
        self.kit.create_topics(self)
        self._await(self.is_whole, START_LIMIT, "the topics are not served")
        self._start_clients()
        self.faults.begin(self.plan.duration)
        self.run_until(self.scheduler.now + self.plan.duration)
        self.note("", "faults end")
        self.faults.end()
        self._await(self.is_served, RECOVERY, "not everything is served again")
        self.note("", f"all is served again, {self.scheduler.steps} steps, {self.checker.checks} checks")

    def _await(self, holds: Any, limit: int, what: str) -> None:
        deadline = self.scheduler.now + limit
        look_at = 0
        while True:
            if self.scheduler.now >= look_at:
                if holds():
                    return
                look_at = self.scheduler.now + SECOND // 5
            if not self.step(min(deadline, look_at)) and self.scheduler.now >= deadline:
                raise Violation(f"{what} after {limit // SECOND} s: {self.why()}")

    def why(self) -> str:
        """What is not served, for people."""
        return "; ".join([*islice(self._problems(), 6), *islice(self._unfinished(), 3)])

    # --- liveness

    def topics(self) -> dict[str, paths.TopicAssignment]:
        found = {}
        for topic in sorted(self.tree.tree.children.get(paths.TOPICS, ())):
            node = self.tree.get(paths.topic_path(topic))
            assert node is not None
            found[topic] = _assignment(topic, node[0])
        return found

    def partitions(self) -> Iterator[tuple[TopicPartition, UUID, tuple[int, ...]]]:
        for topic, assignment in self.topics().items():
            for partition_id, replicas in sorted(assignment.replicas.items()):
                yield TopicPartition(topic, partition_id), assignment.topic_id, replicas

    def _problems(self) -> Iterator[str]:
        for node_id, broker in self.brokers.items():
            if broker.life is None:
                yield f"broker {node_id} is down"
            elif broker.life.is_stopping:
                yield f"broker {node_id} is stopping"
        for topic, assignment in self.topics().items():
            if any(assignment.adding.values()) or any(assignment.removing.values()):
                yield f"replicas of {topic} are still changed"
        for node in sorted(self.tree.tree.children.get(paths.DELETE_TOPICS, ())):
            yield f"topic {node} is still to be deleted"
        yield from self._leftovers()
        for at, topic_id, replicas in self.partitions():
            state = self.checker.states.get(paths.partition_state_path(*at))
            if state is None or state.leader < 0:
                yield f"{at} has no leader"
                continue
            if set(state.isr) != set(replicas):
                yield f"{at} has the ISR {state.isr} of {replicas}"
                continue
            ends = set()
            starts = {}
            for node_id in replicas:
                life = self.brokers[node_id].life
                log = life.log(at) if life is not None else None
                if log is None or log.state.state != "open" or log.topic_id != topic_id:
                    yield f"{at} has no log on broker {node_id}"
                    break
                if (log.state.role == "leader") != (node_id == state.leader):
                    yield f"broker {node_id} is {log.state.role} of {at}, which {state.leader} leads"
                ends.add((log.state.log_end_offset, log.state.high_watermark))
                starts[node_id] = log.state.log_start_offset
            else:
                if min(starts.values()) < starts[state.leader]:
                    yield f"{at} has starts {starts}, {state.leader} leads"
                ledger = self.ledger(at, topic_id)
                if len(ends) != 1 or len(set(next(iter(ends)))) != 1:
                    yield f"{at} has ends and high watermarks {sorted(ends)}"
                elif ledger is not None and not ledger.is_lossy and ends != {(ledger.end, ledger.end)}:
                    yield f"{at} has ends and high watermarks {sorted(ends)}, committed is what is below {ledger.end}"

    def _leftovers(self) -> Iterator[str]:
        """Logs of which nobody knows any more, and yet their broker leads or follows."""
        wanted = {(at, topic_id): replicas for at, topic_id, replicas in self.partitions()}
        for node_id, broker in self.brokers.items():
            if broker.life is not None and broker.life.logs is not None:
                for log in broker.life.logs.all():
                    is_used = log.state.state == "open" and log.state.role in ("leader", "follower")
                    if is_used and node_id not in wanted.get((log.topic_partition, log.topic_id), ()):
                        yield f"broker {node_id} is {log.state.role} of {log.topic_partition}, and no replica"

    def is_whole(self) -> bool:
        """Every broker is there to stay, and every partition has a leader, its full ISR and equal logs."""
        return next(self._problems(), None) is None and any(True for _ in self.partitions())

    def _unfinished(self) -> Iterator[str]:
        for client in self.clients:
            if not client.is_done:
                yield f"{client.name} is not done"
        for at, topic_id, _ in self.partitions():
            ledger = self.ledger(at, topic_id)
            if ledger is not None and not ledger.is_lossy and ledger.open:
                yield f"{at} has open transactions of producers {sorted(ledger.open)}"

    def is_served(self) -> bool:
        """Besides, clients have done and read what they wanted, and no transaction is open."""
        return next(self._unfinished(), None) is None and self.is_whole()

    # --- clients

    def _start_clients(self) -> None:
        """Start clients of the partitions that have none."""
        chance = self.scheduler.chance
        new = {at: topic_id for at, topic_id, _ in self.partitions() if (topic_id, at.partition_id) not in self.known}
        self.known.update((topic_id, at.partition_id) for at, topic_id in new.items())
        before = len(self.clients)
        number = before
        for at, topic_id in new.items():
            for _ in range(chance.choice((1, 1, 2))):
                number += 1
                idempotent = chance.random() < 0.7
                self.clients.append(
                    Producer(
                        self, f"p{number}", at=at, topic_id=topic_id, acks=-1 if idempotent else chance.choice((-1, 1)),
                        producer_id=1000 + number if idempotent else -1,
                        in_flight=chance.choice((1, 1, 3)) if idempotent else 1, total=chance.choice((10, 20, 30)),
                        pace=self.plan.duration // 25,
                    )
                )  # fmt: skip
            self.clients.append(
                Consumer(
                    self,
                    f"c{number}",
                    at=at,
                    topic_id=topic_id,
                    committed=chance.random() < 0.5,
                    anywhere=chance.random() < 0.4,
                )
            )
        if self.plan.transactions and new:
            number += 1
            self.clients.append(
                Transactions(
                    self, f"t{number}", partitions=new, producer_id=5000 + number, pace=self.plan.duration // 10
                )
            )
        if not before and IDS in self.plan.faults:
            self.clients.append(Newcomers(self, "ids"))
        for client in self.clients[before:]:
            client.refresh()
            client.start()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self.tree.process.end()


@lru_cache(maxsize=256)
def _assignment(topic: str, data: bytes) -> paths.TopicAssignment:
    return paths.decode_topic(topic, data)


@contextmanager
def simulated(plan: Plan, kit: Any) -> Iterator[Simulation]:
    with quick_directory() as home, patch.object(reassignment, "CHUNK", CHUNK):
        simulation = Simulation(plan, home, kit)
        try:
            yield simulation
        finally:
            simulation.close()


class Outcome(NamedTuple):
    """What a seed came to."""

    seed: int
    plan: Plan
    broken: str
    """The promise that was broken; empty if all were kept."""
    history: str
    steps: int
    checks: int

    @property
    def summary(self) -> str:
        return f"seed {self.seed}: {self.plan}: {self.broken or 'every promise is kept'}"


def run_seed(seed: int, kit: Any = None, plan: Plan | None = None) -> Outcome:
    """Run one history. Same seed, same history. `plan`: another one than the seed's own."""
    plan = plan or Plan.of(seed)
    broken = ""
    disabled_before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with simulated(plan, kit or RealKit()) as simulation:
        try:
            simulation.run()
        except Violation as violation:
            broken = str(violation)
        except Exception:
            broken = traceback.format_exc()
        finally:
            logging.disable(disabled_before)
        history = "".join(f"{line}\n" for line in simulation.history)
        return Outcome(seed, plan, broken, history, simulation.scheduler.steps, simulation.checker.checks)
