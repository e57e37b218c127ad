"""A cluster under faults, over and over (`python -m tests.crash.cluster_rounds --brokers kbroker,kbroker,kafka`).

One round is one seed: a new ZooKeeper and three new brokers, each on a host of its own; the transactions of
transaction_load.py and the load of replicated_load.py; and faults, up to three at a time, until all are healed:
brokers are killed, alone or all at once, stopped, paused, cut from each other in both directions or in one, from
ZooKeeper, or from everybody, their disks fill up, ZooKeeper is killed or paused. When all is over and at rest, nothing
acknowledged may be missing, and all of it is looked at: what clients were told, the replicas' bytes, ZooKeeper's tree,
each broker's metadata, and the files (`kbroker verify-log`). `--keep DIRECTORY` keeps what there is of bad rounds.
Where networks cannot be cut or disks cannot be mounted, the rounds go on without those faults and the command fails at
its end, unless `--without` says that they may be missing.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.rules.java_hash import java_string_hash
from tests.crash.kill_rounds import PRODUCER_ID_BLOCK
from tests.crash.replicated_load import MOST_IN_FLIGHT_BESIDE_KAFKA, TOPIC, ReplicatedLoad
from tests.crash.transaction_clients import GROUP, LOG
from tests.crash.transaction_load import JAVA_GROUP, LATEST_S, TransactionLoad
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.cluster import coordinators, replicas, tree
from tests.kit.cluster.cluster import SETTLE_TIMEOUT_S, Cluster, NotSettled
from tests.kit.cluster.network import Network, network
from tests.kit.cluster.nodes import GROUP_PARTITIONS
from tests.kit.crash.small_disk import why_no_disk
from tests.kit.crash.transaction_history import Anomaly, Outcome, anomalies

SETTINGS: dict[str, object] = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "log.cleaner.backoff.ms": 300,
    "log.retention.check.interval.ms": 500,
}
PRODUCER_IDS = (1, 2, 2, 2, 2, PRODUCER_ID_BLOCK)
"""How many producer ids each broker is asked for after a fault: now and then so many that it has to ask for more."""
DISK = "400m"
MOVED_S = 6.0
HEARD_NS = 10_000_000_000
"""How long a coordinator that was cut off may take to hear that it was replaced, once it is reached again."""
REST_S = 20.0
"""How long replicas and metadata may take to be equal after the last request."""


class Faults:
    """The faults of a round. Each method begins one; `Cluster.heal` ends all."""

    def __init__(self, cluster: Cluster, chance: random.Random):
        self.cluster, self.chance = cluster, chance

    def any(self) -> int:
        return self.chance.choice(list(self.cluster.nodes))

    def pair(self) -> list[int]:
        return self.chance.sample(list(self.cluster.nodes), 2)

    def kill_broker(self) -> None:
        self.cluster.kill(self.any())

    def kill_controller(self) -> None:
        controller = self.cluster.controller()
        if controller >= 0:
            self.cluster.kill(controller)

    def kill_leader(self) -> None:
        leader = self.cluster.leader(TOPIC, self.chance.randrange(3))
        if leader >= 0:
            self.cluster.kill(leader)

    def kill_all(self) -> None:
        self.cluster.kill(*self.cluster.nodes)

    def kill_in_order(self) -> None:
        """Kill all brokers, one after the other, and start all but the last again: none of them may lead what only the
        last one had in sync. Other faults end before: brokers could not start."""
        self.cluster.heal()
        *first, last = self.chance.sample(list(self.cluster.nodes), len(self.cluster.nodes))
        for one in first:
            self.cluster.kill(one)
            time.sleep(self.chance.choice((0.0, 0.5)))
        self.await_isr([last])
        time.sleep(0.5)
        self.cluster.kill(last)
        self.cluster.start(first)
        deadline = time.monotonic() + MOVED_S
        while self.cluster.leader(TOPIC) not in first and time.monotonic() < deadline:
            time.sleep(0.1)

    def await_isr(self, expected: list[int]) -> None:
        """Wait until a topic's first partition has this ISR, but not for long."""
        deadline = time.monotonic() + MOVED_S
        while time.monotonic() < deadline:
            found = next((one for one in tree.partitions(self.cluster.tree()) if one[:2] == (TOPIC, 0)), None)
            if found is not None and found.state is not None and found.state["isr"] == expected:
                return
            time.sleep(0.1)

    def stop_broker(self) -> None:
        node = self.cluster.nodes[self.any()]
        if node.is_running and not node.is_paused:
            node.stop()

    def pause_broker(self) -> None:
        node = self.cluster.nodes[self.any()]
        node.pause()
        time.sleep(self.chance.choice((0.1, 1.0, 4.0)))

    def cut_pair(self) -> None:
        self.cluster.cut(*self.pair())

    def cut_one_way(self) -> None:
        self.cluster.cut(*self.pair(), both_ways=False)

    def cut_zookeeper(self) -> None:
        self.cluster.cut_zookeeper(self.any())

    def cut_controller_from_zookeeper(self) -> None:
        controller = self.cluster.controller()
        if controller >= 0:
            self.cluster.cut_zookeeper(controller)

    def isolate_broker(self) -> None:
        self.cluster.isolate(self.any(), clients_too=self.chance.random() < 0.5)

    def isolate_leader(self) -> None:
        """Leave a leader its clients, and nobody else, until another one is elected."""
        partition = self.chance.randrange(3)
        leader = self.cluster.leader(TOPIC, partition)
        if leader >= 0:
            self.cluster.isolate(leader, clients_too=False)
            deadline = time.monotonic() + MOVED_S
            while self.cluster.leader(TOPIC, partition) == leader and time.monotonic() < deadline:
                time.sleep(0.1)

    def fill_disk(self) -> None:
        self.cluster.fill_disk(self.any())

    def kill_zookeeper(self) -> None:
        self.cluster.zookeeper.kill()

    def pause_zookeeper(self) -> None:
        self.cluster.pause_zookeeper(self.chance.choice((0.3, 1.0, 4.0)))


