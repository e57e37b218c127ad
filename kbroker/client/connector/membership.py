"""A member of a group in ZooKeeper: it registers, rebalances with the others when something changes, and commits.

A rebalance is Kafka's. Every member computes from the same nodes who gets what (`assignment.py`). It releases the
partitions that are no longer its own, with their offsets committed first, and claims its new ones by creating ephemeral
nodes. An attempt fails when another member still owns one of them; the next attempt comes after rebalance.backoff.ms.

Unlike Kafka's consumer, a member goes on reading the partitions that it keeps, and reads the offset of a partition only
once it owns it. It does not give up after rebalance.max.retries: it logs an error and begins again.

A member whose session has expired has lost everything: its streams stop at once, nothing is committed, and it registers
anew with the next session. So does a member whose registration somebody has deleted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from kbroker.client.config.option import Options
from kbroker.client.connector.assignment import STRATEGIES, Assignment, Disagreement, Partitions, java_order
from kbroker.client.connector.group_nodes import AlreadyRegistered, GroupNodes, StillOwned
from kbroker.client.connector.listener import ConsumerRebalanceListener
from kbroker.client.connector.offsets import OffsetStorage
from kbroker.client.connector.streams import Feed, MessageStream
from kbroker.client.connector.subscription import Subscription
from kbroker.client.errors import ClientError
from kbroker.client.zookeeper.session import Session
from kbroker.coordination.store import SessionExpired, WatchEvent
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import TopicPartition

log = logging.getLogger("kbroker.client")

FAILURES = (StillOwned, Disagreement, KbrokerError)
"""Exceptions that make an attempt fail, but do not end the member."""


class ConsumerRebalanceFailed(ClientError):
    """Raised when the members of the group did not agree within rebalance.max.retries attempts.

    The message has the reason of the last attempt.
    """

    code = ErrorCode.REBALANCE_IN_PROGRESS
    retriable = True
    hint = "rebalance.max.retries x rebalance.backoff.ms must be longer than zookeeper.session.timeout.ms"


class Member:
    """One connector as a member of its group.

    `assign` is called with all partitions to read from now on, and their offsets; -1: the position that the partition
    has, or else where auto.offset.reset says.

    Locks: `_changed` guards the flags. `_ownership` is held by a thread that rebalances, commits or releases.
    """

    def __init__(
        self,
        options: Options,
        session: Session,
        nodes: GroupNodes,
        feed: Feed,
        storage: OffsetStorage,
        assign: Callable[[Mapping[TopicPartition, int]], object],
    ):
        self._options = options
        self._session = session
        self._nodes = nodes
        self._feed = feed
        self._storage = storage
        self._assign = assign
        self._subscription = Subscription("static", {})
        self._stream_of: Callable[[str, int], MessageStream | None] | None = None
        self.listener = ConsumerRebalanceListener()
        self._going: dict[TopicPartition, int] = {}  # positions of partitions that are being released
        self._listening = 0  # the id of the thread that is in the listener; 0: none
        self._next_commit = time.monotonic() + options.seconds("auto.commit.interval.ms")
        self._owned: Assignment = {}
        self._ownership = threading.RLock()
        self._changed = threading.Condition(threading.Lock())
        self._is_due = False  # whether a rebalance is due
        self._is_stopped = False
        self._is_registered = False
        self._thread: threading.Thread | None = None
        session.on_expired.append(self._expired)
        session.on_renewed.append(self._mark_due)

    # --- beginning and end ----------------------------------------------------------------------------------

    def join(self, subscription: Subscription, stream_of: Callable[[str, int], MessageStream | None]) -> None:
        """Join the group, and return when this member has its partitions. From then on a thread rebalances.

        `stream_of` returns the stream for a topic and a thread number. Raises ConsumerRebalanceFailed when the group
        does not agree, and AlreadyRegistered when another consumer has this consumer.id.
        """
        self._subscription = subscription
        self._stream_of = stream_of
        self._rebalance()
        name = f"kbroker-connector-{self._options['client.id']}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def leave(self, timeout_s: float) -> None:
        """End the streams, commit (with auto.commit.enable), release all partitions and unregister.

        Takes about `timeout_s` seconds at most. Failures are logged.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._feed.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(deadline - time.monotonic(), 0))
        if not self._ownership.acquire(timeout=max(deadline - time.monotonic(), 0.1)):
            log.warning("a consumer leaves its group without a commit: what it does takes too long")
            return
        try:
            if self._owned:
                with self._feed.held():
                    self._let_go(set(self._owned), tell=False)
            if self._is_registered:
                self._nodes.unregister()
        except FAILURES as error:
            log.warning("a consumer could not leave its group: %s", error)
        finally:
            self._ownership.release()

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that this member owns, sorted."""
        return sorted(self._owned)

    @property
    def is_listening(self) -> bool:
        """Whether the caller runs in the rebalance listener."""
        return self._listening == threading.get_ident()

    # --- what happens ---------------------------------------------------------------------------------------

    def _mark_due(self, _event: WatchEvent | None = None) -> None:
        """Note that a rebalance is due. For any thread, also the one on which ZooKeeper's events come."""
        with self._changed:
            self._is_due = True
            self._changed.notify_all()

    def _expired(self) -> None:
        with self._ownership:
            self._lose_everything()

    def _lose_everything(self) -> None:
        """Stop reading everything, without a commit: others may have read and committed since.

        The caller holds `_ownership`.
        """
        self._is_registered = False
        lost = set(self._owned)
        if lost:
            with self._feed.held():
                self._feed.drop(lost)
                self._owned = {}
                self._storage.forget(lost)
                self._assign({})

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._is_stopped or self._is_due):
                    left = self._next_commit - time.monotonic() if self._options["auto.commit.enable"] else None
                    if (left is not None and left <= 0) or not self._changed.wait(left):
                        break
                if self._is_stopped:
                    return
                is_due = self._is_due
            try:
                if is_due:
                    self._rebalance()
                self._commit_if_due()
            except FAILURES as error:
                log.error("%s: %s", self._nodes.consumer_id, error)
                self._wait(self._options.seconds("rebalance.backoff.ms"))
            except Exception:
                log.exception("a consumer's part in its group failed")
                self._wait(self._options.seconds("rebalance.backoff.ms"))

    def _wait(self, seconds: float) -> bool:
        """Wait, but return at once, with True, when the member is to stop."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_stopped, seconds)

    # --- offsets --------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the positions behind the records that streams have handed out."""
        with self._ownership:
            self._storage.commit(self._feed.positions() | self._going)

    def _commit_if_due(self) -> None:
        """Commit if auto.commit.interval.ms is over.

        Also called between attempts to rebalance, which may go on for ever.
        """
        if self._options["auto.commit.enable"] and time.monotonic() >= self._next_commit:
            self._next_commit = time.monotonic() + self._options.seconds("auto.commit.interval.ms")
            try:
                self.commit()
            except FAILURES as error:
                log.error("%s: offsets are not committed: %s", self._nodes.consumer_id, error)

    # --- rebalancing ----------------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        """Rebalance, in up to rebalance.max.retries attempts.

        Raises ConsumerRebalanceFailed when all of them fail; then another rebalance is due.
        """
        attempts: int = self._options["rebalance.max.retries"]
        last: Exception | None = None
        for number in range(attempts):
            if number:
                self._wait(self._options.seconds("rebalance.backoff.ms"))
            with self._changed:
                if self._is_stopped:
                    return
                self._is_due = False
            self._commit_if_due()
            try:
                with self._ownership:
                    self._attempt()
                return
            except AlreadyRegistered:
                if self._wait(0):
                    return
                self._mark_due()
                raise
            except FAILURES as error:
                log.info("%s: attempt %d to rebalance: %s", self._nodes.consumer_id, number + 1, error)
                last = error
        self._mark_due()
        raise ConsumerRebalanceFailed(f"no agreement in {attempts} attempts; the last: {last}")

    def _attempt(self) -> None:
        """Make one attempt to rebalance. After a failure the member still owns what it had and still wants.

        The caller holds `_ownership`. Raises one of FAILURES.
        """
        if not self._is_registered:
            patience_s = 2 * self._options.seconds("zookeeper.session.timeout.ms")
            self._nodes.register(self._subscription, patience_s, self._wait)
            self._is_registered = True
        self._nodes.release_all_but(self._owned.keys())
        shares = self._decide()
        if shares is None:
            self._lose_everything()
            raise SessionExpired
        wanted = {partition: owner for partition, owner in shares.items() if self._is_mine(owner)}
        gone = {partition for partition, owner in self._owned.items() if wanted.get(partition) != owner}
        if gone:
            with self._feed.held():
                self._let_go(gone)
        new = {partition: owner for partition, owner in wanted.items() if partition not in self._owned}
        if new:
            self._nodes.claim(new)
            try:
                offsets = self._storage.load(new.keys())
                owners = owners_by_topic(shares)
                self._call_listener(self.listener.before_starting_fetchers, self._nodes.consumer_id, owners)
                with self._feed.held():
                    self._begin(new, offsets)
            except BaseException:
                self._nodes.release(new.keys())
                raise
        log.info("%s has %d partitions, %d of them new", self._nodes.consumer_id, len(self._owned), len(new))

    def _decide(self) -> Assignment | None:
        """Return what this member and the others get now, and watch all nodes that this depends on.

        Returns None when this member is no longer registered.
        """
        members = self._nodes.members(self._mark_due)
        if self._nodes.consumer_id not in members:
            return None
        existing: list[str] = []
        if any(each.is_filter for each in members.values()):
            existing = self._nodes.topics(self._mark_due)
        return shares_of(
            self._nodes.consumer_id,
            members,
            existing,
            lambda topics: self._nodes.partitions(topics, self._mark_due),
            self._options["partition.assignment.strategy"],
            exclude_internal=self._options["exclude.internal.topics"],
        )

    def _begin(self, new: Assignment, offsets: Mapping[TopicPartition, int]) -> None:
        """Begin to read the partitions that were claimed. Call it while the feed is held."""
        assert self._stream_of is not None
        routes = {}
        for partition, owner in new.items():
            stream = self._stream_of(partition.topic, int(owner.rpartition("-")[2]))
            if stream is not None:  # None: the user has dropped the stream, and the connector with it
                routes[partition] = stream
        self._owned = {**self._owned, **new}
        try:
            self._assign({partition: offsets.get(partition, -1) for partition in self._owned})
        except BaseException:
            self._owned = {partition: owner for partition, owner in self._owned.items() if partition not in new}
            raise
        self._feed.add(routes, offsets)

    def _let_go(self, gone: set[TopicPartition], *, tell: bool = True) -> None:
        """Release partitions: stop reading, commit (with auto.commit.enable), tell the listener, delete the nodes.

        Call it while the feed is held. After it other members may have the partitions.
        """
        positions = self._feed.positions(while_held=True)
        self._feed.drop(gone)
        self._owned = {partition: owner for partition, owner in self._owned.items() if partition not in gone}
        try:
            self._assign(dict.fromkeys(self._owned, -1))
            if self._options["auto.commit.enable"]:
                self._storage.commit(positions)
        except FAILURES as error:
            log.warning("%s: offsets are not committed: %s", self._nodes.consumer_id, error)
        if tell:
            self._going = {partition: offset for partition, offset in positions.items() if partition in gone}
            topics: dict[str, set[int]] = {}
            for partition in gone:
                topics.setdefault(partition.topic, set()).add(partition.partition_id)
            self._call_listener(self.listener.before_releasing_partitions, topics)
            self._going = {}
        self._storage.forget(gone)
        self._nodes.release(gone)

    def _call_listener(self, call: Callable[..., object], *arguments: object) -> None:
        self._listening = threading.get_ident()
        try:
            call(*arguments)
        except Exception:
            log.exception("%s: its rebalance listener failed", self._nodes.consumer_id)
        finally:
            self._listening = 0

    def _is_mine(self, owner: str) -> bool:
        return owner.rpartition("-")[0] == self._nodes.consumer_id


def owners_by_topic(shares: Assignment) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for partition, owner in shares.items():
        found.setdefault(partition.topic, {})[partition.partition_id] = owner
    return found


def shares_of(
    consumer_id: str,
    members: Mapping[str, Subscription],
    existing: Collection[str],
    partitions_of: Callable[[Iterable[str]], Partitions],
    strategy: str,
    *,
    exclude_internal: bool,
) -> Assignment:
    """Return which thread of the group gets which partition, by the strategy.

    With `range`, only topics that member `consumer_id` reads are assigned. Raises Disagreement when the subscriptions
    do not fit the strategy.
    """
    threads: dict[str, list[str]] = {}
    for member, subscription in members.items():
        for topic, count in subscription.topics(existing, exclude_internal=exclude_internal).items():
            threads.setdefault(topic, []).extend(f"{member}-{number}" for number in range(count))
    ours = members[consumer_id].topics(existing, exclude_internal=exclude_internal)
    if strategy == "range":  # which assigns each topic by itself: topics that this member does not read do not matter
        threads = {topic: threads[topic] for topic in ours}
    for readers in threads.values():
        readers.sort(key=java_order)
    return STRATEGIES[strategy](threads, partitions_of(threads))
