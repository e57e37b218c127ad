"""Commits (in transactions too), fetches, deletes and expires the offsets of groups.

The group's state machine decides who may commit, `rules/group_offsets.py` what counts as committed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.groups import records
from kbroker.groups.answers import FetchedOffset, fetched
from kbroker.groups.consumer_groups import ConsumerGroups
from kbroker.groups.home import Home
from kbroker.groups.options import GroupOptions
from kbroker.groups.records import fits
from kbroker.groups.shard import GroupShard, ServedGroup, commit_error, store_error
from kbroker.groups.subscribed_topics import subscribed_topics
from kbroker.model import TopicPartition
from kbroker.rules.group_offsets import CommittedOffset, GroupOffsets
from kbroker.rules.group_state import GroupState
from kbroker.rules.mixed_group import MixedGroup
from kbroker.state_log.replica import NO_GUARD
from kbroker.state_log.shards import Shards
from kbroker.state_log.state_partition import NO_PRODUCER, Phase, Producer, StatePartition

LOG = logging.getLogger(__name__)

NOTHING_BEHIND = 1 << 62
"""Stands for a marker's offset: the marker ends everything that the transaction has written."""

MOST_LOOKED_UP_LOCKED = 1000
"""Most offsets that are looked up while the shard's lock is held. More are looked up in a copy, without the lock."""