OF_NETWORK = (
    "cut_pair", "cut_one_way", "cut_zookeeper", "cut_controller_from_zookeeper", "isolate_broker", "isolate_leader"
)  # fmt: skip
OF_PROCESSES = (
    "kill_broker", "kill_controller", "kill_leader", "kill_all", "stop_broker", "pause_broker", "fill_disk",
    "kill_zookeeper", "pause_zookeeper", "kill_in_order",
)  # fmt: skip
FAULTS = (*OF_PROCESSES, *OF_NETWORK)
NEEDS: dict[str, Sequence[str]] = {"network": OF_NETWORK, "disk": ("fill_disk",)}
"""Faults that need permissions which not everybody has, by what they are done to."""
OF_CLIENTS = ("kill_client", "hold_client", "replace_held_client")
PLANTS: dict[str, dict[str, object]] = {
    "acks=1": {},
    "unclean": {"unclean.leader.election.enable": "true", "replica.lag.time.max.ms": 1000},
}
"""What can be set wrong on purpose: then the round must find something."""


@dataclass
class Result:
    seed: int
    brokers: Sequence[str]
    faults: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)
    """Faults that cannot be done here, and why."""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    records: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    has_begun: bool = False
    """Whether the first fault could come: topics and load are there."""
    not_begun: str = ""
    """Why the round did not begin, although nothing was done to the cluster. It says nothing of kbroker then."""

    @property
    def is_bad(self) -> bool:
        return bool(self.anomalies or self.wrong)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        counts = ", ".join(f"{self.outcomes[one]} {one.value}" for one in Outcome)
        head = f"seed {self.seed}, {','.join(self.brokers)}: "
        if self.not_begun:
            return f"{head}not begun: {self.not_begun}"
        head += f"{counts}; {self.records} records acknowledged; {faults}; "
        found = [*self.wrong, *map(str, self.anomalies)]
        if self.left_out:
            head += f"without {', '.join(self.left_out)}; "
        more = [f"and {len(found) - 20} more"] if len(found) > 20 else []
        return f"{head}{len(found)} anomalies" + "".join(f"\n  {line}" for line in [*found[:20], *more])


