"""A transaction coordinator on partitions in memory: the test moves its clock, and nothing runs by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from kbroker.errors import ErrorCode, NotNow
from kbroker.model import TopicPartition
from kbroker.rules.transaction import Expected
from kbroker.state_log.deadlines import Deadlines
from kbroker.transactions.answers import EndedTransaction, InitializedProducer
from kbroker.transactions.coordinator import TransactionCoordinator
from kbroker.transactions.markers import Marker
from kbroker.transactions.options import TransactionOptions
from tests.kit.logs.home import ManualClock
from tests.kit.parts.replica import MemoryOffsetsTopic, MemoryReplica
from tests.kit.parts.shards import await_loaded


class MemoryMarkers:
    """The markers that were written, and where. The test may have the next ones refused or held back."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, Marker]] = []
        self.refuse: dict[TopicPartition, list[ErrorCode]] = {}
        """Outcomes of the next markers of a partition."""
        self.hold = False
        self.held: list[Callable[[ErrorCode], None]] = []

    def write(self, partition: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        refusals = self.refuse.get(partition)
        if refusals:
            done(refusals.pop(0))
            return
        self.written.append((partition, marker))
        if self.hold:
            self.held.append(done)
        else:
            done(ErrorCode.NONE)

    def release(self) -> None:
        held, self.held = self.held, []
        for done in held:
            done(ErrorCode.NONE)

    def of(self, partition: TopicPartition) -> list[bool]:
        """The markers of a partition in order: True for a commit, False for an abort."""
        return [marker.commit for at, marker in self.written if at == partition]


class TransactionHome:
    """A broker's transaction coordinator. `restart` makes a new one on the same partitions."""

    def __init__(
        self,
        partitions: int = 1,
        exists: bool = True,
        *,
        topic: Any = None,
        clock: ManualClock | None = None,
        markers: Any = None,
        **options: Any,
    ):
        self.topic = topic or MemoryOffsetsTopic(partitions, exists)
        self.options = TransactionOptions(**options)
        self.clock = clock or ManualClock()
        self.markers = markers or MemoryMarkers()
        self.next_id = 100
        self.ids_exhausted = False
        self.retried = 0
        """How often `until_done` has asked again."""
        self.start()

    def start(self) -> None:
        self.deadlines = Deadlines("test", self.clock, threaded=False)
        self.coordinator = TransactionCoordinator(
            self.topic, self.options, self.clock, self.markers, self.producer_id, self.deadlines
        )
        self.coordinator.start()
        self.settle()

    def settle(self) -> None:
        """Wait until the partitions that it leads are loaded and the markers that were left are written."""
        await_loaded(self.coordinator.shards)
        loader = self.coordinator.shards._loader._thread
        if loader is not None:
            loader.join()

    def restart(self) -> None:
        self.coordinator.stop()
        self.start()

    def producer_id(self) -> int:
        if self.ids_exhausted:
            raise NotNow("no ids")
        self.next_id += 1
        return self.next_id

    def advance(self, milliseconds: int) -> None:
        self.clock.now_ms += milliseconds
        self.deadlines.run_due()

    @property
    def replica(self) -> MemoryReplica:
        return self.topic.replicas[0]

    def fail_append(self, failing: int, late: bool) -> None:
        """Have append number `failing`, counted from now on, fail: it is refused at once, or later if `late`."""
        numbers = itertools.count()

        def flaky(batch: bytes, epoch: int, committed: object, guard: int) -> None:
            error = ErrorCode.NOT_ENOUGH_REPLICAS if next(numbers) == failing else ErrorCode.NONE
            self.replica.refuse = None if late else error or None
            self.replica.hold = late
            type(self.replica).append(self.replica, batch, epoch, committed)  # type: ignore[arg-type]
            if late:
                self.replica.release(error)

        self.replica.append = flaky  # type: ignore[method-assign]

    def until_done(self, ask: Callable[[], ErrorCode]) -> None:
        """Ask again after errors that clients retry, until there is no error."""
        for _ in range(4):
            error = ask()
            if not error:
                return
            assert error in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.CONCURRENT_TRANSACTIONS), error.name
            self.retried += 1
            self.advance(1000)
        raise AssertionError("it does not get on")

    def init(
        self, name: str = "id", expected: Expected | None = None, timeout_ms: int = 60_000, host: str = ""
    ) -> InitializedProducer:
        (answer,) = self.ask_init(name, expected, timeout_ms, host)
        return answer

    def ask_init(
        self, name: str = "id", expected: Expected | None = None, timeout_ms: int = 60_000, host: str = ""
    ) -> list[InitializedProducer]:
        answers: list[InitializedProducer] = []
        self.coordinator.init_producer_id(name, timeout_ms, expected, answers.append, host)
        return answers

    def add(self, who: tuple[int, int], *partitions: TopicPartition, name: str = "id", version: int = 0) -> ErrorCode:
        (answer,) = self.ask_add(who, *partitions, name=name, version=version)
        return answer

    def ask_add(
        self, who: tuple[int, int], *partitions: TopicPartition, name: str = "id", version: int = 0
    ) -> list[ErrorCode]:
        answers: list[ErrorCode] = []
        self.coordinator.add_partitions(name, *who, partitions, answers.append, version)
        return answers

    def bump(self, who: tuple[int, int], commit: bool = True, name: str = "id") -> EndedTransaction:
        """End a transaction as a client that gets a new epoch with it, and return the answer."""
        (answer,) = self.ask_bump(who, commit, name)
        return answer

    def ask_bump(self, who: tuple[int, int], commit: bool = True, name: str = "id") -> list[EndedTransaction]:
        answers: list[EndedTransaction] = []
        self.coordinator.end_with_bump(name, *who, commit, answers.append)
        return answers

    def end(self, who: tuple[int, int], commit: bool = True, name: str = "id") -> ErrorCode:
        (answer,) = self.ask_end(who, commit, name)
        return answer

    def ask_end(self, who: tuple[int, int], commit: bool = True, name: str = "id") -> list[ErrorCode]:
        answers: list[ErrorCode] = []
        self.coordinator.end(name, *who, commit, answers.append)
        return answers

    def state(self, name: str = "id") -> str:
        described = self.coordinator.describe(name)
        return str(described.state) if not described.error else described.error.name

    def producer(self, name: str = "id", timeout_ms: int = 60_000) -> tuple[int, int]:
        """Initialize a producer with the transactional id, and return its producer id and epoch."""
        answer = self.init(name, timeout_ms=timeout_ms)
        assert answer.error is ErrorCode.NONE
        return answer.producer_id, answer.producer_epoch
