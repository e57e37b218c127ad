"""The load of transaction rounds: processes of real clients that do hundreds of small transactions, and what they tell.

librdkafka's clients are in transaction_clients.py, Java's in java/TransactionClients.java. They write side by side into
the same partitions. When all is over, every place is read whole.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.crash.transaction_clients import GROUP, IN, LOG, OUT, PARTITIONS
from tests.kit.crash.transaction_history import History
from tests.kit.crash.transaction_journal import Journal, read_journals
from tests.kit.kafka.java_program import compile_java

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_MS = 3000
SETTLE_S = 45.0
ENDINGS = (0, -signal.SIGALRM)
"""How a process of clients may end: see `transaction_clients.CLOSE_ENDS_S`."""
FEWEST, FEWEST_JAVA, LATEST_S = 30, 3, 90.0
"""A round goes on until so many transactions are committed, and so many by each Java client: with less it says nothing.
It does not wait for ever."""
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
MOVED = (KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
"""What a request may get that is sent while the leader changes; librdkafka's admin client does not ask again."""
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
    most_in_flight: int
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
            "most_in_flight": self.most_in_flight,
        }
        command = [*self.command, json.dumps(settings)]
        with (self.folder / "errors.txt").open("ab") as errors:
            self.running.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, cwd=ROOT)
            )

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
                if code not in ENDINGS:
                    wrong.append(f"{'-'.join(self.clients)} ended with {code}")
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGQUIT)  # faulthandler, or the JVM, prints each thread's stack
                time.sleep(1)  # neither gives a sign that it has done so
                process.kill()
                process.wait()
                wrong.append(f"{'-'.join(self.clients)} did not end in {SETTLE_S} s")
        return wrong


class TransactionLoad:
    """The clients of one round, as a context manager: it starts them, and at its end none of them runs.

    `wrong` is what went wrong with the clients themselves, or could not be read.
    """

    def __init__(
        self, address: str, folder: Path, seed: int, *, lies: bool = False, epoch_writers: bool = True,
        replication_factor: int = 1, most_in_flight: int = 5,
    ):  # fmt: skip
        """`lies`: one reader is a LyingReader, and there are no clients of version 2. `epoch_writers`: some clients of
        version 2 have one connection, for which the broker must be alone. `most_in_flight`: of the requests of a
        producer that has no transactions."""
        self.address, self.folder = address, folder
        self.replication_factor = replication_factor
        self.chance = random.Random(f"{seed} clients")
        lying = {"r1": "LyingReader"} if lies else {}
        told = [one | {name: lying[name] for name in one.keys() & lying.keys()} for one in PROCESSES]
        told = [one for one in told if epoch_writers or "EpochWriter" not in one.values()]
        python = [sys.executable, "-m", "tests.crash.transaction_clients"]
        self.java = {} if lies else JAVA
        commands = [(java_command(), self.java)] if self.java else []
        commands += [(python, clients) for clients in told]
        self.clients = [ClientProcess(*command, folder, address, seed, most_in_flight) for command in commands]
        self.producing = self.clients[:-1]
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        for client in self.clients:
            client.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.kill()

    def finish(self) -> None:
        """Let all clients end what they have begun, and wait for them."""
        self.wrong += [line for client in self.clients for line in client.finish()]

    def history(self) -> History:
        """Read everything that is stored. Return the history that the clients wrote."""
        undecided = self.await_decisions()
        self.wrong += self.read_whole()
        history = read_journals(self.folder.glob("*.jsonl"))
        history.undecided = undecided
        history.read_to_end = set() if undecided else {(one.topic, one.partition) for one in self.places()}
        errors = (self.folder / "errors.txt").read_text(errors="replace")
        if "Traceback" in errors or "Exception in thread" in errors:  # librdkafka prints there too
            self.wrong.append(errors[-2000:])
        self.wrong += [line for line in errors.splitlines() if " hangs in " in line]
        return history

    # --- faults of clients --------------------------------------------------------------------------------
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

    def says_something(self) -> bool:
        """Whether the writing clients have noted enough committed transactions for the round to say something."""
        noted = b"".join(path.read_bytes() for path in self.folder.glob("[wme]*.jsonl"))
        committed = Counter(name.decode() for name in COMMITTED_BY.findall(noted))
        return committed.total() >= FEWEST and all(committed[name] >= FEWEST_JAVA for name in self.java)

    # --- before and after ---------------------------------------------------------------------------------
    def create_topics(self, small_segments: bool = True) -> None:
        """Create the topics. `small_segments`: the brokers take segments of any size, as 4.3 does not."""
        admin = AdminClient({"bootstrap.servers": self.address})
        compacted = dict(COMPACTED)
        if not small_segments:
            compacted["internal.segment.bytes"] = compacted.pop("segment.bytes")
        topics = [
            NewTopic(name, PARTITIONS, self.replication_factor, config=compacted if name == LOG else {})
            for name in (IN, LOG, OUT)
        ]
        for made in admin.create_topics(topics).values():
            made.result(30)

    @staticmethod
    def places() -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for topic in (IN, LOG, OUT) for partition in range(PARTITIONS)]

    def ends(self, admin: AdminClient, isolation: IsolationLevel) -> dict[TopicPartition, int]:
        asked = {place: OffsetSpec.latest() for place in self.places()}
        answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=10)
        return {place: answer.result(20).offset for place, answer in answers.items()}

    def await_decisions(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return where the last stable offset is still not the end after every transaction must have timed out."""
        admin = AdminClient({"bootstrap.servers": self.address})
        deadline = time.monotonic() + TIMEOUT_MS / 1000 + 20
        undecided: dict[tuple[str, int], tuple[int, int]] = {}
        while time.monotonic() < deadline:
            try:
                stable = self.ends(admin, IsolationLevel.READ_COMMITTED)
                ends = self.ends(admin, IsolationLevel.READ_UNCOMMITTED)
            except KafkaException as error:
                if error.args[0].code() not in MOVED:
                    raise
                continue
            undecided = {
                (place.topic, place.partition): (stable[place], ends[place])
                for place in self.places()
                if stable[place] != ends[place]
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
        deadline = time.monotonic() + 30
        try:
            while True:
                began = time.monotonic_ns()
                try:
                    offsets = consumer.committed(self.places()[:PARTITIONS], deadline - time.monotonic())
                    break
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.NOT_COORDINATOR or time.monotonic() > deadline:
                        return [f"whether offsets of {group} are committed is undecided: {error}"]
                    time.sleep(0.1)  # it moves to its preferred leader
        finally:
            consumer.close()
        for found in offsets:
            place = [found.topic, found.partition]
            journal.write("offset", group=group, place=place, offset=max(found.offset, -1), began=began)
        return []
