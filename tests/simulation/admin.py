"""An administrator: topics are made, grown and deleted, replicas moved, configs changed, elections held.

Most is asked of brokers, as clients do; some is written into the tree, as old tools do. Another administrator deletes
records. Each asks again for a while, and then gives up: what it has asked for may happen all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kbroker.cluster.new_topics import NewTopic
from kbroker.coordination import paths
from kbroker.coordination.store import SessionExpired, StoreError, StoreUnavailable
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from tests.simulation.network import Failure
from tests.simulation.scheduler import MS, SECOND, Task
from tests.simulation.tree import Session
from tests.simulation.workload import Client

if TYPE_CHECKING:
    pass

PATIENCE = 6 * SECOND
BACKOFF = 200 * MS
NAMES = ("orders", "views", "more", "other")
MOST_PARTITIONS = 3
SESSION_TIMEOUT = 6 * SECOND
DELETION_TIMEOUT = 2 * SECOND
AGAIN = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR)
ACTIONS = (
    "create", "create", "grow", "delete", "configure", "configure_brokers", "reassign", "reassign", "reassign",
    "cancel", "elect", "elect", "tool_reassign", "tool_elect", "tool_delete",
)  # fmt: skip


@dataclass
class Administrator(Client):
    """Does one thing after the other; `act` begins the next."""

    until: int = 0
    """It does not ask for anything after this time."""
    doomed: set[UUID] = field(default_factory=set)
    """Topics that it wants to have deleted."""
    _session: Session | None = field(default=None)

    @property
    def is_idle(self) -> bool:
        return self.simulation.scheduler.now >= self.until

    def act(self) -> None:
        """Begin something, if nothing is under way."""
        if self.is_idle:
            getattr(self, f"_{self.chance.choice(ACTIONS)}")()

    # --- what is done

    def _create(self) -> None:
        name = self.chance.choice(NAMES)
        brokers = len(self.simulation.tree.names(paths.BROKER_IDS))
        factor = max(2, min(brokers, self.chance.choice((2, 3, 3))))
        configs: dict[str, str | None] = {}
        if self.chance.random() < 0.3:
            configs["min.insync.replicas"] = "1"
        if self.chance.random() < 0.15:
            configs["unclean.leader.election.enable"] = "true"
        self._ask("create", NewTopic(name, self.chance.choice((1, 2)), factor, configs=configs))

    def _grow(self) -> None:
        topics = self._topics()
        name = self.chance.choice(sorted(topics))
        if len(topics[name].replicas) < MOST_PARTITIONS:
            self._ask("grow", name, len(topics[name].replicas) + 1)

    def _delete(self) -> None:
        if name := self._doomed():
            self._ask("delete", name)

    def _doomed(self) -> str:
        """The name of a topic that may be deleted, or "": seldom the first one, and never the last."""
        left = {name: each.topic_id for name, each in self._topics().items() if each.topic_id not in self.doomed}
        names = [name for name in left if name != NAMES[0] or self.chance.random() < 0.3]
        if len(left) < 2 or not names:
            return ""
        name = self.chance.choice(names)
        self.doomed.add(left[name])
        return name

    def _configure(self) -> None:
        name = self.chance.choice(sorted(self._topics()))
        config = self.chance.choice(
            (
                ("min.insync.replicas", "1"),
                ("min.insync.replicas", "2"),
                ("unclean.leader.election.enable", self.chance.choice(("true", "false", "false"))),
            )
        )
        self._ask("configure", name, *config)

    def _configure_brokers(self) -> None:
        if self.chance.random() < 0.3:
            config = "unclean.leader.election.enable", self.chance.choice(("true", "false", "false"))
        else:
            config = "min.insync.replicas", self.chance.choice(("1", "2"))
        self._ask("configure_brokers", *config)

    def _reassign(self) -> None:
        self._ask("reassign", self._moves())

    def _moves(self) -> dict[TopicPartition, tuple[int, ...]]:
        return dict(self._move() for _ in range(self.chance.choice((1, 4, 8))))

    def _move(self) -> tuple[TopicPartition, tuple[int, ...]]:
        at, _, replicas = self.chance.choice(list(self.simulation.partitions()))
        brokers = sorted(self.simulation.brokers)
        count = max(2, min(len(brokers), len(replicas) + self.chance.choice((-1, 0, 0, 1))))
        return at, tuple(self.chance.sample(brokers, count))

    def _cancel(self) -> None:
        self._ask("reassign", {at: None for at, _, _ in self.simulation.partitions()})

    def _elect(self) -> None:
        self._ask("elect", tuple(at for at, _, _ in self.simulation.partitions() if self.chance.random() < 0.6))

    def _tool_reassign(self) -> None:
        self._write(paths.REASSIGN_PARTITIONS, paths.encode_reassignment(self._moves()))

    def _tool_elect(self) -> None:
        partitions = [at for at, _, _ in self.simulation.partitions()]
        self._write(paths.PREFERRED_REPLICA_ELECTION, paths.encode_partitions(partitions))

    def _tool_delete(self) -> None:
        if name := self._doomed():
            self._write(paths.delete_topic_path(name), b"")

    def _topics(self) -> dict[str, paths.TopicAssignment]:
        return self.simulation.topics()

    # --- how it is done

    def _ask(self, *value: Any) -> None:
        """Ask the broker that is the controller, as far as this client knows, again and again."""
        self.until = self.simulation.scheduler.now + PATIENCE
        self.note(f"asks: {value}")
        asked_first = self.controller_id in self.simulation.brokers

        def ask() -> None:
            if self.is_idle:
                self.note(f"gives up: {value}")
                return
            node_id = self.controller_id if self.controller_id in self.simulation.brokers else -1
            if node_id < 0:
                again()
                return
            self.call(node_id, ("admin", value), answered)

        def answered(answer: Any) -> None:
            if isinstance(answer, Failure) or answer[0] in AGAIN:
                again()
                return
            self.note(f"is answered {sorted(map(str, answer[1]))}: {value}")
            self.until = 0

        def again() -> None:
            self.refresh()
            self.after(BACKOFF, ask)

        if asked_first:
            ask()
        else:
            again()

    def _write(self, path: str, data: bytes) -> None:
        self.until = self.simulation.scheduler.now + PATIENCE
        self.note(f"writes {path} {data.decode()}")

        def write() -> None:
            try:
                if self._session is None:
                    self._session = Session(self.simulation.tree, self.process, SESSION_TIMEOUT)
                self._session.create(path, data)
            except SessionExpired:
                self._session = None
            except (StoreError, StoreUnavailable) as error:
                self.note(f"has not written {path}: {error}")
            self.until = 0

        Task(self.process, write, "tool").start()


@dataclass
class Deleter(Client):
    """Deletes records, of one partition at a time."""

    until: int = 0
    """It does not ask any more after this time."""

    def act(self) -> None:
        """Begin to delete all that is committed, or a part of what was committed so far, if nothing is under way."""
        if self.simulation.scheduler.now < self.until:
            return
        self.until = self.simulation.scheduler.now + PATIENCE
        at, topic_id, _ = self.chance.choice(list(self.simulation.partitions()))
        ledger = self.simulation.ledger(at, topic_id)
        offset = -1 if ledger is None or self.chance.random() < 0.7 else self.chance.randint(0, ledger.end)
        self.note(f"deletes the records of {at} below {offset}")
        self._ask(at, topic_id, offset)

    def _ask(self, at: TopicPartition, topic_id: UUID, offset: int) -> None:
        """Ask the leader, as far as this client knows it, again and again."""
        if self.simulation.scheduler.now >= self.until:
            return

        def again() -> None:
            self.after(BACKOFF, lambda: self._ask(at, topic_id, offset))

        def answered(answer: Any) -> None:
            if isinstance(answer, Failure) or answer[0]:
                self.refresh()
                again()
                return
            self.note(f"has deleted the records of {at} below {offset}")
            self.until = 0

        leader = self.leader(at, topic_id)
        if leader < 0:
            again()
        else:
            self.call(leader, ("delete_records", at, topic_id, offset, DELETION_TIMEOUT), answered)
