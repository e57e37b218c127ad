"""Transactions under faults, over and over (`python -m tests.crash.transaction_rounds`; a few rounds in `make test`).

One round is one seed: a new broker behind a proxy, processes of real clients that do hundreds of small transactions of
version 1 (librdkafka: transaction_clients.py) and of version 2 (Java 4.3: java/TransactionClients.java), side by side
on the same partitions, and faults in between: the broker is killed or stopped and started again, or
held (SIGSTOP); connections are dropped, stalled, or end before an answer; clients are killed, or held until their
transaction has timed out while others take over their transactional ids. When all is over, every place is read whole,
and the checker of tests/kit/crash/transaction_history.py says what of it no broker may answer. `--keep DIRECTORY` keeps
what the clients have written of rounds with anomalies; `--check DIRECTORY` checks such a directory again.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.crash.transaction_clients import GROUP, IN, LOG, OUT, PARTITIONS
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.crash.transaction_history import Anomaly, History, Outcome, anomalies
from tests.kit.crash.transaction_journal import Journal, read_journals
from tests.kit.kafka.java_program import compile_java
from tests.kit.kafka.process import Kafka4InMemory
from tests.kit.proxies.dropping import DroppingProxy

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_MS = 3000
SETTLE_S = 45.0
FEWEST, FEWEST_JAVA, LATEST_S = 30, 3, 90.0
"""A round goes on until so many transactions are committed, and so many by each Java client: with less it says nothing.
It does not wait for ever."""
SETTINGS: dict[str, object] = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "log.cleaner.backoff.ms": 300,
    "transaction.state.log.num.partitions": 5,
    "offsets.topic.num.partitions": 5,
}
# Keys are all different: a compaction takes what was aborted, and nothing else.
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
PROCESSES: list[dict[str, str]] = [
    {"w0": "Writer", "w1": "Writer"},
    {"w2": "Writer", "p0": "Plain"},
    {"m0": "Mover"},
    {"m1": "Mover"},
    {"e0": "EpochWriter", "e1": "EpochWriter"},
    {"r0": "Reader", "r1": "Reader", "d0": "DirtyReader"},
]
COMMITTED_BY = re.compile(rb'"transaction":"([wme]\d+)\.[\d.]+","outcome":"committed"')
JAVA_GROUP = "java-movers"
"""The Java movers have their own group: librdkafka's movers sometimes hang, and then their group waits for them."""
JAVA = {"w3": "Writer", "w4": "Writer", "m2": "Mover"}
JAVA_VERSION = "4.3.1"


def java_command() -> list[str]:
    clients = f"org.apache.kafka:kafka-clients:{JAVA_VERSION}"
    folder = Path(__file__).parent / "java"
    return compile_java(folder, "TransactionClients", JAVA_VERSION, clients, options=("-Xmx128m",))


