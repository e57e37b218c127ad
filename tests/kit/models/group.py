"""A slow, obvious model of one classic consumer group: plain lists, nothing counted, nothing cached.

Written from the protocol's description and from what Apache Kafka 3.9 answers, not from kbroker's code. It takes the
same calls as `kbroker.rules.group.Group`; answers and stores are plain tuples and dicts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kbroker.errors import ErrorCode as E
from kbroker.rules.group_member import Joining

NEW_MEMBER_TIMEOUT_MS = 300_000


class ModelMember:
    def __init__(self, member_id: str, joining: Joining):
        self.id = member_id
        self.instance = joining.instance_id
        self.protocols = list(joining.protocols.items())
        self.rebalance_timeout = joining.rebalance_timeout_ms
        self.session_timeout = joining.session_timeout_ms
        self.assignment = b""
        self.joins: list[Any] = []  # at most one request that waits
        self.syncs: list[Any] = []
        self.new = True
        self.synced = True
        self.due: int | None = None

    def waits(self) -> bool:
        return bool(self.joins or self.syncs)


class ModelGroup:
    def __init__(self, max_size: int, initial_delay: int):
        self.max_size = max_size
        self.initial_delay = initial_delay
        self.now = 0
        self.state = "Empty"
        self.type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: list[ModelMember] = []
        self.pending: list[tuple[str, int]] = []
        self.join_due: int | None = None
        self.sync_due: int | None = None
        self.delay_left: int | None = None  # not None: the first rebalance is being delayed
        self.newcomer = False
        self.answers: list[tuple[Any, dict[str, Any]]] = []
        self.stores: list[dict[str, Any]] = []

    # --- looking things up
    def find(self, member_id: str) -> ModelMember | None:
        return next((m for m in self.members if m.id == member_id), None)

    def find_instance(self, instance: str) -> ModelMember | None:
        return next((m for m in self.members if m.instance == instance), None)

    def common_protocols(self) -> set[str]:
        return set.intersection(*({name for name, _ in m.protocols} for m in self.members))

    def vote(self) -> str:
        common = self.common_protocols()
        votes = [next(name for name, _ in m.protocols if name in common) for m in self.members]
        return Counter(votes).most_common(1)[0][0]  # the first voted for where equal

    def longest_rebalance(self) -> int:
        return max([m.rebalance_timeout for m in self.members], default=0)

    def check(self, member_id: str, instance: str | None) -> E:
        if instance is not None:
            owner = self.find_instance(instance)
            if owner is None:
                return E.UNKNOWN_MEMBER_ID
            if owner.id != member_id:
                return E.FENCED_INSTANCE_ID
        return E.NONE if self.find(member_id) else E.UNKNOWN_MEMBER_ID

    # --- answering
    def say_join(self, token: Any, error: E, member_id: str, **more: Any) -> None:
        answer = {"error": error, "member_id": member_id, "generation": -1, "type": None, "protocol": None}
        self.answers.append((token, {**answer, "leader": "", "skip": False, "members": [], **more}))

    def say_generation(self, token: Any, member: ModelMember, with_members: bool, **more: Any) -> None:
        listed = (
            [(m.id, m.instance, dict(m.protocols)[self.protocol or ""]) for m in self.members] if with_members else []
        )
        known = {"generation": self.generation, "type": self.type, "protocol": self.protocol}
        self.say_join(token, E.NONE, member.id, **{**known, "leader": self.leader or "", "members": listed, **more})

    def say_sync(self, token: Any, error: E, assignment: bytes = b"") -> None:
        known = (None, None) if error else (self.type, self.protocol)
        self.answers.append((token, {"error": error, "type": known[0], "protocol": known[1], "assignment": assignment}))

    def heard_of(self, member: ModelMember) -> None:
        member.due = self.now + member.session_timeout

    # --- requests
    def join(self, token: Any, joining: Joining, unique: str) -> None:
        known = self.find(joining.member_id)
        if self.state == "PreparingRebalance":
            waiting = sum(1 for m in self.members if m.joins)
            room = (known is not None and known.joins) or waiting < self.max_size
        else:
            room = self.state == "Empty" or known is not None or len(self.members) < self.max_size
        names = set(joining.protocols)
        if self.state == "Empty":
            consistent = joining.protocol_type != "" and names
        elif self.members:
            consistent = joining.protocol_type == self.type and self.common_protocols() & names
        else:  # everybody has been removed while an id that was given away is awaited
            consistent = joining.protocol_type == self.type and names
        if not room:
            self.forget(joining.member_id)
            self.say_join(token, E.GROUP_MAX_SIZE_REACHED, "")
        elif not consistent:
            self.say_join(token, E.INCONSISTENT_GROUP_PROTOCOL, joining.member_id)
        elif joining.member_id == "":
            self.join_new(token, joining, unique)
        elif any(member_id == joining.member_id for member_id, _ in self.pending):
            if joining.instance_id is None:
                self.add(token, joining, joining.member_id)
            else:
                self.say_join(token, E.UNKNOWN_SERVER_ERROR, joining.member_id)
        elif error := self.check(joining.member_id, joining.instance_id):
            self.say_join(token, error, joining.member_id)
        else:
            self.join_again(token, joining)
        self.try_begin()

    def join_new(self, token: Any, joining: Joining, unique: str) -> None:
        if joining.instance_id is not None:
            member_id = f"{joining.instance_id}-{unique}"
            owner = self.find_instance(joining.instance_id)
            if owner is None:
                self.add(token, joining, member_id)
            else:
                self.replace(token, joining, owner, member_id)
        elif joining.known_member_id_required:
            member_id = f"{joining.client_id}-{unique}"
            self.pending.append((member_id, self.now + joining.session_timeout_ms))
            self.say_join(token, E.MEMBER_ID_REQUIRED, member_id)
        else:
            self.add(token, joining, f"{joining.client_id}-{unique}")

    def join_again(self, token: Any, joining: Joining) -> None:
        member = self.find(joining.member_id)
        assert member is not None
        same = member.protocols == list(joining.protocols.items())
        leads = self.leader == member.id
        if self.state == "CompletingRebalance" and same:
            self.say_generation(token, member, leads)
        elif self.state == "Stable" and same and not leads:
            self.say_generation(token, member, False)
        else:
            self.change(member, joining, token)
            if self.state != "PreparingRebalance":
                self.rebalance()

    def change(self, member: ModelMember, joining: Joining, token: Any) -> None:
        for displaced in member.joins:
            self.say_join(displaced, E.REBALANCE_IN_PROGRESS, member.id)
        member.joins = [token]
        member.protocols = list(joining.protocols.items())
        member.rebalance_timeout = joining.rebalance_timeout_ms
        member.session_timeout = joining.session_timeout_ms

    def add(self, token: Any, joining: Joining, member_id: str) -> None:
        if self.state == "PreparingRebalance" and self.generation == 0:
            self.newcomer = True
        if not self.members:
            self.type = joining.protocol_type
        member = ModelMember(member_id, joining)
        member.joins = [token]
        member.due = self.now + NEW_MEMBER_TIMEOUT_MS
        self.members.append(member)
        self.pending = [known for known in self.pending if known[0] != member_id]
        if self.leader is None:
            self.leader = member_id
        if self.state != "PreparingRebalance":
            self.rebalance()

    def replace(self, token: Any, joining: Joining, member: ModelMember, member_id: str) -> None:
        before = (member.protocols, member.rebalance_timeout, member.session_timeout, member.id, self.leader)
        self.rename(member, member_id)
        self.change(member, joining, token)
        self.heard_of(member)
        if self.state == "CompletingRebalance" or (self.state == "Stable" and self.vote() != self.protocol):
            self.rebalance()
        elif self.state == "Stable":
            skip = joining.can_skip_assignment
            self.stores.append({"what": "replacement", "member": member_id, "before": before, "skip": skip})

    def rename(self, member: ModelMember, member_id: str) -> None:
        for token in member.joins:
            self.say_join(token, E.FENCED_INSTANCE_ID, member.id)
        for token in member.syncs:
            self.say_sync(token, E.FENCED_INSTANCE_ID)
        member.joins, member.syncs = [], []
        if self.leader == member.id:
            self.leader = member_id
        member.id = member_id
        self.members.remove(member)
        self.members.append(member)

    def sync(
        self, token: Any, generation: int, member_id: str, instance: str | None, kind: str | None, name: str | None,
        assignments: dict[str, bytes],
    ) -> None:  # fmt: skip
        error = self.check(member_id, instance)
        if not error and generation != self.generation:
            error = E.ILLEGAL_GENERATION
        if not error and (kind not in (None, self.type) or name not in (None, self.protocol)):
            error = E.INCONSISTENT_GROUP_PROTOCOL
        if not error and self.state == "PreparingRebalance":
            error = E.REBALANCE_IN_PROGRESS
        if error:
            self.say_sync(token, error)
            return
        member = self.find(member_id)
        assert member is not None
        member.synced = True
        if self.state == "Stable":
            self.say_sync(token, E.NONE, member.assignment)
            self.heard_of(member)
            return
        for displaced in member.syncs:
            self.say_sync(displaced, E.REBALANCE_IN_PROGRESS)
        member.syncs = [token]
        if self.leader == member_id:
            given = {m.id: assignments.get(m.id, b"") for m in self.members}
            self.stores.append({"what": "assignment", "generation": generation, "given": given})

    def stored(self, store: dict[str, Any], error: E) -> None:
        if store["what"] == "assignment":
            if self.state != "CompletingRebalance" or self.generation != store["generation"]:
                return
            self.hand_out({} if error else store["given"], error)
            if error:
                self.rebalance()
            else:
                self.state = "Stable"
        elif store["what"] == "replacement":
            member = self.find(store["member"])
            if member is None or not member.joins or self.state != "Stable":
                return
            protocols, rebalance_timeout, session_timeout, old_id, old_leader = store["before"]
            (token,), leads = member.joins, self.leader == member.id
            member.joins = []
            if error:
                member.protocols = protocols
                member.rebalance_timeout, member.session_timeout = rebalance_timeout, session_timeout
                self.rename(member, old_id)
                known = {"generation": self.generation, "type": self.type, "protocol": self.protocol}
                self.say_join(token, error, "", **known, leader=old_leader)
            elif store["skip"]:
                self.say_generation(token, member, leads, skip=leads)
            else:
                self.say_generation(token, member, False, leader=old_leader)
            self.heard_of(member)

    def hand_out(self, given: dict[str, bytes], error: E) -> None:
        for member in self.members:
            member.assignment = given.get(member.id, b"")
            for token in member.syncs:
                self.say_sync(token, error, b"" if error else member.assignment)
                self.heard_of(member)
            member.syncs = []

    def heartbeat(self, generation: int, member_id: str, instance: str | None) -> E:
        error = self.check(member_id, instance)
        if not error and generation != self.generation:
            error = E.ILLEGAL_GENERATION
        member = self.find(member_id)
        if error or member is None:
            return error
        self.heard_of(member)
        return E.REBALANCE_IN_PROGRESS if self.state == "PreparingRebalance" else E.NONE

    def check_commit(self, generation: int, member_id: str, instance: str | None) -> E:
        if generation < 0 and self.state == "Empty":
            return E.NONE
        if generation < 0 and not member_id and instance is None:
            return E.UNKNOWN_MEMBER_ID
        error = self.check(member_id, instance)
        if not error and generation != self.generation:
            error = E.ILLEGAL_GENERATION
        return error or (E.REBALANCE_IN_PROGRESS if self.state == "CompletingRebalance" else E.NONE)

    def leave(self, member_id: str, instance: str | None) -> E:
        if member_id == "":
            owner = self.find_instance(instance) if instance is not None else None
            if owner is None:
                return E.UNKNOWN_MEMBER_ID
            member_id = owner.id
        elif any(known == member_id for known, _ in self.pending):
            self.forget(member_id)
            self.try_begin()
            return E.NONE
        elif error := self.check(member_id, instance):
            return error
        self.drop(member_id)
        return E.NONE

    # --- rebalancing
    def forget(self, member_id: str) -> None:
        self.pending = [known for known in self.pending if known[0] != member_id]
        member = self.find(member_id)
        if member is None:
            return
        for token in member.joins:
            self.say_join(token, E.UNKNOWN_MEMBER_ID, "")
        for token in member.syncs:
            self.say_sync(token, E.UNKNOWN_MEMBER_ID)
        self.members.remove(member)
        if self.leader == member_id:
            self.leader = self.members[0].id if self.members else None

    def drop(self, member_id: str) -> None:
        self.forget(member_id)
        if self.state in ("Stable", "CompletingRebalance"):
            self.rebalance()
        self.try_begin()

    def rebalance(self) -> None:
        if self.state == "CompletingRebalance":
            self.hand_out({}, E.REBALANCE_IN_PROGRESS)
        first = self.state == "Empty"
        self.state = "PreparingRebalance"
        self.sync_due = None
        for member in self.members:
            member.synced = True
        if first:
            self.delay_left = max(self.longest_rebalance() - self.initial_delay, 0)
            self.join_due = self.now + self.initial_delay
            if self.initial_delay == 0:
                self.join_wait_ends()
        else:
            self.join_due = self.now + self.longest_rebalance()
            self.try_begin()

    def try_begin(self) -> None:
        everybody = all(m.joins for m in self.members) and not self.pending
        if self.state == "PreparingRebalance" and self.delay_left is None and everybody:
            self.begin()

    def join_wait_ends(self) -> None:
        if self.delay_left and self.newcomer:
            self.newcomer = False
            step = min(self.initial_delay, self.delay_left)
            self.delay_left -= step
            self.join_due = self.now + step
        else:
            self.delay_left = None
            self.begin()

    def begin(self) -> None:
        for member in [m for m in self.members if not m.joins and m.instance is None]:
            self.forget(member.id)
        joined = [m.id for m in self.members if m.joins]
        if self.members and not joined:
            self.join_due = self.now + max(self.longest_rebalance(), 1000)
            return
        self.join_due = None
        self.generation += 1
        if not self.members:
            self.state, self.protocol = "Empty", None
            self.stores.append({"what": "empty", "generation": self.generation})
            return
        if self.leader not in joined:
            self.leader = joined[0]
        self.protocol = self.vote()
        self.state = "CompletingRebalance"
        self.sync_due = self.now + self.longest_rebalance()
        for member in self.members:
            for token in member.joins:
                self.say_generation(token, member, member.id == self.leader)
            member.joins = []
            member.new = member.synced = False
            self.heard_of(member)

    # --- time: at every instant first the rebalance, then syncs, ids given away, sessions
    def advance(self, now: int) -> None:
        while True:
            dues = [m.due for m in self.members] + [due for _, due in self.pending] + [self.join_due, self.sync_due]
            due = min((d for d in dues if d is not None), default=None)
            if due is None or due > now:
                break
            self.now = max(self.now, due)
            self.at_instant()
        self.now = now

    def at_instant(self) -> None:
        if self.join_due is not None and self.join_due <= self.now:
            self.join_due = None
            self.join_wait_ends()
        if self.sync_due is not None and self.sync_due <= self.now:
            self.sync_due = None
            slow = [m.id for m in self.members if not m.synced]
            if slow:
                for member_id in slow:
                    self.forget(member_id)
                self.rebalance()
        for member_id, due in list(self.pending):
            if due <= self.now:
                self.pending.remove((member_id, due))
                self.try_begin()
        for member in [m for m in self.members if m.due is not None and m.due <= self.now]:
            if member not in self.members or member.due is None or member.due > self.now:
                continue
            if not member.new and member.waits():
                member.due = None
            else:
                self.drop(member.id)
