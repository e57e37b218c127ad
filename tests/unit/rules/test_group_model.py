"""The group state machine against the slow model: many members, every request, time, and a log that takes its time."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kbroker.errors import ErrorCode
from kbroker.rules.group import Group
from kbroker.rules.group_member import (
    JoinAnswer,
    Joining,
    Leaving,
    Store,
    StoreAssignment,
    StoreEmpty,
    SyncAnswer,
)
from tests.kit.models.group import ModelGroup

INSTANCES = st.sampled_from(["own", "own", "own", None, "s1", "s2"])
"""The instance id that a request names; "own" is the one that the group knows for its member id."""
PROTOCOLS = st.sampled_from(
    [
        {"range": b"r"},
        {"range": b"r2"},
        {"range": b"r", "sticky": b"s"},
        {"sticky": b"s", "range": b"r"},
        {"sticky": b"s", "range": b"r", "robin": b"o"},
        {"robin": b"o"},
        {},
    ]
)
TIMEOUTS = st.sampled_from([1000, 3000, 10_000])


def plain(answer: JoinAnswer | SyncAnswer) -> dict[str, Any]:
    """An answer as the model gives it."""
    if isinstance(answer, SyncAnswer):
        kind, name = answer.protocol_type, answer.protocol_name
        return {"error": answer.error, "type": kind, "protocol": name, "assignment": answer.assignment}
    return {
        "error": answer.error,
        "member_id": answer.member_id,
        "generation": answer.generation,
        "type": answer.protocol_type,
        "protocol": answer.protocol_name,
        "leader": answer.leader,
        "skip": answer.skip_assignment,
        "members": [tuple(member) for member in answer.members],
    }


class GroupAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.tokens = 0
        self.ids: list[str] = ["", "nobody"]
        self.storing: list[tuple[Store, dict[str, Any]]] = []
        self.answered: set[object] = set()

    @initialize(max_size=st.sampled_from([2, 3, 100]), delay=st.sampled_from([0, 0, 500]))
    def make(self, max_size: int, delay: int) -> None:
        self.group = Group("g", max_size, delay)
        self.model = ModelGroup(max_size, delay)

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    def member_id(self, pick: int) -> str:
        return self.ids[pick % len(self.ids)]

    def instance(self, named: str | None, member_id: str) -> str | None:
        if named != "own":
            return named
        member = self.group.members.get(member_id)
        return None if member is None else member.instance_id

    def compare(self) -> None:
        answers = self.group.take_answers()
        theirs, self.model.answers = self.model.answers, []
        assert sorted([(token, plain(answer)) for token, answer in answers], key=lambda a: a[0]) == sorted(
            theirs, key=lambda a: a[0]
        )
        for token, answer in answers:
            assert token not in self.answered, "answered twice"
            self.answered.add(token)
            if isinstance(answer, JoinAnswer) and answer.member_id and answer.member_id not in self.ids:
                self.ids.append(answer.member_id)
        stores = self.group.take_stores()
        their_stores, self.model.stores = self.model.stores, []
        for store, their_store in zip(stores, their_stores, strict=True):
            if isinstance(store, StoreAssignment):
                given = {"generation": store.generation, "given": store.assignments}
                assert {"what": "assignment", **given} == their_store
            elif isinstance(store, StoreEmpty):
                assert {"what": "empty", "generation": store.generation} == their_store
            else:
                assert (store.member_id, store.can_skip_assignment) == (their_store["member"], their_store["skip"])
            self.storing.append((store, their_store))

    @rule(
        pick=st.integers(0, 20),
        instance=INSTANCES,
        protocols=PROTOCOLS,
        rebalance=TIMEOUTS,
        session=TIMEOUTS,
        required=st.booleans(),
        skip=st.booleans(),
        kind=st.sampled_from(["consumer", "consumer", "consumer", "connect", ""]),
    )
    def join(
        self, pick: int, instance: str | None, protocols: dict[str, bytes], rebalance: int, session: int,
        required: bool, skip: bool, kind: str,
    ) -> None:  # fmt: skip
        member_id = self.member_id(pick)
        instance = self.instance(instance, member_id)
        joining = Joining(member_id, instance, "c", "/h", rebalance, session, kind, protocols, required, skip)
        self.both_join(joining)

    @rule(protocols=PROTOCOLS, session=TIMEOUTS, but=st.integers(0, 6))
    def all_but_one_join(self, protocols: dict[str, bytes], session: int, but: int) -> None:
        for number, member in enumerate(list(self.group.members.values())):
            if number != but and member.member_id in self.group.members:
                kind = self.group.protocol_type or ""
                offered = {"range": b"x", **protocols}
                joining = Joining(member.member_id, member.instance_id, "c", "/h", 3000, session, kind, offered)
                self.both_join(joining)

    @rule(
        instance=st.sampled_from([None, "s1", "s2", "s3"]), protocols=PROTOCOLS, rebalance=TIMEOUTS, skip=st.booleans()
    )
    def newcomer(self, instance: str | None, protocols: dict[str, bytes], rebalance: int, skip: bool) -> None:
        kind = self.group.protocol_type or "consumer"
        joining = Joining("", instance, "c", "/h", rebalance, 10_000, kind, {**protocols, "range": b"n"}, False, skip)
        self.both_join(joining)

    @rule(pick=st.integers(0, 6), again=st.booleans())
    def rejoins_unchanged(self, pick: int, again: bool) -> None:
        """A member joins again as it is; a static one perhaps after a restart, without its member id."""
        members = list(self.group.members.values())
        if members:
            member = members[pick % len(members)]
            member_id = "" if again and member.instance_id else member.member_id
            kind, timeouts = self.group.protocol_type or "", (member.rebalance_timeout_ms, member.session_timeout_ms)
            self.both_join(Joining(member_id, member.instance_id, "c", "/h", *timeouts, kind, member.protocols))

    @rule(answer=st.booleans())
    def settles(self, answer: bool) -> None:
        """Everybody joins and syncs, and the log answers at once or not yet."""
        for member in list(self.group.members.values()):
            if member.join_token is None and member.member_id in self.group.members:
                kind = self.group.protocol_type or ""
                offered = member.protocols
                self.both_join(Joining(member.member_id, member.instance_id, "c", "/h", 3000, 3000, kind, offered))
        self.all_sync(-1, answer)

    def both_join(self, joining: Joining) -> None:
        token = self.token()
        self.group.join(token, joining, str(token), self.now)
        self.model.join(token, joining, str(token))
        self.compare()

    @rule(
        pick=st.integers(0, 20),
        instance=INSTANCES,
        stale=st.sampled_from([0, 0, 0, 1]),
        kind=st.sampled_from([None, "consumer", "connect"]),
        name=st.sampled_from([None, None, "range"]),
    )
    def sync(self, pick: int, instance: str | None, stale: int, kind: str | None, name: str | None) -> None:
        token, generation = self.token(), self.group.generation - stale
        given = {known: f"{token}-{known}".encode() for known in list(self.group.members)[:3]}
        member_id = self.member_id(pick)
        instance = self.instance(instance, member_id)
        self.group.sync(token, generation, member_id, instance, kind, name, given, self.now)
        self.model.sync(token, generation, member_id, instance, kind, name, given)
        self.compare()

    @rule(but=st.integers(0, 6), answer=st.booleans())
    def all_but_one_sync(self, but: int, answer: bool) -> None:
        self.all_sync(but, answer)

    def all_sync(self, but: int, answer: bool) -> None:
        for number, member in enumerate(list(self.group.members.values())):
            if number == but:
                continue
            token = self.token()
            given = {known: f"{token}-{known}".encode() for known in self.group.members}
            arguments = (token, self.group.generation, member.member_id, member.instance_id, None, None, given)
            self.group.sync(*arguments, self.now)
            self.model.sync(*arguments)
            self.compare()
        while answer and self.storing:
            self.log_answers(ErrorCode.NONE)

    @rule(error=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]))
    def the_log_answers(self, error: ErrorCode) -> None:
        self.log_answers(error)

    def log_answers(self, error: ErrorCode) -> None:
        if self.storing:
            store, their_store = self.storing.pop(0)
            self.group.stored(store, error, self.now)
            self.model.stored(their_store, error)
            self.compare()

    @rule(pick=st.integers(0, 20), instance=INSTANCES, stale=st.sampled_from([0, 0, 0, 1]))
    def heartbeat(self, pick: int, instance: str | None, stale: int) -> None:
        member_id = self.member_id(pick)
        arguments = (self.group.generation - stale, member_id, self.instance(instance, member_id))
        assert self.group.heartbeat(*arguments, self.now) == self.model.heartbeat(*arguments)

    @rule(pick=st.integers(0, 20), instance=INSTANCES, stale=st.sampled_from([0, 0, 1, 100]))
    def commit(self, pick: int, instance: str | None, stale: int) -> None:
        member_id, generation = self.member_id(pick), -1 if stale == 100 else self.group.generation - stale
        arguments = (generation, member_id, self.instance(instance, member_id))
        assert self.group.check_commit(*arguments) == self.model.check_commit(*arguments)

    @rule(pick=st.integers(0, 20), instance=INSTANCES)
    def leave(self, pick: int, instance: str | None) -> None:
        member_id = self.member_id(pick)
        instance = self.instance(instance, member_id)
        assert self.group.leave([Leaving(member_id, instance)], self.now) == [self.model.leave(member_id, instance)]
        self.compare()

    @rule(step=st.sampled_from([1, 250, 999, 1000, 5000, 300_000]))
    def time_passes(self, step: int) -> None:
        self.now += step
        while self.group.wake_ms <= self.now:
            self.group.advance(self.group.wake_ms)
        self.model.advance(self.now)
        self.compare()

    @invariant()
    def both_are_in_the_same_state(self) -> None:
        if not hasattr(self, "group"):
            return
        group, model = self.group, self.model
        assert (group.state, group.generation, group.leader) == (model.state, model.generation, model.leader)
        assert (group.protocol_type, group.protocol_name) == (model.type, model.protocol)
        assert list(group.pending_members) == model.pending
        mine = [
            (m.member_id, m.instance_id, list(m.protocols.items()), m.assignment, m.is_new, m.deadline_ms)
            for m in group.members.values()
        ]
        assert mine == [(m.id, m.instance, m.protocols, m.assignment, m.new, m.due) for m in model.members]
        assert group.static_members == {m.instance: m.id for m in model.members if m.instance is not None}


GroupAgainstModel.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestGroupAgainstModel = GroupAgainstModel.TestCase
