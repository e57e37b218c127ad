"""Looks at brokers and tree after each step, and holds the invariants against what it finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kbroker.coordination import paths
from kbroker.coordination.store import Create, Delete, Operation, SetData
from kbroker.coordination.tree import Tree
from kbroker.model import TopicPartition
from tests.simulation import invariants
from tests.simulation.invariants import Ledger, Replica, Violation
from tests.simulation.stored import LogFiles, Stored

STATE = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")
CONTROLLER_EPOCH = "/controller_epoch"
UNCLEAN = re.compile(rb'"unclean.leader.election.enable":"true"')


@dataclass
class Watched:
    """A log of one life of a broker, and how far it has been compared with the ledger."""

    log: Any
    files: Any
    history: int
    last: Replica | None = None
    compared: int = 0
    """Its batches below this offset are those of the ledger."""


@dataclass
class Checker:
    """One for each simulation. `Violation` is raised at the step that breaks a promise."""

    note: Callable[[str], None]
    ledgers: dict[tuple[UUID, int], Ledger] = field(default_factory=dict)
    watched: dict[tuple[int, TopicPartition], Watched] = field(default_factory=dict)
    states: dict[str, paths.PartitionRegistration] = field(default_factory=dict)
    controller_epoch: int = 0
    controller_session: int = 0
    """The session that was elected in this epoch."""
    allow_unclean: set[str] = field(default_factory=set)
    """The paths of configs that have allowed unclean elections."""
    ids: dict[int, int] = field(default_factory=dict)
    """Producer ids that were given out: first id -> how many."""
    checks: int = 0
    reader: Callable[[Any], Any] = lambda log: LogFiles(log.path)
    """Makes what reads a log on and on."""
    lives: Callable[[int], Any] = lambda node_id: None
    """The life of a broker now, or None."""

    def hold(self, found: Iterator[str], name: str = "") -> None:
        self.checks += 1
        for what in found:
            promise = getattr(found, "__name__", name)
            text = f"{name}: {what}" if name else what
            self.note(f"BROKEN {promise}: {text}")
            raise Violation(f"{promise}: {text}")

    def ledger(self, log: Any) -> Ledger:
        at = log.topic_partition
        ledger = self.ledgers.get((log.topic_id, at.partition_id))
        if ledger is None:
            ledger = self.ledgers[log.topic_id, at.partition_id] = Ledger(str(at))
        return ledger

    # --- brokers

    def forget(self, node_id: int) -> None:
        """A broker's life has ended: what comes next is another one."""
        for key in [key for key in self.watched if key[0] == node_id]:
            del self.watched[key]

    def look_at(self, node_id: int, log: Any) -> None:
        """Compare one log with what was promised, as far as it has changed."""
        state = log.state
        if state.state != "open":
            return
        key = node_id, log.topic_partition
        watched = self.watched.get(key)
        if watched is None or watched.log is not log:
            watched = self.watched[key] = Watched(log, self.reader(log), log.history)
        now = Replica(
            node_id, state.role == "leader", state.leader_epoch, state.log_start_offset, state.log_end_offset,
            state.high_watermark,
        )  # fmt: skip
        before = watched.last
        if now == before and watched.history == log.history:
            return
        watched.last = now
        ledger = self.ledger(log)
        if not ledger.is_lossy and (before is None or now.log_start != before.log_start):
            self.hold(invariants.starts_where_somebody_asked_for(ledger, now), ledger.name)
        if watched.history != log.history:
            watched.history = log.history
            watched.files = self.reader(log)
            watched.compared = 0
        if before is not None:
            self.hold(invariants.high_watermark_never_back(before, now), ledger.name)
            self.hold(invariants.epoch_only_grows(before, now), ledger.name)
        if now.leads:
            ledger.start = max(ledger.start, now.log_start)
            if before is None or not before.leads or before.leader_epoch != now.leader_epoch:
                self.hold(invariants.one_leader_in_each_epoch(ledger, now), ledger.name)
                if not ledger.is_lossy:
                    self.hold(invariants.leader_has_everything(ledger, now), ledger.name)
                self._compare(ledger, watched, now, max(ledger.end_before(now.leader_epoch), now.high_watermark))
        if now.high_watermark > watched.compared:
            self._compare(ledger, watched, now, now.high_watermark)

    def _compare(self, ledger: Ledger, watched: Watched, now: Replica, until: int) -> None:
        if ledger.is_lossy:
            return
        for batch in watched.files.read(until):
            self.hold(invariants.has_no_gap(now, watched.compared, batch.base_offset), ledger.name)
            watched.compared = batch.last_offset + 1
            if batch.last_offset < max(ledger.start, now.log_start):
                continue
            self.hold(invariants.equal_below_high_watermark(ledger, now.node_id, batch), ledger.name)
            if batch.base_offset >= ledger.end:
                self.hold(invariants.no_duplicates_and_in_order(ledger, batch), ledger.name)
                ledger.commit(batch, now.leader_epoch)
        self.hold(invariants.has_no_gap(now, watched.compared, until), ledger.name)

    # --- clients

    def deletion_asked(self, log: Any, offset: int) -> None:
        """A leader is asked to delete the records below an offset; -1: all that is committed."""
        ledger = self.ledger(log)
        ledger.asked_start = max(ledger.asked_start, ledger.end if offset < 0 else offset)

    def acknowledged(self, ledger: Ledger, offset: int, values: Sequence[bytes]) -> None:
        if not ledger.is_lossy:
            self.hold(invariants.acknowledged_is_committed(ledger, offset, values), ledger.name)

    def consumed(self, ledger: Ledger, node_id: int, batch: Stored) -> None:
        if not ledger.is_lossy:
            self.hold(invariants.consumed_is_committed(ledger, node_id, batch), ledger.name)

    def consumed_committed(self, ledger: Ledger, node_id: int, start: int, end: int, seen: Sequence[Stored]) -> None:
        if not ledger.is_lossy:
            self.hold(invariants.committed_reads_are_exact(ledger, node_id, start, end, seen), ledger.name)

    def ids_given(self, ids: Sequence[int]) -> None:
        """Look at producer ids that a client was given, in the order in which it was given them."""
        first = 0
        for at in range(1, len(ids) + 1):
            if at == len(ids) or ids[at] != ids[at - 1] + 1:
                self.hold(invariants.producer_ids_are_new(self.ids, ids[first], at - first))
                self.ids[ids[first]] = at - first
                first = at

    # --- the tree

    def tree_changed(self, session_id: int, operations: Sequence[Operation], tree: Tree) -> None:
        before = self.controller_epoch
        elected = False
        for operation in operations:
            if isinstance(operation, Create | SetData):
                if operation.path == paths.CONTROLLER:
                    elected = True
                    self.controller_session = session_id
                elif operation.path == CONTROLLER_EPOCH:
                    self._controller_epoch(int(operation.data))
                elif found := STATE.fullmatch(operation.path):
                    self._state(found[1], int(found[2]), operation.path, operation.data, tree)
                    of_controller = session_id == self.controller_session
                    self.hold(invariants.controllers_write_in_their_own_epochs(of_controller), operation.path)
                elif operation.path.startswith("/config/") and UNCLEAN.search(operation.data):
                    self.allow_unclean.add(operation.path)
            elif isinstance(operation, Delete):
                self.states.pop(operation.path, None)
                self.allow_unclean.discard(operation.path)

        if elected:
            self.hold(invariants.controller_has_an_epoch_of_its_own(before, self.controller_epoch))

    def _controller_epoch(self, epoch: int) -> None:
        if epoch < self.controller_epoch:
            raise Violation(f"the controller epoch went back from {self.controller_epoch} to {epoch}")
        self.controller_epoch = epoch

    def _state(self, topic: str, partition_id: int, path: str, data: bytes, tree: Tree) -> None:
        now = paths.decode_partition_state(path, data)
        name = f"{topic}-{partition_id}"
        before = self.states.get(path)
        self.states[path] = now
        node = tree.node(paths.topic_path(topic))
        assignment = paths.decode_topic(path, node.data) if node is not None else None
        replicas = assignment.replicas.get(partition_id, ()) if assignment is not None else ()
        self.hold(invariants.state_is_sound(before, now, replicas), name)
        self.hold(invariants.state_is_of_the_controller(now, self.controller_epoch), name)
        if before is None:
            return
        self.hold(invariants.epochs_of_state_only_grow(before, now), name)
        if now.leader >= 0 and now.leader not in before.isr:
            allowing = {paths.topic_config_path(topic), paths.broker_config_path(paths.DEFAULT_ENTITY)}
            self.hold(invariants.unclean_only_where_allowed(before, now, self.allow_unclean & allowing), name)
            ledger = self.ledgers.get((assignment.topic_id, partition_id)) if assignment is not None else None
            if ledger is not None:
                ledger.is_lossy = True
        for node_id in set(now.isr) - set(before.isr):
            life = self.lives(node_id)
            at = TopicPartition(topic, partition_id)
            log = life.log(at) if life is not None else None
            if log is not None and log.state.state == "open" and assignment is not None:
                ledger = self.ledgers.get((assignment.topic_id, partition_id))
                if ledger is not None and not ledger.is_lossy:
                    state = log.state
                    replica = Replica(
                        node_id, state.role == "leader", state.leader_epoch, state.log_start_offset,
                        state.log_end_offset, state.high_watermark,
                    )  # fmt: skip
                    self.hold(invariants.new_member_has_everything(ledger, replica), name)