@dataclass
class ClientProcess:
    """A process with some clients, and their journals over its several lives."""

    command: list[str]
    clients: dict[str, str]
    folder: Path
    bootstrap: str
    seed: int
    life: int = 0
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The last process, and earlier ones that are held."""

    def start(self) -> None:
        self.life += 1
        settings = {
            "clients": self.clients,
            "journal": str(self.folder / f"{'-'.join(self.clients)}.{self.life}.jsonl"),
            "bootstrap": self.bootstrap,
            "seed": self.seed,
            "life": self.life,
            "timeout_ms": TIMEOUT_MS,
        }
        command = [*self.command, json.dumps(settings)]
        with (self.folder / "errors.txt").open("ab") as errors:
            self.running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, cwd=ROOT))

    def kill(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        self.running.clear()

    def hold(self, on: bool) -> None:
        self.running[-1].send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def finish(self) -> list[str]:
        """Let the processes end, and return which ones have not."""
        wrong = []
        for process in self.running:
            process.send_signal(signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.close()
        for process in self.running:
            try:
                code = process.wait(SETTLE_S)
                if code:
                    wrong.append(f"{'-'.join(self.clients)} ended with {code}")
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                wrong.append(f"{'-'.join(self.clients)} did not end in {SETTLE_S} s")
        return wrong


class Round:
    """A round: a broker behind a proxy, clients, and the faults that are done to them."""

    def __init__(self, broker: BrokerProcess, proxy: DroppingProxy, folder: Path, seed: int, lies: bool):
        """With `lies`, one reader is a LyingReader, and there are no clients of version 2."""
        self.broker, self.proxy, self.folder = broker, proxy, folder
        self.address = f"127.0.0.1:{proxy.port}"
        self.chance = random.Random(seed)
        lying = {"r1": "LyingReader"} if lies else {}
        told = [one | {name: lying[name] for name in one.keys() & lying.keys()} for one in PROCESSES]
        python = [sys.executable, "-m", "tests.crash.transaction_clients"]
        self.java = {} if lies else JAVA
        commands = [(java_command(), self.java)] if self.java else []
        commands += [(python, clients) for clients in told]
        self.clients = [ClientProcess(*command, folder, self.address, seed) for command in commands]
        self.producing = self.clients[:-1]
        self.done: Counter[str] = Counter()

    # --- faults -----------------------------------------------------------------------------------------
    def kill_broker(self) -> None:
        self.broker.kill()
        time.sleep(self.chance.choice((0, 0, 0.3)))
        self.broker.start()

    def restart_broker(self) -> None:
        self.broker.restart()

    def hold_broker(self) -> None:
        assert self.broker.process is not None
        self.broker.process.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.choice((0.05, 0.5, 2.0)))
        self.broker.process.send_signal(signal.SIGCONT)

    def drop_connections(self) -> None:
        self.proxy.drop(self.chance.choice((0.2, 0.5, 1.0)), self.chance)

    def lose_answers(self) -> None:
        self.proxy.lose_answers(self.chance.choice((0.2, 0.5)), self.chance)

    def stall_connections(self) -> None:
        self.proxy.stall()
        time.sleep(self.chance.choice((0.05, 0.5, 1.5)))
        if self.chance.random() < 0.5:
            self.proxy.drop(0.5, self.chance)
        self.proxy.flow()

    def kill_client(self) -> None:
        client = self.chance.choice(self.producing)
        client.kill()
        client.start()

    def hold_client(self) -> None:
        client = self.chance.choice(self.clients)
        client.hold(True)
        time.sleep(self.chance.choice((0.1, 1.0)))
        client.hold(False)

    def replace_held_client(self) -> None:
        """Make a zombie: a client is held, another one takes over its transactional ids, then the first one goes on."""
        client = self.chance.choice(self.producing)
        zombie = client.running[-1]
        client.hold(True)
        client.start()
        time.sleep(self.chance.choice((0.5, 1.5, TIMEOUT_MS / 1000 + 0.5)))
        zombie.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        zombie.kill()
        zombie.wait()
        client.running.remove(zombie)

    def run(self, seconds: float, faults: list[str]) -> tuple[History, list[str]]:
        """Run the whole round. Return the history that the clients wrote, and what went wrong with them."""
        self.create_topics()
        for client in self.clients:
            client.start()
        try:
            time.sleep(1)
            began = time.monotonic()
            while (passed_s := time.monotonic() - began) < seconds or (
                passed_s < LATEST_S and not self.says_something()
            ):
                fault = self.chance.choice(faults)
                self.done[fault] += 1
                step: Callable[[], None] = getattr(self, fault)
                step()
                time.sleep(self.chance.uniform(0.1, 0.7))
            time.sleep(0.5)
            wrong = [line for client in self.clients for line in client.finish()]
        finally:
            for client in self.clients:
                client.kill()
        undecided = self.await_decisions()
        wrong += self.read_whole()
        history = read_journals(self.folder.glob("*.jsonl"))
        history.undecided = undecided
        history.read_to_end = set() if undecided else {(one.topic, one.partition) for one in self.places()}
        return history, wrong

    def says_something(self) -> bool:
        """Whether the writing clients have noted enough committed transactions for the round to say something."""
        noted = b"".join(path.read_bytes() for path in self.folder.glob("[wme]*.jsonl"))
        committed = Counter(name.decode() for name in COMMITTED_BY.findall(noted))
        return committed.total() >= FEWEST and all(committed[name] >= FEWEST_JAVA for name in self.java)

    # --- before and after ---------------------------------------------------------------------------------
    def create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        compacted = dict(COMPACTED)
        if isinstance(self.broker, Kafka4InMemory):  # it takes no segments so small from everybody
            compacted["internal.segment.bytes"] = compacted.pop("segment.bytes")
        topics = [NewTopic(name, PARTITIONS, 1, config=compacted if name == LOG else {}) for name in (IN, LOG, OUT)]
        for made in admin.create_topics(topics).values():
            made.result(30)

    def epochs(self) -> dict[str, int]:
        """The epochs of the Java clients' transactional ids.

        In version 2 each end of a transaction brings a new one.
        """
        with WireClient("127.0.0.1", self.broker.port) as client:
            asked = M.DescribeTransactionsRequest(transactional_ids=list(self.java))
            states = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
        return {state.transactional_id: state.producer_epoch for state in states}

    @staticmethod
    def places() -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for topic in (IN, LOG, OUT) for partition in range(PARTITIONS)]

    def await_decisions(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return where the last stable offset is still not the end after every transaction must have timed out."""
        admin = AdminClient({"bootstrap.servers": self.address})
        deadline = time.monotonic() + TIMEOUT_MS / 1000 + 20
        undecided: dict[tuple[str, int], tuple[int, int]] = {}
        while time.monotonic() < deadline:
            ends = []
            for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
                asked = {place: OffsetSpec.latest() for place in self.places()}
                answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=10)
                ends.append({place: answer.result(20).offset for place, answer in answers.items()})
            undecided = {
                (place.topic, place.partition): (ends[0][place], ends[1][place])
                for place in self.places()
                if ends[0][place] != ends[1][place]
            }
            if not undecided:
                break
            time.sleep(0.1)
        return undecided

    def read_whole(self) -> list[str]:
        """Read all committed records with one more client, and the groups' offsets. Return what is undecided."""
        journal = Journal(self.folder / "whole.jsonl")
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": GROUP, "enable.auto.commit": False}
            | {"isolation.level": "read_committed", "enable.partition.eof": True, "fetch.queue.backoff.ms": 5}
        )
        consumer.assign([TopicPartition(one.topic, one.partition, 0) for one in self.places()])
        left = {(one.topic, one.partition) for one in self.places()}
        deadline = time.monotonic() + SETTLE_S
        while left and time.monotonic() < deadline:
            began, records = time.monotonic_ns(), []
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    place_and_offset = message.topic(), message.partition(), message.offset()
                    records.append((*place_and_offset, (message.value() or b"").decode()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic() or "", message.partition() or 0))
                else:
                    raise KafkaException(error)
            if records:
                journal.write("poll", client="whole", stretch=0, began=began, records=records, is_committed=True)
        assert not left, f"{left} could not be read to the end"
        consumer.close()
        return [line for group in (GROUP, JAVA_GROUP) for line in self.read_offsets(group, journal)]

    def read_offsets(self, group: str, journal: Journal) -> list[str]:
        """Read a group's committed offsets, waiting for undecided ones. Return those that do not come to be decided."""
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group, "isolation.level": "read_committed"})
        began = time.monotonic_ns()
        try:
            for found in consumer.committed(self.places()[:PARTITIONS], 30):
                place = [found.topic, found.partition]
                journal.write("offset", group=group, place=place, offset=max(found.offset, -1), began=began)
        except KafkaException as error:
            return [f"whether offsets of {group} are committed is undecided: {error}"]
        finally:
            consumer.close()
        return []