class Round:
    """One round: `run_faults` does it all, and notes in `result` what it finds."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int, result: Result, plant: str | None):
        self.cluster, self.folder, self.result = cluster, folder, result
        self.chance = random.Random(seed)
        self.faults = Faults(cluster, self.chance)
        self.chance_of_ids = random.Random(f"{seed} producer ids")
        self.replication_factor = min(3, len(cluster.nodes))
        beside_kafka = "kafka" in result.brokers
        self.transactions = TransactionLoad(
            cluster.bootstrap_servers, folder, seed,
            epoch_writers=False, replication_factor=self.replication_factor,
            most_in_flight=MOST_IN_FLIGHT_BESIDE_KAFKA if beside_kafka else 5,
        )  # fmt: skip
        self.records = ReplicatedLoad(
            cluster.bootstrap_servers, acks="1" if plant == "acks=1" else "all", beside_kafka=beside_kafka
        )
        self.cut_off: list[tuple[int, int]] = []
        """Times of beginning and end, within which a broker may not have heard that it was replaced."""
        self.min_in_sync = 1 if plant is not None else min(2, self.replication_factor)

    def run_faults(self, seconds: float, faults: Sequence[str]) -> None:
        def happen() -> None:
            began = time.monotonic()
            while (passed_s := time.monotonic() - began) < seconds or (
                passed_s < LATEST_S and not self.transactions.says_something()
            ):
                self.do_some(faults)

        self.run(happen)

    def run(self, happen: Callable[[], None]) -> None:
        """Run the load while `happen` does things to the cluster, and look at everything when both are over."""
        self.cluster.await_settled()  # a session may have ended while all began at once, on few cores
        self.transactions.create_topics()
        self.records.create_topics(self.replication_factor, self.min_in_sync)
        self.cluster.await_settled()
        with self.transactions:
            self.records.start()
            time.sleep(1)
            if "kafka" in self.result.brokers:
                self.await_internal_topics()
            self.result.has_begun = True
            happen()
            self.cluster.await_settled()
            time.sleep(0.5)
            self.result.wrong += self.records.finish()
            self.transactions.finish()
        history = self.transactions.history()
        history.unheard = {group: [*self.unheard(group)] for group in (GROUP, JAVA_GROUP)}
        self.result.wrong += self.transactions.wrong
        self.result.anomalies += anomalies(history)
        self.result.outcomes.update(one.outcome for one in history.transactions if not one.client.startswith("p"))
        self.result.records = self.records.count
        self.result.wrong += self.records.check()
        self.cluster.await_settled()
        self.result.wrong += at_rest(self.cluster)
        self.result.wrong += own_faults(self.cluster)

    def unheard(self, group: str) -> Iterator[tuple[int, int]]:
        """Yield when a Kafka that took itself for a group's coordinator may not have heard that it was replaced."""
        partition_id = java_string_hash(group) % GROUP_PARTITIONS
        for node in self.cluster.nodes.values():
            for term in coordinators.terms(node.output) if node.kind == "kafka" else ():
                for began, ended in self.cut_off:
                    if term.partition_id == partition_id and began < term.ended and term.began < ended:
                        yield max(began, term.began), min(ended, term.ended)

    def await_internal_topics(self) -> None:
        """Wait until the coordinators' topics are there and everybody has them. A Kafka that meets an error while it
        makes a log refuses the partition's leader epoch from then on, and follows it no more (KAFKA-9769)."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        wanted = {"/brokers/topics/__consumer_offsets", "/brokers/topics/__transaction_state"}
        while not wanted <= self.cluster.tree().keys():
            if time.monotonic() > deadline:
                raise NotSettled("the clients have not made the coordinators' topics")
            time.sleep(0.2)
        self.cluster.await_settled()

    def do_some(self, faults: Sequence[str]) -> None:
        """Do up to three faults, most of them to brokers, and heal all of them after a while."""
        began = time.monotonic_ns()
        chosen = self.chance.choices(faults, k=self.chance.choice((1, 1, 2, 3)))
        for name in chosen:
            self.do(name)
            time.sleep(self.chance.choice((0.0, 0.3, 1.0)))
        if self.chance.random() < 0.3:
            self.do(self.chance.choice(OF_CLIENTS))
        time.sleep(self.chance.choice((0.0, 0.5, 1.0, 3.5)))
        self.cluster.heal()
        if any(name in OF_NETWORK for name in chosen):
            self.cut_off.append((began, time.monotonic_ns() + HEARD_NS))
        self.records.ask_producer_ids(self.chance_of_ids.choice(PRODUCER_IDS))
        if self.chance.random() < 0.5:
            self.cluster.await_settled()
        time.sleep(self.chance.uniform(0.2, 1.5))

    def do(self, name: str) -> None:
        self.result.faults[name] += 1
        step: Callable[[], None] = getattr(self.faults, name, None) or getattr(self.transactions, name)
        step()


def at_rest(cluster: Cluster) -> list[str]:
    """Return what is wrong with a cluster to which nothing happens any more; it has some time to come to rest."""
    deadline = time.monotonic() + REST_S
    while True:
        nodes = cluster.tree()
        wrong = [*tree.problems(nodes), *unlike_metadata(cluster), *unlike_replicas(cluster)]
        # A new leader epoch is in its file some seconds after the election.
        wrong = wrong or [line for node_id in cluster.nodes for line in damaged_files(cluster, node_id)]
        if not wrong or time.monotonic() > deadline:
            return wrong
        time.sleep(0.5)


def unlike_metadata(cluster: Cluster) -> list[str]:
    """Return where the metadata of a broker is not what the tree says."""
    expected = {(one.topic, one.index): one for one in tree.partitions(cluster.tree())}
    wrong = []
    for node in cluster.nodes.values():
        try:
            with WireClient(node.host.address, node.port) as client:
                answer = client.call(ApiKey.METADATA, 9, M.MetadataRequest(topics=None))
        except (OSError, ConnectionClosed) as error:
            wrong.append(f"broker {node.node_id} does not answer: {error}")
            continue
        if {broker.node_id for broker in answer.brokers} != set(cluster.nodes):
            wrong.append(f"broker {node.node_id} knows the brokers {[broker.node_id for broker in answer.brokers]}")
        left = dict(expected)
        for topic in answer.topics:
            for found in topic.partitions:
                one = left.pop((topic.name, found.partition_index), None)
                told = (found.leader_id, sorted(found.isr_nodes), found.replica_nodes)
                state = one.state if one is not None else None
                if one is None or state is None or told != (state["leader"], sorted(state["isr"]), one.replicas):
                    name = f"{topic.name}-{found.partition_index}"
                    wrong.append(f"broker {node.node_id} says of {name}: {told}, where ZooKeeper has {one}")
        if left:
            wrong.append(f"broker {node.node_id} does not know {sorted(left)[:5]}")
    return wrong


def unlike_replicas(cluster: Cluster) -> list[str]:
    """Return where the replicas of a partition have not the same bytes."""
    wrong = []
    for one in tree.partitions(cluster.tree()):
        name = f"{one.topic}-{one.index}"
        folders = {node_id: cluster.nodes[node_id].replica(name) for node_id in one.replicas}
        wrong += replicas.differences(folders, name, is_compacted=one.topic == LOG)
    return wrong


def damaged_files(cluster: Cluster, node_id: int) -> list[str]:
    """Return what `kbroker verify-log` finds in a kbroker's files."""
    if cluster.nodes[node_id].kind != "kbroker":
        return []
    command = [sys.executable, "-m", "kbroker.cli.main", "verify-log", *map(str, cluster.nodes[node_id].directories)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode == 0:
        return []
    said = [*(done.stdout + done.stderr).splitlines(), f"verify-log ended with {done.returncode}"]
    return [f"broker {node_id}: {line}" for line in said]


def own_faults(cluster: Cluster) -> list[str]:
    """Return what kbrokers have printed that no fault from outside may bring about."""
    return [
        f"broker {node.node_id}: {line}"
        for node in cluster.nodes.values()
        if node.kind == "kbroker"
        for line in node.output.splitlines()
        if any(one in line for one in ("Traceback (most recent call last)", "was never awaited", " CRITICAL "))
    ]


EXPIRED = "org.apache.zookeeper.KeeperException$SessionExpiredException"
IN_A_FIRST_ROLE = ("kafka.log.LogManager.fetchTopicConfigOverrides", "kafka.server.ReplicaManager.makeFollowers")


def broken_kafka(cluster: Cluster) -> str:
    """Return which Kafka has broken by itself, and how; "" for none.

    On a machine with too much to do a session may end at any time. If that is while a Kafka makes the log of a first
    replica, it has noted the leader epoch and has no log, and refuses the same epoch for good (KAFKA-9769).
    """
    for node in cluster.nodes.values():
        if node.kind == "kafka" and has_expired_in_a_first_role(node.output):
            return f"Kafka broke by itself (broker {node.node_id}: its session expired in its first LeaderAndIsr)"
    return ""


def has_expired_in_a_first_role(output: str) -> bool:
    """Return whether a Kafka has printed the exception with which it leaves a replica without a log."""
    for trace in output.split(EXPIRED)[1:]:
        frames = "".join(itertools.takewhile(lambda line: line.startswith("\tat "), trace.splitlines(True)[1:]))
        if all(f"{one}(" in frames for one in IN_A_FIRST_ROLE):
            return True
    return False


def impossible(connected: Network) -> dict[str, str]:
    """Return the faults that cannot be done here, and why."""
    why = {} if connected.can_cut else dict.fromkeys(OF_NETWORK, "no network namespace can be made")
    return why | {"fill_disk": refusal} if (refusal := why_no_disk()) else why


def run(
    seed: int, *, brokers: Sequence[str] = ("kafka",) * 3, seconds: float = 12, faults: Sequence[str] = FAULTS,
    plant: str | None = None, keep: Path | None = None,
) -> Result:  # fmt: skip
    """Run one round. `plant`: one of PLANTS."""
    result = Result(seed, brokers)
    folder = Path(tempfile.mkdtemp(prefix="cluster-round-"))
    settings = SETTINGS | (PLANTS[plant] if plant is not None else {})
    try:
        connected = network()
        missing = impossible(connected)
        result.left_out = {one: missing[one] for one in faults if one in missing}
        possible = [one for one in faults if one not in missing]
        cluster = Cluster(
            brokers, settings, disk=DISK if "fill_disk" in possible else None, connected=lambda: connected
        )
        place = keep and keep / f"{'-'.join(brokers)}-{seed}"
        with cluster, noting(result, cluster, folder, place):
            one = Round(cluster, folder, seed, result, plant)  # may fetch jars, which no way leads to from the inside
            with cluster.entered():
                one.run_faults(seconds, possible)
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def noting(result: Result, cluster: Cluster, folder: Path, keep: Path | None) -> Iterator[None]:
    """Note an error of the block as something wrong, and keep what there is if the result is bad.

    An error before the first fault is the reason why the round did not begin, if a Kafka has broken by itself.
    """
    try:
        yield
    except (NotSettled, RuntimeError, KafkaException, AssertionError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = [each for each in frames if "tests" in Path(each.filename).parts][-1]
        result.not_begun = "" if result.has_begun else broken_kafka(cluster)
        if not result.not_begun:
            result.wrong.append(f"{type(error).__name__} at {where.name}, line {where.lineno}: {error}")
    finally:
        if keep is not None and (result.is_bad or result.not_begun):
            kept(cluster, folder, keep)


def kept(cluster: Cluster, folder: Path, place: Path) -> None:
    """Copy journals, the brokers' output and logs, and ZooKeeper's tree."""
    shutil.copytree(folder, place, dirs_exist_ok=True)
    for output in cluster.folder.glob("*-*/output.txt"):
        shutil.copy(output, place / f"{output.parent.name}.txt")
    for node in cluster.nodes.values():
        shutil.copytree(node.data, place / f"data-{node.node_id}", dirs_exist_ok=True)
    if cluster.has_zookeeper:
        nodes = {path: node.data.decode(errors="replace") for path, node in cluster.tree().items()}
        (place / "tree.json").write_text(json.dumps(nodes, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="kbroker,kbroker,kbroker", help="what each broker is: kafka or kbroker")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first round")
    parser.add_argument("--seconds", type=float, default=12, help="of faults in each round")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--without", nargs="+", choices=NEEDS, default=(), help="what no fault is done to")
    parser.add_argument("--plant", choices=PLANTS, help="set something wrong, to test the test")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    without = {fault for one in arguments.without for fault in NEEDS[one]}
    faults = [fault for fault in arguments.faults if fault not in without]
    if not faults:
        parser.error("no fault is left")
    began, bad, not_begun = time.monotonic(), 0, 0
    left_out: dict[str, str] = {}
    for seed in range(arguments.first, arguments.first + arguments.rounds):
        result = run(
            seed, brokers=arguments.brokers.split(","), seconds=arguments.seconds, faults=faults,
            plant=arguments.plant, keep=arguments.keep,
        )  # fmt: skip
        bad += result.is_bad
        not_begun += bool(result.not_begun)
        left_out |= result.left_out
        print(result, flush=True)
    seconds = time.monotonic() - began
    print(f"{arguments.rounds} rounds in {seconds:.0f} s, {bad} of them bad, {not_begun} not begun")
    if left_out:
        print(f"faults are missing: {', '.join(left_out)}; --without says that they may be")
    return bool(bad or left_out or not_begun == arguments.rounds)


if __name__ == "__main__":
    sys.exit(main())
