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
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.crash.transaction_load import FEWEST, FEWEST_JAVA, LATEST_S, TransactionLoad
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.crash.transaction_history import Anomaly, History, Outcome, anomalies
from tests.kit.crash.transaction_journal import read_journals
from tests.kit.kafka.process import Kafka4InMemory
from tests.kit.proxies.dropping import DroppingProxy

SETTINGS: dict[str, object] = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "log.cleaner.backoff.ms": 300,
    "transaction.state.log.num.partitions": 5,
    "offsets.topic.num.partitions": 5,
}


class Round:
    """A round: a broker behind a proxy, clients, and the faults that are done to them."""

    def __init__(self, broker: BrokerProcess, proxy: DroppingProxy, folder: Path, seed: int, lies: bool):
        """With `lies`, one reader is a LyingReader, and there are no clients of version 2."""
        self.broker, self.proxy = broker, proxy
        self.chance = random.Random(seed)
        self.load = TransactionLoad(f"127.0.0.1:{proxy.port}", folder, seed, lies=lies)
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

    def run(self, seconds: float, faults: list[str]) -> tuple[History, list[str]]:
        """Run the whole round. Return the history that the clients wrote, and what went wrong with them."""
        self.load.create_topics(small_segments=not isinstance(self.broker, Kafka4InMemory))
        with self.load:
            time.sleep(1)
            began = time.monotonic()
            while (passed_s := time.monotonic() - began) < seconds or (
                passed_s < LATEST_S and not self.load.says_something()
            ):
                fault = self.chance.choice(faults)
                self.done[fault] += 1
                step: Callable[[], None] = getattr(self, fault, None) or getattr(self.load, fault)
                step()
                time.sleep(self.chance.uniform(0.1, 0.7))
            time.sleep(0.5)
            self.load.finish()
        return self.load.history(), self.load.wrong

    def epochs(self) -> dict[str, int]:
        """The epochs of the Java clients' transactional ids.

        In version 2 each end of a transaction brings a new one.
        """
        with WireClient("127.0.0.1", self.broker.port) as client:
            asked = M.DescribeTransactionsRequest(transactional_ids=list(self.load.java))
            states = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
        return {state.transactional_id: state.producer_epoch for state in states}


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
                result = Result(seed, history, anomalies(history), wrong, one.done, one.epochs())
                wrong += [
                    f"epoch {epoch} of {name} after {result.ends(name)} transactions"
                    for name, epoch in result.epochs.items()
                    if epoch < result.ends(name)
                ]
                if not one.load.says_something():
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