FAULTS = [
    "kill_broker",
    "restart_broker",
    "hold_broker",
    "drop_connections",
    "lose_answers",
    "stall_connections",
    "kill_client",
    "hold_client",
    "replace_held_client",
]


@dataclass
class Result:
    seed: int
    history: History
    anomalies: list[Anomaly]
    wrong: list[str]
    faults: Counter[str]
    epochs: dict[str, int]

    def ends(self, transactional_id: str) -> int:
        """The number of ends of transactions that the producers of a transactional id were told."""
        of_it = (one for one in self.history.transactions if one.client.startswith(f"{transactional_id}."))
        return sum(one.told is not None for one in of_it)

    def count(self, outcome: Outcome) -> int:
        """The number of transactions of transactional producers with this outcome."""
        of_them = (one for one in self.history.transactions if not one.client.startswith("p"))
        return sum(one.outcome is outcome for one in of_them)

    def __str__(self) -> str:
        counts = ", ".join(f"{self.count(outcome)} {outcome.value}" for outcome in Outcome)
        reads = sum(len(poll.records) for poll in self.history.polls)
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        epochs = ", ".join(f"{epoch} of {one} ({self.ends(one)} ends)" for one, epoch in sorted(self.epochs.items()))
        rest = f"{faults}; epochs: {epochs}; {len(self.anomalies)} anomalies"
        return f"seed {self.seed}: {counts}; {reads} reads; {rest}" + "".join(
            f"\n  {line}" for line in [*self.wrong, *map(str, self.anomalies[:20])]
        )


