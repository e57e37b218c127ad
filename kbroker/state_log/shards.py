"""The partitions of an internal topic that this broker leads, each with its state machines in memory."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Self, TypeVar

from kbroker.errors import ErrorCode, KbrokerError
from kbroker.rules.java_hash import java_string_hash
from kbroker.state_log.loader import Loader
from kbroker.state_log.replica import Replica
from kbroker.state_log.state_partition import Phase, StatePartition
from kbroker.state_log.topic import StateTopic

LOG = logging.getLogger(__name__)


class Shard:
    """One partition's state machines. `lock` guards them and the order of the partition's records.

    The lock is reentrant: an append may be committed before it returns, and then calls back. `Shards.hold` returns a
    shard with its lock held; `with` releases it.
    """

    __slots__ = ()

    partition: StatePartition
    lock: threading.RLock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class Refusal:
    """What `Shards.hold` returns in place of a shard: `with` gives the reason, and there is no lock to release."""

    __slots__ = ("_error",)

    def __init__(self, error: ErrorCode):
        self._error = error

    def __enter__(self) -> ErrorCode:
        return self._error

    def __exit__(self, *_: object) -> None:
        return None


S = TypeVar("S", bound=Shard)


class Shards(Generic[S]):
    """Finds the shard of a key; opens and loads shards that are not open yet. May be used by any thread.

    `make` makes the shard of a partition. `load` replays it, without its lock; that may take long, and it may return
    before the shard is served (`drop` if it cannot be). `end` ends a shard that this broker does not lead any more; its
    ErrorCode is the answer to requests that wait.

    A broker that is alone opens partitions when they are asked for. A member is told of its partitions by `lead` and
    `resign`, in the order of their epochs.
    """

    def __init__(
        self,
        name: str,
        topic: StateTopic,
        *,
        make: Callable[[int, Replica], S],
        load: Callable[[S], None],
        end: Callable[[S, ErrorCode], None],
    ):
        self._name = name
        self._topic = topic
        self._make, self._load_shard, self._end = make, load, end
        self._loader = Loader(f"{name}-loader")
        self._lock = threading.Lock()
        """Guards `_shards` and `_fences`; never held together with a shard's lock."""
        self._shards: dict[int, S] = {}
        self._fences: dict[int, int] = {}
        """The lowest leader epoch in which a partition may be opened, where `lead` or `resign` has named one."""
        self._running = False
        self._said = ""

    # --- life --------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Serve from now on; the partitions that this broker leads are loaded in the background."""
        self._running = True
        for partition_id in self._topic.led_partitions():
            self._open(partition_id)

    def stop(self) -> None:
        """Stop serving and end all shards."""
        self._running = False
        with self._lock:
            shards = list(self._shards.values())
        for shard in shards:
            self._end(shard, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._loader.stop()

    def lead(self, partition_id: int, leader_epoch: int | None = None) -> None:
        """Open the partition, which this broker leads now: it is loaded in the background.

        If it is open and this broker has led it without a break, the shard goes on in the new epoch; otherwise what is
        open is ended first. With a `leader_epoch` that is older than one named before, by `lead` or `resign`, this is a
        no-op.
        """
        with self._lock:
            if leader_epoch is not None and not self._fence(partition_id, leader_epoch):
                return
            shard = self._shards.get(partition_id)
            replica = self._topic.replica(partition_id)
            if shard is not None and replica is not None and replica.led_since > shard.partition.leader_epoch:
                del self._shards[partition_id]
                stale, shard = shard, None
            else:
                stale = None
        if stale is not None:
            self._end(stale, ErrorCode.NOT_COORDINATOR)
        if shard is None:
            self._open(partition_id)
        elif replica is not None:
            with shard.lock:
                shard.partition.lead_on(replica.leader_epoch)

    def resign(self, partition_id: int, leader_epoch: int | None = None) -> None:
        """End the partition's shard: another broker leads the partition in `leader_epoch`.

        Requests that wait are answered with NOT_COORDINATOR. An epoch that is older than one named before makes this a
        no-op. Without an epoch the partition is deleted here, and epochs may begin anew.
        """
        with self._lock:
            if leader_epoch is None:
                self._fences.pop(partition_id, None)
            elif not self._fence(partition_id, leader_epoch):
                return
            else:
                self._fences[partition_id] = leader_epoch + 1
            shard = self._shards.pop(partition_id, None)
        if shard is not None:
            self._end(shard, ErrorCode.NOT_COORDINATOR)

    def _fence(self, partition_id: int, leader_epoch: int) -> bool:
        """Refuse older epochs from now on. Returns False if `leader_epoch` is refused. The caller holds `_lock`."""
        if leader_epoch < self._fences.get(partition_id, leader_epoch):
            LOG.info("%s-%d: epoch %d is over", self._name, partition_id, leader_epoch)
            return False
        self._fences[partition_id] = leader_epoch
        return True

    # --- opening -----------------------------------------------------------------------------------------
    def open_for(self, key: str) -> ErrorCode:
        """Make sure that the topic exists and that the key's partition is loaded or being loaded. May block.

        Returns NOT_COORDINATOR if another broker leads the partition, and COORDINATOR_NOT_AVAILABLE if the key cannot
        be served now.
        """
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        is_new = self._topic.partition_count() is None
        try:
            self._topic.ensure()
        except KbrokerError as error:
            is_being_created = error.code is ErrorCode.LEADER_NOT_AVAILABLE
            if not is_being_created and str(error) != self._said:  # clients ask again and again
                self._said = str(error)
                LOG.warning("the topic of the %s coordinator cannot be created: %s", self._name, error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._said = ""
        partition_id = self.partition_for(key)
        # Open all partitions of a new topic here: they are empty, so no later request is told to wait for loading.
        for wanted in self._topic.led_partitions() if is_new else (partition_id,):
            self._open(wanted, run=lambda load: load())
        if partition_id not in self._topic.led_partitions():
            return ErrorCode.NOT_COORDINATOR
        # A partition whose loading failed is not in `_shards` any more.
        return ErrorCode.NONE if partition_id in self._shards else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def is_open_for(self, key: str) -> bool:
        """Whether the key's partition is open, so that `open_for` has nothing to do and does not block."""
        return self._running and self.partition_for(key) in self._shards

    def _open(self, partition_id: int, run: Callable[[Callable[[], None]], None] | None = None) -> S | None:
        """The partition's shard; None if this broker does not lead it.

        A new shard is loaded by `run`, or in the background if `run` is None.
        """
        with self._lock:
            shard = self._shards.get(partition_id)
            if shard is not None:
                return shard
            replica = self._topic.replica(partition_id)
            if replica is None or not self._running:
                return None
            if replica.leader_epoch < self._fences.get(partition_id, replica.leader_epoch):
                return None
            shard = self._shards[partition_id] = self._make(partition_id, replica)
        (run or self._loader.submit)(functools.partial(self._load, shard))
        return shard

    def _load(self, shard: S) -> None:
        try:
            self._load_shard(shard)
        except KbrokerError as error:
            LOG.error("%s: cannot be loaded: %s", shard.partition.name, error)
            self.drop(shard)

    def drop(self, shard: S) -> None:
        """End a shard that cannot be loaded; no-op if it is not open. The next request for it tries again."""
        partition_id = shard.partition.name.partition_id
        with self._lock:
            if self._shards.get(partition_id) is shard:
                del self._shards[partition_id]
        self._end(shard, ErrorCode.NOT_COORDINATOR)

    # --- finding -----------------------------------------------------------------------------------------
    def partition_for(self, key: str) -> int:
        """The partition that the key's records are in."""
        return java_string_hash(key) % (self._topic.partition_count() or self._topic.default_partition_count())

    def hold(self, key: str) -> S | Refusal:
        """For `with`: the key's shard with its lock held, or why the key is not served here now.

        It is to be used as `with shards.hold(key) as shard`; then `shard` is the shard or an ErrorCode.
        """
        if not self._running:
            return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition_count = self._topic.partition_count()
        if partition_count is None:  # a member may lead partitions before it has the metadata of the topic
            return Refusal(ErrorCode.NOT_COORDINATOR)
        partition_id = java_string_hash(key) % partition_count
        shard = self._shards.get(partition_id) or self._open(partition_id)
        if shard is None:
            return Refusal(ErrorCode.NOT_COORDINATOR)
        if shard.partition.phase is Phase.LOADING:
            return Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        shard.lock.acquire()
        if shard.partition.phase is not Phase.ACTIVE:
            shard.lock.release()
            return Refusal(ErrorCode.NOT_COORDINATOR)
        return shard

    def get(self, partition_id: int) -> S | None:
        """The partition's shard, loaded or not, without its lock; None if it is not open."""
        with self._lock:
            return self._shards.get(partition_id)

    def active(self) -> Iterator[S]:
        """The shards that are loaded, in the order of their partitions, without their locks."""
        with self._lock:
            shards = [self._shards[partition_id] for partition_id in sorted(self._shards)]
        return (shard for shard in shards if shard.partition.phase is Phase.ACTIVE)

    @property
    def is_running(self) -> bool:
        return self._running

    @property
    def is_loading(self) -> bool:
        """Whether a partition is being loaded."""
        with self._lock:
            return any(shard.partition.phase is Phase.LOADING for shard in self._shards.values())
