"""A member of a group: registered, rebalanced with the others whenever something changes, its offsets committed.

A rebalance is Kafka's: every member works out from the same nodes who gets what (`assignment.py`), lets go of what is
no longer its own, its offsets committed first, and claims the rest by making ephemeral nodes. What somebody else still
owns makes the attempt fail; after rebalance.backoff.ms there is another. Unlike Kafka's a member goes on reading
meanwhile what was its own and stays so, reads offsets only once it owns the partition, and does not give up after
rebalance.max.retries: it says so in the log and begins again.

A session that has expired has lost everything: its streams stop at once, nothing is committed, and with the next
session the member registers anew. So does one whose registration somebody has deleted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from kbroker.client.config import Options
from kbroker.client.connector.assignment import STRATEGIES, Assignment, Disagreement, Partitions, java_order
from kbroker.client.connector.listener import ConsumerRebalanceListener
from kbroker.client.connector.offsets import OffsetStorage
from kbroker.client.connector.registry import AlreadyRegistered, GroupRegistry, StillOwned
from kbroker.client.connector.streams import Feed, MessageStream
from kbroker.client.connector.subscription import Subscription
from kbroker.client.errors import ClientError
from kbroker.client.zookeeper.session import Session
from kbroker.coordination.store import SessionExpired, WatchEvent
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import TopicPartition

log = logging.getLogger("kbroker.client")

FAILURES = (StillOwned, Disagreement, KbrokerError)
"""What makes an attempt fail, and not the member."""


class ConsumerRebalanceFailed(ClientError):
    """The members of the group did not agree within rebalance.max.retries attempts. The message has the last reason."""

    code = ErrorCode.REBALANCE_IN_PROGRESS
    retriable = True
    hint = "rebalance.max.retries x rebalance.backoff.ms must be longer than zookeeper.session.timeout.ms"


class Member:
    """`assign` is called with all partitions that are read from now on and their offsets, -1: where they are, or where
    auto.offset.reset says. `stream_of` names the stream of a topic and thread number.

    Locks: `_changed` guards the flags; `_ownership` is held by who rebalances, commits or lets go.
    """

    def __init__(
        self,
        options: Options,
        session: Session,
        registry: GroupRegistry,
        feed: Feed,
        storage: OffsetStorage,
        assign: Callable[[Mapping[TopicPartition, int]], object],
    ):
        self._options = options
        self._session = session
        self._registry = registry
        self._feed = feed
        self._storage = storage
        self._assign = assign
        self._subscription = Subscription("static", {})
        self._stream_of: Callable[[str, int], MessageStream | None] | None = None
        self.listener = ConsumerRebalanceListener()
        self._going: dict[TopicPartition, int] = {}  # positions of what is being let go of
        self._listening = 0  # the thread that is in the listener
        self._next_commit = time.monotonic() + options.seconds("auto.commit.interval.ms")
        self._owned: Assignment = {}
        self._ownership = threading.RLock()
        self._changed = threading.Condition(threading.Lock())
        self._is_due = False  # a rebalance
        self._is_stopped = False
        self._is_registered = False
        self._thread: threading.Thread | None = None
        session.on_expired.append(self._expired)
        session.on_renewed.append(self._heard)

    # --- beginning and end ----------------------------------------------------------------------------------

    def join(self, subscription: Subscription, stream_of: Callable[[str, int], MessageStream | None]) -> None:
        """Returns when this member has its share; ConsumerRebalanceFailed. Then it is kept up on a thread."""
        self._subscription = subscription
        self._stream_of = stream_of
        self._rebalance()
        name = f"kbroker-connector-{self._options['client.id']}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def leave(self, timeout_s: float) -> None:
        """Commit if that is to be done by itself, let go of everything. Within about `timeout_s`."""
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
                self._registry.unregister()
        except FAILURES as error:
            log.warning("a consumer could not leave its group: %s", error)
        finally:
            self._ownership.release()

    @property
    def owned(self) -> list[TopicPartition]:
        return sorted(self._owned)

    @property
    def is_listening(self) -> bool:
        """Whether the caller is the listener."""
        return self._listening == threading.get_ident()

    # --- what happens ---------------------------------------------------------------------------------------

    def _heard(self, _event: WatchEvent | None = None) -> None:
        """A rebalance is due. On the session's thread of events too."""
        with self._changed:
            self._is_due = True
            self._changed.notify_all()

    def _expired(self) -> None:
        with self._ownership:
            self._lose_everything()

    def _lose_everything(self) -> None:
        """With `_ownership`. Others may have read and committed since."""
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
                log.error("%s: %s", self._registry.consumer_id, error)
                self._wait(self._options.seconds("rebalance.backoff.ms"))
            except Exception:
                log.exception("a consumer's part in its group failed")
                self._wait(self._options.seconds("rebalance.backoff.ms"))

    def _wait(self, seconds: float) -> bool:
        """Shorter when the end comes: True."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_stopped, seconds)

    # --- offsets --------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """What streams have given."""
        with self._ownership:
            self._storage.commit(self._feed.positions() | self._going)

    def _commit_if_due(self) -> None:
        """By itself, and within attempts that fail too: there may be no end of them."""
        if self._options["auto.commit.enable"] and time.monotonic() >= self._next_commit:
            self._next_commit = time.monotonic() + self._options.seconds("auto.commit.interval.ms")
            try:
                self.commit()
            except FAILURES as error:
                log.error("%s: offsets are not committed: %s", self._registry.consumer_id, error)

    # --- rebalancing ----------------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        """Attempts until one succeeds. ConsumerRebalanceFailed: another is due then."""
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
                self._heard()
                raise
            except FAILURES as error:
                log.info("%s: attempt %d to rebalance: %s", self._registry.consumer_id, number + 1, error)
                last = error
        self._heard()
        raise ConsumerRebalanceFailed(f"no agreement in {attempts} attempts; the last: {last}")

    def _attempt(self) -> None:
        """With `_ownership`. What fails leaves owned what was, as far as it is still wanted."""
        if not self._is_registered:
            patience_s = 2 * self._options.seconds("zookeeper.session.timeout.ms")
            self._registry.register(self._subscription, patience_s, self._wait)
            self._is_registered = True
        self._registry.release_all_but(self._owned.keys())
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
            self._registry.claim(new)
            try:
                offsets = self._storage.load(new.keys())
                self._tell(self.listener.before_starting_fetchers, self._registry.consumer_id, by_topic(shares))
                with self._feed.held():
                    self._begin(new, offsets)
            except BaseException:
                self._registry.release(new.keys())
                raise
        log.info("%s has %d partitions, %d of them new", self._registry.consumer_id, len(self._owned), len(new))

    def _decide(self) -> Assignment | None:
        """Who has what now; None: this member is no longer registered. Watches are set for all that it depends on."""
        members = self._registry.members(self._heard)
        if self._registry.consumer_id not in members:
            return None
        existing: list[str] = []
        if any(each.is_filter for each in members.values()):
            existing = self._registry.topics(self._heard)
        return shares_of(
            self._registry.consumer_id,
            members,
            existing,
            lambda topics: self._registry.partitions(topics, self._heard),
            self._options["partition.assignment.strategy"],
            exclude_internal=self._options["exclude.internal.topics"],
        )

    def _begin(self, new: Assignment, offsets: Mapping[TopicPartition, int]) -> None:
        """While the feed is held: read what was claimed."""
        assert self._stream_of is not None
        routes = {}
        for partition, owner in new.items():
            stream = self._stream_of(partition.topic, int(owner.rpartition("-")[2]))
            if stream is not None:  # else its user has forgotten it, and the connector
                routes[partition] = stream
        self._owned = {**self._owned, **new}
        try:
            self._assign({partition: offsets.get(partition, -1) for partition in self._owned})
        except BaseException:
            self._owned = {partition: owner for partition, owner in self._owned.items() if partition not in new}
            raise
        self._feed.add(routes, offsets)

    def _let_go(self, gone: set[TopicPartition], *, tell: bool = True) -> None:
        """While the feed is held: streams give no more of these, offsets are committed, then others may have them."""
        positions = self._feed.positions(while_held=True)
        self._feed.drop(gone)
        self._owned = {partition: owner for partition, owner in self._owned.items() if partition not in gone}
        try:
            self._assign(dict.fromkeys(self._owned, -1))
            if self._options["auto.commit.enable"]:
                self._storage.commit(positions)
        except FAILURES as error:
            log.warning("%s: offsets are not committed: %s", self._registry.consumer_id, error)
        if tell:
            self._going = {partition: offset for partition, offset in positions.items() if partition in gone}
            topics: dict[str, set[int]] = {}
            for partition in gone:
                topics.setdefault(partition.topic, set()).add(partition.partition_id)
            self._tell(self.listener.before_releasing_partitions, topics)
            self._going = {}
        self._storage.forget(gone)
        self._registry.release(gone)

    def _tell(self, call: Callable[..., object], *arguments: object) -> None:
        self._listening = threading.get_ident()
        try:
            call(*arguments)
        except Exception:
            log.exception("%s: its rebalance listener failed", self._registry.consumer_id)
        finally:
            self._listening = 0

    def _is_mine(self, owner: str) -> bool:
        return owner.rpartition("-")[0] == self._registry.consumer_id


def by_topic(shares: Assignment) -> dict[str, dict[int, str]]:
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
    """Who gets what by the strategy, as far as that concerns one of the members. Disagreement."""
    threads: dict[str, list[str]] = {}
    for member, subscription in members.items():
        for topic, count in subscription.topics(existing, exclude_internal=exclude_internal).items():
            threads.setdefault(topic, []).extend(f"{member}-{number}" for number in range(count))
    ours = members[consumer_id].topics(existing, exclude_internal=exclude_internal)
    if strategy == "range":  # topics are on their own there
        threads = {topic: threads[topic] for topic in ours}
    for readers in threads.values():
        readers.sort(key=java_order)
    return STRATEGIES[strategy](threads, partitions_of(threads))