def run(
    seed: int, *, seconds: float = 8, faults: list[str] = FAULTS, kafka: bool = False, lies: bool = False,
    keep: Path | None = None,
) -> Result:  # fmt: skip
    """Run one round."""
    folder = Path(tempfile.mkdtemp(prefix="transactions-"))
    try:
        with DroppingProxy() as proxy:
            settings = SETTINGS | {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
            with (Kafka4InMemory if kafka else BrokerProcess)(settings) as broker:
                proxy.target_port = broker.port
                one = Round(broker, proxy, folder, seed, lies)
                history, wrong = one.run(seconds, faults)
                errors = (folder / "errors.txt").read_text(errors="replace")
                if "Traceback" in errors or "Exception in thread" in errors:  # librdkafka prints there too
                    wrong.append(errors[-2000:])
                wrong += [line for line in errors.splitlines() if " hangs in " in line]
                result = Result(seed, history, anomalies(history), wrong, one.done, one.epochs())
                wrong += [
                    f"epoch {epoch} of {name} after {result.ends(name)} transactions"
                    for name, epoch in result.epochs.items()
                    if epoch < result.ends(name)
                ]
                if not one.says_something():
                    wrong.append(f"fewer than {FEWEST} transactions were committed, or {FEWEST_JAVA} of a Java client")
                if keep is not None and (result.anomalies or wrong):
                    (folder / "broker.txt").write_text(broker.output)
                    shutil.copytree(folder, keep / str(seed), dirs_exist_ok=True)
                return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first round")
    parser.add_argument("--seconds", type=float, default=8, help="of faults in each round")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--kafka", action="store_true", help="against Apache Kafka 4.3.1, to test the test")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--check", type=Path)
    arguments = parser.parse_args()
    if arguments.check is not None:
        found = anomalies(read_journals(arguments.check.glob("*.jsonl")))
        print("\n".join(map(str, found)) or "no anomalies")
        return bool(found)
    began, bad = time.monotonic(), 0
    for seed in range(arguments.first, arguments.first + arguments.rounds):
        result = run(
            seed, seconds=arguments.seconds, faults=arguments.faults, kafka=arguments.kafka, keep=arguments.keep
        )
        bad += bool(result.anomalies or result.wrong)
        print(result, flush=True)
    print(f"{arguments.rounds} rounds in {time.monotonic() - began:.0f} s, {bad} of them bad")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
