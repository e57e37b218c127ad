"""Membership by the classic protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup): the leader's assignor shares.

With the eager protocol a member gives up all partitions before each rebalance. The cooperative protocol (KIP-429) is
used when all assignors support it: a member keeps the partitions that it will have afterwards too, and a member that
has given some up joins again, so that they are given to others. While a cooperative rebalance waits for other members,
this one goes on reading and committing: JoinGroup has its own connection.
Also implemented: KIP-62 (heartbeats in the background), KIP-345 (static members), KIP-394 (member id first), KIP-814
(a static leader that comes back).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from kbroker.client.assignors import group_protocol
from kbroker.client.assignors.assignor import COOPERATIVE, EAGER, Assignor, Topics
from kbroker.client.consumer.coordinator import MOVED
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata
from kbroker.client.consumer.membership import Membership, Place
from kbroker.client.errors import BrokerError, ClientError, UsageError, error_of, topic_refusal
from kbroker.client.network.backoff import retry_backoff
from kbroker.client.network.cluster_view import ClusterView
from kbroker.errors import BadInput, ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

log = logging.getLogger("kbroker.client")

JOIN = "join"  #: the purpose of the connection on which a JoinGroup waits
PROTOCOL_TYPE = "consumer"
JOIN_GRACE_MS = 5_000  #: how much longer than the longest rebalance the answer to JoinGroup is waited for
LONGEST_REASON = 255
DISPLACED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
AT_ONCE = frozenset({ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS})


class ClassicMembership(Membership):
    def __init__(self, place: Place):
        super().__init__(place)
        strategy = place.options["partition.assignment.strategy"]
        self._assignors: dict[str, Assignor] = {each.name: each for each in strategy}
        cooperative = all(COOPERATIVE in each.protocols for each in self._assignors.values())
        self._protocol = COOPERATIVE if cooperative else EAGER
        self._reason = "it has come"
        self._wanted = asyncio.Event()  # set when a rebalance is wanted
        self._joining = False
        self._has_given_up = False  # partitions are given up for the next join, which may take several attempts
        self._fenced: ClientError | None = None
        self._topics: frozenset[str] = frozenset()  # the topics that the member has joined with
        self._previous: tuple[frozenset[TopicPartition], int] = frozenset(), -1  # the last assignment, its generation
        self._shared: dict[str, int] = {}  # if leader: numbers of partitions of the topics at the last assignment
        self._beating: asyncio.Task[None] | None = None

    @property
    def is_rebalancing(self) -> bool:
        return self._joining

    def start(self) -> None:
        super().start()
        self._wanted.set()
        self.spawn(self._run())
        self.spawn(self._look_for_topics())

    async def leave(self, reason: str) -> None:
        who = self._identity
        self._displace("")
        if not who.member_id or who.group_instance_id is not None:
            return

        def message(version: int) -> M.Message:
            request = M.LeaveGroupRequest
            if version < 3:
                return request(group_id=who.group_id, member_id=who.member_id)
            return request(
                group_id=who.group_id, members=[request.MemberIdentity(member_id=who.member_id, reason=reason)]
            )

        answer = await self._coordinator.call(ApiKey.LEAVE_GROUP, message)
        self._coordinator.check(answer.error_code, "leaving")

    def subscription_changed(self) -> None:
        self.withdraw_error()
        self.rejoin("its subscription has changed")

    def rejoin(self, reason: str) -> None:
        self._reason = reason
        self._wanted.set()

    def poll_overdue(self) -> None:
        if self._overdue or not self._identity.member_id:
            return
        self._begin_overdue_leave()
        self._stop_beating()
        self._holdings.note_loss()
        self.rejoin("it polls again")

    def refused(self, code: ErrorCode, who: ConsumerGroupMetadata) -> None:
        if who != self._identity or self._joining:
            return
        if code in DISPLACED:
            self._lose_place(code)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin("the group is rebalancing")

    # --- the course of it -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = retry_backoff(self.place.options)
        while True:
            await self._wanted.wait()
            if self._overdue:
                await self.place.steps.post(lambda: None)
                self._overdue = False
            self._wanted.clear()
            subscription = self.place.subscription()
            try:
                if self._fenced is not None:
                    raise self._fenced
                await self._rebalance()
                backoff.failures = 0
            except ClientError as error:
                self._wanted.set()
                if error.code == ErrorCode.FENCED_INSTANCE_ID:
                    await self._end(error)
                    return
                if error.code in DISPLACED:
                    self._lose_place(error.code)
                elif not (error.retriable or error.code in AT_ONCE) and subscription is self.place.subscription():
                    await asyncio.wait([self.raise_in_poll(error)])
                if error.code not in AT_ONCE:
                    log.log(logging.INFO if error.retriable else logging.WARNING, "%s", error)
                    await asyncio.sleep(backoff.next_s())

    async def _rebalance(self) -> None:
        if not self._has_given_up and not self._holdings.are_lost:
            await self._give_up_for_join()
        if self._holdings.are_lost:
            await self._holdings.lose()
        self._has_given_up = True
        assigned = await self._join(self._reason)
        self._has_given_up = False
        if not {partition.topic for partition in assigned} <= self._topics:
            self.rejoin("it was given what it is not subscribed to")
        else:
            self._previous = assigned, self._identity.generation_id
            await self._settle(assigned)

    async def _give_up_for_join(self) -> None:
        """Give up, before a rebalance, the partitions that this member cannot keep, whatever the group decides."""
        subscription = self.place.subscription()
        held = self._holdings.partitions
        if self._protocol == EAGER:
            await self._holdings.give_up(held, tell_of_none=self._identity.generation_id >= 0)
        elif subscription.pattern is None:
            await self._holdings.give_up({each for each in held if each.topic not in subscription.topics})

    async def _settle(self, assigned: frozenset[TopicPartition]) -> None:
        held = self._holdings.partitions
        gone = held - assigned
        log.info(
            "group %r, generation %d: %d partitions: %d new, %d gone",
            self._identity.group_id,
            self._identity.generation_id,
            len(assigned),
            len(assigned - held),
            len(gone),
        )
        await self._holdings.give_up(gone)
        await self._holdings.add(assigned - held)
        if gone:
            self.rejoin("it has given partitions up")

    async def _end(self, error: ClientError) -> None:
        """End the membership for good, because another member has this one's group.instance.id."""
        self._stop_beating()
        self._displace("")
        self._holdings.note_loss()
        await self._holdings.lose()
        self.place.fail(error)

    def _lose_place(self, code: ErrorCode) -> None:
        """Note that the coordinator does not know this member, or its generation, any more; join again."""
        log.info("group %r: %s: this member's place is lost", self._identity.group_id, code.name)
        self._stop_beating()
        self._displace("" if code == ErrorCode.UNKNOWN_MEMBER_ID else self._identity.member_id)
        self._holdings.note_loss()
        self.rejoin(f"it was told {code.name}")

    def _displace(self, member_id: str) -> None:
        self._identity = replace(self._identity, generation_id=-1, member_id=member_id)

    # --- joining --------------------------------------------------------------------------------------------

    async def _join(self, reason: str) -> frozenset[TopicPartition]:
        """Join and sync once, and return the assigned partitions. Raises ClientError when that fails."""
        topics = await self._subscribed()
        self._stop_beating()
        self._joining = True
        try:
            answer = await self._send_join(topics, reason)
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._displace(answer.member_id)
                answer = await self._send_join(topics, reason)
            self._coordinator.check(answer.error_code, "joining")
            self._topics = topics
            self._identity = replace(self._identity, generation_id=answer.generation_id, member_id=answer.member_id)
            self._beating = self.spawn(self._beat())
            assignments: Mapping[str, bytes] = {}
            self._shared = {}
            if answer.leader == answer.member_id:
                assignments = await self._share(answer)
            return await self._sync(answer, assignments)
        finally:
            self._joining = False

    async def _send_join(self, topics: frozenset[str], reason: str) -> Any:
        options, who = self.place.options, self._identity
        request = M.JoinGroupRequest
        held = self._holdings.partitions
        protocols = [
            request.JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=group_protocol.encode_subscription(
                    topics,
                    held,
                    self._previous[1] if held else -1,
                    options["client.rack"],
                    assignor.user_data(topics, *self._previous),
                ),
            )
            for assignor in self._assignors.values()
        ]

        def message(version: int) -> M.Message:
            made = request(
                group_id=who.group_id,
                session_timeout_ms=options["session.timeout.ms"],
                member_id=who.member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=protocols,
            )
            # With version 0 the broker waits for other members as long as a session may last.
            if version >= 1:
                made.rebalance_timeout_ms = options["max.poll.interval.ms"]
            if who.group_instance_id is not None:
                made.group_instance_id = who.group_instance_id
            if version >= 8:
                made.reason = reason[:LONGEST_REASON]
            return made

        limit_ms = max(options["request.timeout.ms"], options["max.poll.interval.ms"] + JOIN_GRACE_MS)
        return await self._coordinator.call(ApiKey.JOIN_GROUP, message, purpose=JOIN, timeout_ms=limit_ms)

    async def _sync(self, joined: Any, assignments: Mapping[str, bytes]) -> frozenset[TopicPartition]:
        who = self._identity
        request = M.SyncGroupRequest
        rows = [
            request.SyncGroupRequestAssignment(member_id=member_id, assignment=data)
            for member_id, data in assignments.items()
        ]

        def message(version: int) -> M.Message:
            made = request(
                group_id=who.group_id, generation_id=who.generation_id, member_id=who.member_id, assignments=rows
            )
            if who.group_instance_id is not None:
                made.group_instance_id = who.group_instance_id
            if version >= 5:
                made.protocol_type, made.protocol_name = PROTOCOL_TYPE, joined.protocol_name
            return made

        limit_ms = max(self.place.options["request.timeout.ms"], self.place.options["max.poll.interval.ms"])
        answer = await self._coordinator.call(ApiKey.SYNC_GROUP, message, purpose=JOIN, timeout_ms=limit_ms)
        self._coordinator.check(answer.error_code, "the assignment")
        try:
            return group_protocol.decode_assignment(bytes(answer.assignment))
        except BadInput as error:
            raise BrokerError(
                f"group {who.group_id!r}: an assignment that does not parse: {error}", code=ErrorCode.CORRUPT_MESSAGE
            ) from None

    # --- as leader ------------------------------------------------------------------------------------------

    async def _share(self, joined: Any) -> Mapping[str, bytes]:
        """Compute, as the leader, and return the assignment of each member.

        Returns {} when the coordinator still has the assignments (KIP-814).
        """
        assignor = self._assignors.get(joined.protocol_name or "")
        if assignor is None:
            raise BrokerError(
                f"group {self._identity.group_id!r} has chosen {joined.protocol_name!r}, which this member has not",
                code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            )
        try:
            members = [
                group_protocol.decode_subscription(bytes(each.metadata), each.member_id, each.group_instance_id)
                for each in joined.members
            ]
        except BadInput as error:
            raise UsageError(f"group {self._identity.group_id!r}: a subscription does not parse: {error}") from None
        wanted = frozenset[str]().union(*(member.topics for member in members))
        self._set_interest(wanted | self._topics)
        if any(name not in self.cluster.view.topics for name in wanted):
            await self.cluster.refresh()
        topics = self._counted(wanted)
        if not joined.skip_assignment:
            shares = self._assigned(assignor, [assignor.as_told(member) for member in members], topics)
        self._shared = dict(topics.counts)
        if joined.skip_assignment:
            return {}
        return {
            member.member_id: group_protocol.encode_assignment(shares.get(member.member_id, ())) for member in members
        }

    def _assigned(
        self, assignor: Assignor, members: Collection[Any], topics: Topics
    ) -> Mapping[str, Collection[TopicPartition]]:
        group_id = self._identity.group_id
        try:
            shares = assignor.assign(members, topics)
            found = {
                member_id: {TopicPartition(*partition) for partition in share} for member_id, share in shares.items()
            }
        except Exception as error:
            raise UsageError(f"group {group_id!r}: the assignor {assignor.name!r} failed: {error!r}") from error
        if self._protocol == COOPERATIVE:
            owners = defaultdict(set)
            for member in members:
                for partition in member.owned:
                    owners[partition].add(member.member_id)
            for member_id, share in found.items():
                for partition in share:
                    if owners[partition] - {member_id}:
                        raise UsageError(
                            f"group {group_id!r}: the assignor {assignor.name!r} gives {partition} to somebody while "
                            "another has it still"
                        )
        return found

    def _counted(self, names: Collection[str]) -> Topics:
        view = self.cluster.view
        counts: dict[str, int] = {}
        racks: dict[TopicPartition, frozenset[str]] = {}
        for name in names:
            topic = view.topics.get(name)
            counts[name] = len(topic.partitions) if topic is not None else 0
            for partition in topic.partitions.values() if topic is not None else ():
                of_nodes = (view.nodes[node_id].rack for node_id in partition.replicas if node_id in view.nodes)
                racks[TopicPartition(name, partition.partition_id)] = frozenset(rack for rack in of_nodes if rack)
        return Topics(counts, racks)

    # --- being alive ----------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        options, who = self.place.options, self._identity
        retry_s = options.seconds("retry.backoff.ms")
        limit_ms = min(options["request.timeout.ms"], options["session.timeout.ms"])

        def message(version: int) -> M.Message:
            made = M.HeartbeatRequest(group_id=who.group_id, generation_id=who.generation_id, member_id=who.member_id)
            if who.group_instance_id is not None:
                made.group_instance_id = who.group_instance_id
            return made

        wait_s = options.seconds("heartbeat.interval.ms")
        while True:
            await asyncio.sleep(wait_s)
            wait_s = options.seconds("heartbeat.interval.ms")
            try:
                answer = await self._coordinator.call(ApiKey.HEARTBEAT, message, timeout_ms=limit_ms)
                code = error_of(answer.error_code)
            except ClientError as error:
                log.info("%s", error)
                wait_s = retry_s
                continue
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                if not self._joining:
                    self.rejoin("the group is rebalancing")
            elif code in MOVED or code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self._coordinator.forget()
                wait_s = retry_s
            elif code in DISPLACED:
                self._lose_place(code)
                return
            elif code:
                refusal = BrokerError(f"group {who.group_id!r}: {code.name}", code=code)
                if code == ErrorCode.FENCED_INSTANCE_ID:
                    self._fenced = refusal
                    self._wanted.set()
                    return
                self.raise_in_poll(refusal)

    def _stop_beating(self) -> None:
        if self._beating is not None and self._beating is not asyncio.current_task():
            self._beating.cancel()
        self._beating = None

    # --- topics ---------------------------------------------------------------------------------------------

    async def _subscribed(self) -> frozenset[str]:
        """Return the names of the topics that are subscribed to now, with fresh metadata if necessary.

        Raises BrokerError when a named topic is refused for good.
        """
        subscription = self.place.subscription()
        self._set_patterned(subscription.pattern is not None)
        if self._patterned:
            await self.cluster.refresh()
        else:
            self._set_interest(subscription.topics | self._shared.keys())
            found = [self.cluster.view.topics.get(name) for name in subscription.topics]
            if any(topic is None or topic.error_code for topic in found):
                await self.cluster.refresh()
            for name in subscription.topics:
                topic = self.cluster.view.topics.get(name)
                if topic is None or not topic.error_code:
                    continue
                refused = topic_refusal(topic.error_code, f"topic {name!r}")
                if not refused.retriable:
                    raise refused
        return subscription.names(self.cluster.view)

    def _seen(self, view: ClusterView) -> None:
        if self._identity.generation_id < 0 or self._joining:
            return
        if self.place.subscription().names(view) != self._topics:
            self.rejoin("its topics have changed")
        elif self._shared and self._counted(self._shared).counts != self._shared:
            self.rejoin("topics have other numbers of partitions")

    async def _look_for_topics(self) -> None:
        """Refresh metadata regularly while topics of interest are missing."""
        while True:
            await asyncio.sleep(self.place.options.seconds("retry.backoff.max.ms"))
            known = self.cluster.view.topics
            if any(name not in known or not known[name].partitions for name in self._interest):
                self.cluster.refresh_soon()