class Offsets:
    """Serves the offsets of groups of both protocols.

    The empty group id is a group too: clients without a group commit to it.
    """

    def __init__(self, shards: Shards[GroupShard], home: Home, consumers: ConsumerGroups, options: GroupOptions):
        self._shards = shards
        self._home = home
        self._consumers = consumers
        self._options = options

    def commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Mapping[TopicPartition, CommittedOffset],
        answer: Callable[[ErrorCode, frozenset[TopicPartition]], None],
        version: int = 9,
        client_host: str = "",
    ) -> None:
        """Handle an OffsetCommit of this `version`. `answer` gets the error once the offsets are stored.

        `answer` also gets the partitions whose metadata is too long; their offsets are not stored.
        """
        with self._shards.hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                answer(shard, frozenset())
                return
            accepted, refused = self._split_too_long(offsets)
            served = shard.groups.get(group_id)
            if served is None and generation >= 0:
                error = ErrorCode.ILLEGAL_GENERATION
            elif served is None and not self._home.has_room(client_host):
                error = ErrorCode.GROUP_MAX_SIZE_REACHED
            else:
                served = served or shard.create(group_id, client_host)
                error = self._check(served, (generation, member_id, instance_id), offsets, version=version)
            if served is not None and not error:
                served.machine.committed(member_id, self._home.now_ms())
                self._home.arm(shard, served)
                if accepted:
                    outcome = self._append_commit(shard, served, accepted, lambda ended: answer(ended, refused))
                    if outcome is None:
                        return
                    error = outcome
            elif error:
                refused = frozenset()  # a client that may not commit gets that error for every partition
            if served is not None:
                shard.remove_if_never_used(served)
        answer(error, refused)

    def commit_transactional(
        self,
        group_id: str,
        producer: Producer,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Mapping[TopicPartition, CommittedOffset],
        ask: Callable[[TopicPartition, Callable[[ErrorCode], None]], None],
        answer: Callable[[ErrorCode, frozenset[TopicPartition]], None],
        *,
        adds: bool = False,
        client_host: str = "",
    ) -> None:
        """Handle a TxnOffsetCommit: `offsets` count once the producer's transaction is committed.

        The answer is as in `commit`. `ask` asks the transaction's coordinator whether the group's partition is in the
        transaction, or with `adds` to add it (KIP-890). It is called without a lock, and only if a transaction begins
        in that partition.
        """
        guard, known = NO_GUARD, ErrorCode.NONE
        with self._home.hold(group_id) as held:
            if isinstance(held, ErrorCode):
                answer(held, frozenset())
                return
            shard = held
            try:
                if group_id not in shard.groups:
                    if not self._home.has_room(client_host):
                        raise ProtocolError(ErrorCode.GROUP_MAX_SIZE_REACHED)
                    shard.create(group_id, client_host)
                guard = shard.partition.replica.verify(*producer, adds=adds)
            except KbrokerError as refused:
                known = refused.code
        is_nobody = min(producer) < 0  # no valid id or epoch: the log cannot check the producer
        who = (generation, member_id, instance_id)

        def asked(error: ErrorCode) -> None:
            self._commit_asked(shard, group_id, client_host, producer, guard, who, offsets, error, answer)

        if guard == NO_GUARD and (known or not is_nobody):
            asked(known)
        else:
            ask(shard.partition.name, asked)

    def _commit_asked(
        self,
        shard: GroupShard,
        group_id: str,
        client_host: str,
        producer: Producer,
        guard: int,
        who: tuple[int, str, str | None],
        offsets: Mapping[TopicPartition, CommittedOffset],
        error: ErrorCode,
        answer: Callable[[ErrorCode, frozenset[TopicPartition]], None],
    ) -> None:
        """Go on with a commit when the transaction's coordinator has said (`error`) whether it may be written."""
        accepted, refused = self._split_too_long(offsets)
        with shard.lock:
            if not error and shard.partition.phase is not Phase.ACTIVE:
                error = ErrorCode.NOT_COORDINATOR
            outcome: ErrorCode | None = commit_error(error)
            if not outcome:
                served = shard.groups.get(group_id) or shard.create(group_id, client_host)
                outcome = self._check(served, who, offsets, transactional=True)
            if outcome:
                refused = frozenset()  # a client that may not commit gets that error for every partition
            elif accepted:
                outcome = self._append_commit(
                    shard, served, accepted, lambda ended: answer(ended, refused), producer, guard
                )
            if (made := shard.groups.get(group_id)) is not None:
                shard.remove_if_never_used(made)
        if outcome is not None:
            answer(outcome, refused)

    def end_transaction(
        self, partition_id: int, producer_id: int, commit: bool, marker_offset: int = NOTHING_BEHIND
    ) -> None:
        """Take note that a marker of the producer is in this partition of `__consumer_offsets`, at `marker_offset`.

        Offsets that the transaction has written there before count for their groups now if `commit`, else they are
        dropped. A second call for the same marker changes nothing.
        """
        shard = self._shards.get(partition_id)
        if shard is not None:
            with shard.lock:
                shard.end_transaction(producer_id, commit, marker_offset)

    def _check(
        self,
        served: ServedGroup,
        who: tuple[int, str, str | None],
        partitions: Iterable[TopicPartition],
        *,
        version: int = 9,
        transactional: bool = False,
    ) -> ErrorCode:
        """NONE if `who` may commit offsets of `partitions`, else why not.

        `who` is the generation or member epoch, the member id and the instance id.
        """
        if (consumer := served.consumer) is not None:
            return self._consumers.check_commit(consumer, *who, partitions, version, transactional)
        return served.machine.check_commit(*who, transactional)

    def _split_too_long(
        self, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> tuple[Mapping[TopicPartition, CommittedOffset], frozenset[TopicPartition]]:
        """The offsets that may be stored, and the partitions whose metadata is too long."""
        longest = self._options.offset_metadata_max_bytes
        refused = frozenset(p for p, committed in offsets.items() if not fits(committed.metadata, longest))
        return {p: one for p, one in offsets.items() if p not in refused} if refused else offsets, refused

    def _append_commit(
        self,
        shard: GroupShard,
        served: ServedGroup,
        offsets: Mapping[TopicPartition, CommittedOffset],
        later: Callable[[ErrorCode], None],
        producer: Producer = NO_PRODUCER,
        guard: int = NO_GUARD,
    ) -> ErrorCode | None:
        """Append the offsets. Returns how that ended, or None if `later` will be called with it.

        The caller holds the shard's lock.
        """
        outcome: ErrorCode | None = None

        def committed(error: ErrorCode, base_offset: int) -> None:
            nonlocal outcome
            with shard.lock:
                shard.end_commit(served, staged, error, base_offset)
                outcome = commit_error(error)
                if shard.settling:
                    return
            later(outcome)

        group_id = served.machine.group_id
        changed = [(records.offset_key(group_id, p), records.offset_value(c)) for p, c in offsets.items()]
        staged = shard.begin_commit(served, offsets, producer)
        shard.settling = True
        try:
            shard.partition.append(changed, committed, producer, guard)
        finally:
            shard.settling = False
        return outcome

    def confirm(self, group_ids: Iterable[str], confirmed: Callable[[frozenset[str]], None]) -> None:
        """Call `confirmed` with those groups that another broker may coordinate already.

        It is called once, perhaps before this returns. What `fetch` tells of the other groups then lacks nothing that
        was acknowledged before this call.
        """
        asked: dict[StatePartition, list[str]] = {}
        for group_id in group_ids:
            with self._shards.hold(group_id) as shard:
                if not isinstance(shard, ErrorCode):  # `fetch` says so
                    asked.setdefault(shard.partition, []).append(group_id)
        unsure: set[str] = set()
        left = len(asked)
        lock = threading.Lock()

        def answered(of_partition: list[str], error: ErrorCode) -> None:
            nonlocal left
            with lock:
                if error:
                    unsure.update(of_partition)
                left -= 1
                is_last = left == 0
            if is_last:
                confirmed(frozenset(unsure))

        if not asked:
            confirmed(frozenset())
        for partition, of_partition in asked.items():
            partition.replica.confirm_lead(partial(answered, of_partition))

    def fetch(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> tuple[ErrorCode, list[FetchedOffset]]:
        """Handle an OffsetFetch. Returns the group's error and the offsets. `partitions` None: all of the group.

        `member_id` and `member_epoch` are checked if the group is a consumer group.
        """
        with self._shards.hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                return shard, []
            served = shard.groups.get(group_id)
            if served is not None and (consumer := served.consumer) is not None:
                error = consumer.check_fetch(member_id, member_epoch)
                if error:
                    return error, []
            if served is not None and (partitions is None or len(partitions) <= MOST_LOOKED_UP_LOCKED):
                return ErrorCode.NONE, fetched(served.offsets, partitions, require_stable)
            offsets = GroupOffsets() if served is None else served.offsets.copy()
        return ErrorCode.NONE, fetched(offsets, partitions, require_stable)

    def delete(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Handle an OffsetDelete.

        Returns the error of the whole request and, if it is NONE, the error of each partition.
        """
        with self._home.hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                return shard, {}
            served = shard.groups.get(group_id)
            if served is None:
                return ErrorCode.GROUP_ID_NOT_FOUND, {}
            machine = served.machine
            errors = dict.fromkeys(partitions, ErrorCode.NONE)
            if isinstance(machine, MixedGroup):
                for partition in errors:
                    if machine.is_subscribed(partition.topic):
                        errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif machine.state is not GroupState.EMPTY:
                if not machine.is_consumer_group:
                    return ErrorCode.NON_EMPTY_GROUP, {}
                topics = subscribed_topics(machine)
                for partition in errors:
                    if topics is None or partition.topic in topics:
                        errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            failed = shard.remove_offsets(served, [partition for partition, error in errors.items() if not error])
            shard.remove_if_nothing_left(served)
            return store_error(failed), {} if failed else errors

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Remove the offsets of all groups for topics that are deleted."""
        for shard in self._shards.active():
            with shard.lock:
                for served in list(shard.groups.values()):
                    had_offsets = [shard.remove_topic(served, topic) for topic in topics]
                    if any(had_offsets):
                        shard.remove_if_nothing_left(served)

    def committed(self, most: int) -> tuple[list[tuple[str, TopicPartition, int]], int]:
        """Return committed offsets for metrics: (group, partition, offset), in the order of the group names.

        There are at most `most` of them; returns also how many more there are.
        """
        sizes: dict[str, tuple[GroupShard, int]] = {}
        for shard in self._shards.active():
            with shard.lock:
                sizes.update((name, (shard, len(served.offsets.committed))) for name, served in shard.groups.items())
        found: list[tuple[str, TopicPartition, int]] = []
        for group_id in sorted(sizes):
            if len(found) == most:
                break
            shard, _ = sizes[group_id]
            with shard.lock:
                served = shard.groups.get(group_id)
                offsets = {} if served is None else served.offsets.committed
                of_group = islice(offsets.items(), most - len(found))
                found += [(group_id, at, committed.offset) for at, committed in of_group]
        return found, max(0, sum(size for _, size in sizes.values()) - len(found))

    def expire(self) -> None:
        """Remove offsets that have expired, and groups that have neither members nor offsets then."""
        removed = sum(shard.expire() for shard in self._shards.active())
        if removed:
            LOG.info("%d offsets expired", removed)
