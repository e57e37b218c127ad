"""Membership by the consumer protocol (KIP-848): the only request is ConsumerGroupHeartbeat, and the coordinator shares
the partitions.

A heartbeat has the fields that have changed since the last one that was answered; after a failure it has all fields.
Its response says which partitions the member is to have. The others are given up: first the listener is told, and only
then the coordinator, which gives them to no other member before. Then new partitions are taken.
Also implemented: KIP-1082 (members make their own ids) and KIP-345 (static members leave with an epoch of their own).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kbroker.client.consumer.coordinator import MOVED
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata
from kbroker.client.consumer.membership import Membership, Place
from kbroker.client.errors import BrokerError, ClientError, UsageError, error_of, raise_for
from kbroker.client.network.backoff import retry_backoff
from kbroker.client.network.cluster_view import ClusterView
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

log = logging.getLogger("kbroker.client")

JOINING, LEAVING, LEAVING_STATIC = 0, -1, -2  #: member epochs with which a heartbeat joins or leaves
MEMBER_MAKES_ID_FROM = 1
PATTERNS_FROM = 1
EXPELLED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})
HINTS = {
    ErrorCode.UNSUPPORTED_VERSION: "the brokers have not the consumer protocol: set group.protocol=classic",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "set group.remote.assignor to one that the brokers have, or leave it out",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "patterns are those of RE2",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another consumer has this group.instance.id: close that one",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "an administrator has limited how many members a group may have",
}


class ConsumerMembership(Membership):
    def __init__(self, place: Place):
        super().__init__(place)
        self._own_id = str(uuid.uuid4())
        self._life = 0  # counts losses of the place in the group: responses from before a loss are ignored
        self._told: dict[str, Any] = {}  # fields that the coordinator has; empty when that is not known
        self._has_told_pattern = False
        self._assigned: Mapping[bytes, frozenset[int]] | None = None
        self._owned: dict[TopicPartition, bytes] = {}  # topic ids of partitions, until the listener knows that they go
        self._untold = True  # the listener was not told yet how the last change ended
        self._news = asyncio.Event()  # set when there is something to tell the coordinator
        self._due = asyncio.Event()  # set when the holdings are not as assigned
        self._may_join = asyncio.Event()  # set while this is a member, or may become one
        self._leaving: asyncio.Task[None] | None = None
        self._refusal: ClientError | None = None  # an error that does not pass by itself, for a poll to raise
        self._interval_s = place.options.seconds("retry.backoff.ms")

    @property
    def asker(self) -> ConsumerGroupMetadata | None:
        return self._identity if self._identity.generation_id > JOINING else None

    @property
    def is_rebalancing(self) -> bool:
        """Whether this is a member of the group. Any heartbeat's response may bring it another epoch."""
        return self._identity.generation_id > JOINING

    def has(self, partitions: Collection[TopicPartition]) -> bool:
        return self._owned.keys() >= set(partitions)

    def start(self) -> None:
        super().start()
        self._may_join.set()
        self._follow_topics()
        self.spawn(self._live())
        self.spawn(self._tend())

    async def leave(self, reason: str) -> None:
        who = self._identity
        self._displace()
        if not who.member_id:
            return
        made = M.ConsumerGroupHeartbeatRequest(
            group_id=who.group_id,
            member_id=who.member_id,
            member_epoch=LEAVING if who.group_instance_id is None else LEAVING_STATIC,
            instance_id=who.group_instance_id,
        )
        log.info("group %r: this member leaves: %s", who.group_id, reason)
        answer = await self._coordinator.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, lambda _: made)
        if error_of(answer.error_code) not in EXPELLED:
            self._coordinator.check(answer.error_code, "leaving")

    def subscription_changed(self) -> None:
        self.withdraw_error()
        if self._refusal is not None and self._refusal.code != ErrorCode.FENCED_INSTANCE_ID:
            self._refusal = None
        self._follow_topics()
        self._news.set()

    def _follow_topics(self) -> None:
        """Want the metadata of the topics that are subscribed to, so that a missing one is logged, or created."""
        if self._set_interest(self.place.subscription().topics):
            self.cluster.refresh_soon()

    def rejoin(self, reason: str) -> None:
        log.warning(
            "group %r: a rebalance is wanted (%s), but with group.protocol=consumer only the brokers decide about that",
            self._identity.group_id,
            reason,
        )

    def poll_overdue(self) -> None:
        if self._identity.generation_id <= JOINING:
            return
        self._leaving = self._begin_overdue_leave()

    def refused(self, code: ErrorCode, who: ConsumerGroupMetadata) -> None:
        if who == self._identity and code in EXPELLED:
            self._lose_place(code)

    def _lose_place(self, code: ErrorCode) -> None:
        log.info("group %r: %s: this member's place is lost", self._identity.group_id, code.name)
        self._displace()

    def _displace(self) -> None:
        """Note that this is not a member any more. It does not join again before `_begin_anew`."""
        self._identity = replace(self._identity, generation_id=-1, member_id="")
        self._life += 1
        self._may_join.clear()
        self._holdings.note_loss()
        self._news.set()
        self._due.set()

    # --- being alive ----------------------------------------------------------------------------------------

    async def _live(self) -> None:
        backoff = retry_backoff(self.place.options)
        while True:
            await self._may_join.wait()
            self._news.clear()
            life, subscription = self._life, self.place.subscription()
            try:
                await self._beat()
            except ClientError as error:
                if life == self._life:
                    self._failed(error, is_current=subscription is self.place.subscription())
                    await asyncio.sleep(backoff.next_s())
                continue
            backoff.failures = 0
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._news.wait()

    def _failed(self, error: ClientError, *, is_current: bool) -> None:
        """Act on the error of a heartbeat. `is_current`: the heartbeat was about the present subscription."""
        self._told = {}
        if error.code in EXPELLED:
            self._lose_place(error.code)
        elif error.retriable:
            log.info("%s", error)
        elif error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            # The topic may be allowed again before the session is over: heartbeats go on, and do not wait for a poll.
            if is_current and not self.has_error_waiting:
                log.warning("%s", error)
                self.raise_in_poll(error)
        else:
            log.warning("%s", error)
            if is_current or error.code == ErrorCode.FENCED_INSTANCE_ID:
                self._refusal = error
            self._displace()

    async def _beat(self) -> None:
        """Send one heartbeat, and note what its response says. Raises ClientError when it fails or is refused."""
        await self._look_at_patterns()
        life, state = self._life, self._state()
        try:
            answer = await self._coordinator.call(
                ApiKey.CONSUMER_GROUP_HEARTBEAT, lambda version: self._message(version, state)
            )
            if answer.error_code in MOVED:
                self._coordinator.forget()
            what = f"{ApiKey.CONSUMER_GROUP_HEARTBEAT.label} to group {self._identity.group_id!r}"
            raise_for(answer.error_code, answer.error_message, what)
        except BrokerError as error:
            error.hint = HINTS.get(error.code, error.hint)
            raise
        if life != self._life:
            return
        self._told = state
        self._has_told_pattern = state["subscribed_topic_regex"] is not None
        self._interval_s = max(answer.heartbeat_interval_ms, 1) / 1000
        self._identity = replace(
            self._identity, generation_id=answer.member_epoch, member_id=answer.member_id or self._identity.member_id
        )
        if answer.assignment is None:
            return
        assigned: dict[bytes, frozenset[int]] = {}
        for row in answer.assignment.topic_partitions:
            topic_id = bytes(row.topic_id)
            assigned[topic_id] = assigned.get(topic_id, frozenset()) | frozenset(row.partitions)
        if assigned != self._assigned:
            self._assigned = assigned
            self._due.set()

    def _state(self) -> dict[str, Any]:
        """Return what the coordinator has to know, by the names of the request's fields."""
        options, subscription = self.place.options, self.place.subscription()
        owned = defaultdict(list)
        for partition, topic_id in sorted(self._owned.items()):
            owned[topic_id].append(partition.partition_id)
        return {
            "rebalance_timeout_ms": options["max.poll.interval.ms"],
            "rack_id": options["client.rack"] or None,
            "server_assignor": options["group.remote.assignor"],
            "subscribed_topic_names": sorted(subscription.names(self.cluster.view)),
            "subscribed_topic_regex": subscription.expression,
            "topic_partitions": dict(owned),
        }

    def _message(self, version: int, state: Mapping[str, Any]) -> M.Message:
        request = M.ConsumerGroupHeartbeatRequest
        expression = state["subscribed_topic_regex"]
        if expression is not None and version < PATTERNS_FROM:
            raise UsageError(
                f"the coordinator of group {self._identity.group_id!r} does not match patterns itself",
                hint="subscribe to a compiled one, which this client matches",
            )
        if version >= MEMBER_MAKES_ID_FROM and not self._identity.member_id:
            self._identity = replace(self._identity, member_id=self._own_id)
        who = self._identity
        made = request(
            group_id=who.group_id,
            member_id=who.member_id,
            member_epoch=max(who.generation_id, JOINING),
            instance_id=who.group_instance_id,
        )
        for name, value in state.items():
            if name not in self._told or self._told[name] != value:
                setattr(made, name, value)
        if made.topic_partitions is not None:
            made.topic_partitions = [
                request.TopicPartitions(topic_id=topic_id, partitions=ids)
                for topic_id, ids in state["topic_partitions"].items()
            ]
        if expression is None and self._has_told_pattern:
            made.subscribed_topic_regex = ""
        self._has_told_pattern = self._has_told_pattern or expression is not None
        return made

    # --- what it has ----------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        """Change the partitions that are held to those that are assigned, whenever something has changed."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                if self._may_join.is_set():
                    await self._reconcile()
                else:
                    await self._begin_anew()
            except ClientError as error:
                log.info("%s", error)
                self._look_again()

    async def _begin_anew(self) -> None:
        """Let lost partitions go, have a poll raise the error that they were lost by, then allow joining again."""
        if self._overdue:
            await self.place.steps.post(lambda: None)
            self._overdue = False
        await self._holdings.lose()
        if self._refusal is not None:
            if self._refusal.code == ErrorCode.FENCED_INSTANCE_ID:
                self.place.fail(self._refusal)
                return
            raised, self._refusal = self.raise_in_poll(self._refusal), None
            await asyncio.wait([raised])
        if self._leaving is not None and not self._leaving.done():
            await asyncio.wait([self._leaving])
        self._told, self._owned, self._assigned = {}, {}, None
        self._has_told_pattern, self._untold = False, True
        self._may_join.set()

    async def _reconcile(self) -> None:
        assigned = self._assigned
        if assigned is None:
            return
        wanted = await self._resolved(assigned)
        held = self._holdings.partitions
        gone = {each for each in held if wanted.get(each) != self._owned.get(each)}
        if gone and not self._holdings.are_lost:
            self._untold = True
            await self._holdings.give_up(gone)
            if not self._holdings.are_lost:
                self._owned = {each: topic_id for each, topic_id in self._owned.items() if each not in gone}
                self._news.set()
        if self._holdings.are_lost or assigned is not self._assigned:
            self._due.set()
            return
        new = wanted.keys() - self._holdings.partitions
        if new or self._untold:
            log.info(
                "group %r, epoch %d: %d partitions: %d new, %d gone",
                self._identity.group_id,
                self._identity.generation_id,
                len(wanted),
                len(new),
                len(gone),
            )
            self._owned = wanted
            self._untold = False
            await self._holdings.add(new)
            self._news.set()
        if len(wanted) < sum(map(len, assigned.values())):
            self._look_again()

    async def _resolved(self, assigned: Mapping[bytes, frozenset[int]]) -> dict[TopicPartition, bytes]:
        """Return the assigned partitions, each with its topic's id; without topics whose names cannot be found."""
        if not assigned.keys() <= self._names().keys():
            await self.cluster.find_topics(assigned.keys() - self._names().keys())
        names = self._names()
        return {
            TopicPartition(names[topic_id], n): topic_id
            for topic_id, partition_ids in assigned.items()
            if topic_id in names
            for n in partition_ids
        }

    def _names(self) -> dict[bytes, str]:
        return {topic.topic_id: name for name, topic in self.cluster.view.topics.items() if not topic.error_code}

    def _look_again(self) -> None:
        wait_s = self.place.options.seconds("retry.backoff.max.ms")
        asyncio.get_running_loop().call_later(wait_s, self._due.set)

    # --- patterns that this client matches ------------------------------------------------------------------

    async def _look_at_patterns(self) -> None:
        if self._set_patterned(self.place.subscription().pattern is not None):
            await self.cluster.refresh()

    def _seen(self, view: ClusterView) -> None:
        if self._patterned and sorted(self.place.subscription().names(view)) != self._told.get(
            "subscribed_topic_names"
        ):
            self._news.set()
