"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the classic protocol, dynamic and static members."""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Sent, Talk, scenario

JOIN, SYNC, HEARTBEAT, LEAVE = ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP
MEMBER_ID_FIRST = 4  # KIP-394: a new dynamic member is sent back once with its id
STATIC = 5  # KIP-345, in JoinGroup; 3 in the others
BATCH_LEAVE = 3
REBALANCE_TIMEOUT = 1
SHORT_MS = 2000  # longer than anybody stands still between two requests
LONG_MS = 30000
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
ASSIGNMENT = b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"

Protocol = M.JoinGroupRequest.JoinGroupRequestProtocol
RANGE = [("range", SUBSCRIPTION)]


class Member:
    """A member with its own connection. Requests of the scenario's API have the scenario's version."""

    def __init__(
        self,
        t: Talk,
        word: str,
        group: str | None = None,
        instance: str | None = None,
        protocols: list[tuple[str, bytes]] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = LONG_MS,
        rebalance_ms: int = LONG_MS,
    ):
        self.t, self.word = t, word
        self.group = t.name("g") if group is None else group
        self.instance, self.protocols, self.protocol_type = instance, protocols, protocol_type
        self.session_ms, self.rebalance_ms = session_ms, rebalance_ms
        self.member_id, self.generation, self.listed = "", -1, list[str]()

    def join_request(self) -> M.JoinGroupRequest:
        return M.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=[Protocol(name=name, metadata=data) for name, data in self.protocols],
        )

    def send_join(self) -> Sent:
        """Send a join that is accepted: in newer versions with the id that a new dynamic member gets first."""
        version = self.t.version if self.t.scenario.api == JOIN else 9
        if not self.member_id and self.instance is None and version >= MEMBER_ID_FIRST:
            answer = self.t.ask(self.join_request(), on=self.word)
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
        return self.t.send(self.join_request(), on=self.word)

    def joined(self, sent: Sent) -> Any:
        answer = self.t.receive(sent)
        if answer.error_code == 0:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.listed = [member.member_id for member in answer.members]
        return answer

    def join(self) -> Any:
        return self.joined(self.send_join())

    def sync_request(self, *assigned: str, **fields: object) -> M.SyncGroupRequest:
        entry = M.SyncGroupRequest.SyncGroupRequestAssignment
        known = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocols[0][0],
            "assignments": [entry(member_id=member_id, assignment=ASSIGNMENT) for member_id in assigned],
        }
        return M.SyncGroupRequest(**{**known, **fields})

    def sync(self, *assigned: str, **fields: object) -> Any:
        return self.t.ask(self.sync_request(*assigned, **fields), on=self.word)

    def beat(self, **fields: object) -> Any:
        known = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }
        return self.t.ask(M.HeartbeatRequest(**{**known, **fields}), on=self.word)  # type: ignore[arg-type]

    def beat_until(self, code: ErrorCode) -> None:
        """Send heartbeats, without comparing, until the group is in the state that the scenario wants."""
        beat = M.HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        self.t.until(lambda: bool(self.t.do(beat).error_code == code), code.name)

    def leave(self) -> Any:
        one = M.LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        return self.t.ask(
            M.LeaveGroupRequest(group_id=self.group, member_id=self.member_id, members=[one]), on=self.word
        )


def alone(t: Talk, **fields: Any) -> Member:
    """Make a stable group of one member."""
    member = Member(t, "a", **fields)
    member.join()
    member.sync(member.member_id)
    return member


def pair(t: Talk, **fields: Any) -> tuple[Member, Member]:
    """Make a stable group of two members; the first leads."""
    first = alone(t, **fields)
    second = Member(t, "b", **{**fields, **({"instance": fields["instance"] + "2"} if fields.get("instance") else {})})
    together(first, second)
    settle(first, second)
    return first, second


def together(first: Member, *others: Member) -> None:
    """Other members join a group that `first` leads, and `first` joins again."""
    sent = [other.send_join() for other in others]
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    again = first.send_join()
    first.joined(again)
    for other, one in zip(others, sent, strict=True):
        other.joined(one)


def settle(leader: Member, *others: Member) -> None:
    """All members sync."""
    leader.sync(*leader.listed)
    for other in others:
        other.sync()


# --- JoinGroup -------------------------------------------------------------------------------------------------------


@scenario(JOIN)
def the_first_member(t: Talk) -> None:
    Member(t, "a").join()


@scenario(JOIN, since=MEMBER_ID_FIRST)
def a_first_member_that_asks_twice(t: Talk) -> None:
    """The member gets another id each time; both may be used."""
    member = Member(t, "a")
    t.ask(member.join_request(), on="a")
    member.join()


@scenario(JOIN)
def two_members(t: Talk) -> None:
    pair(t)


@scenario(JOIN)
def a_third_after_two(t: Talk) -> None:
    first, second = pair(t)
    third = Member(t, "c")
    sent = third.send_join()
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    first.beat()
    second.beat()
    joins = [first.send_join(), second.send_join()]
    first.joined(joins[0])
    second.joined(joins[1])
    third.joined(sent)


@scenario(JOIN)
def no_group_id(t: Talk) -> None:
    Member(t, "a", group="").join()


@scenario(JOIN)
def members_nobody_knows(t: Talk) -> None:
    stranger = Member(t, "a")
    stranger.member_id = "stranger"
    stranger.join()
    alone(t)
    stranger.join()


@scenario(JOIN)
def session_timeouts_out_of_range(t: Talk) -> None:
    for session_ms in (499, 60001, 0, -1):
        member = Member(t, "a", session_ms=session_ms)
        t.ask(member.join_request(), on="a")
    Member(t, "a", session_ms=500).join()


@scenario(JOIN)
def no_protocols(t: Talk) -> None:
    Member(t, "a", protocols=[]).join()
    Member(t, "a", protocol_type="").join()
    Member(t, "a", protocols=[], protocol_type="").join()
    alone(t)
    Member(t, "b", protocols=[]).join()


@scenario(JOIN)
def protocols_that_do_not_match(t: Talk) -> None:
    alone(t)
    Member(t, "b", protocol_type="connect").join()
    Member(t, "c", protocols=[("sticky", b"")]).join()


@scenario(JOIN)
def protocols_are_voted_for(t: Talk) -> None:
    first = Member(t, "a", protocols=[("x", b"1"), ("range", b"2"), ("y", b"3")])
    first.join()
    first.sync(first.member_id, protocol_name="x")
    second = Member(t, "b", protocols=[("range", b"4"), ("y", b"5")])
    together(first, second)


@scenario(JOIN)
def a_protocol_twice(t: Talk) -> None:
    t.still_waits(Member(t, "a", protocols=[("range", b"1"), ("range", b"2")]).send_join())


@scenario(JOIN)
def protocols_of_any_kind(t: Talk) -> None:
    """Not only consumers form groups: brokers do not look into the metadata."""
    Member(t, "a", protocol_type="connect", protocols=[("x y", b""), ("ä", b"\xff" * 2000)]).join()


@scenario(JOIN)
def the_group_is_full(t: Talk) -> None:
    first, second = pair(t)
    third = Member(t, "c")
    sent = third.send_join()
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    joins = [first.send_join(), second.send_join()]
    for member, one in zip((first, second, third), (*joins, sent), strict=True):
        member.joined(one)
    settle(first, second, third)
    Member(t, "d").join()


@scenario(JOIN)
def the_leader_joins_again(t: Talk) -> None:
    first, second = pair(t)
    sent = first.send_join()
    second.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    t.still_waits(sent, 30)
    second.join()
    first.joined(sent)


@scenario(JOIN)
def a_follower_joins_again(t: Talk) -> None:
    """A join with the same metadata changes nothing in a stable group."""
    first, second = pair(t)
    second.join()
    first.beat()


@scenario(JOIN)
def a_follower_joins_with_other_metadata(t: Talk) -> None:
    first, second = pair(t)
    second.protocols = [("range", b"other")]
    sent = second.send_join()
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    t.still_waits(sent, 30)
    first.join()
    second.joined(sent)


@scenario(JOIN)
def joining_again_before_the_assignment(t: Talk) -> None:
    """Between join and sync, a join with the same metadata gets the same answer."""
    first = alone(t)
    second = Member(t, "b")
    together(first, second)
    second.join()
    first.join()
    settle(first, second)


@scenario(JOIN)
def a_member_that_does_not_come_back(t: Talk) -> None:
    """A member that does not join again within the rebalance timeout is removed."""
    first = Member(t, "a", rebalance_ms=SHORT_MS, session_ms=LONG_MS if t.version >= REBALANCE_TIMEOUT else SHORT_MS)
    first.join()
    first.sync(first.member_id)
    second = Member(t, "b", rebalance_ms=SHORT_MS)
    second.join()
    second.sync(second.member_id)
    first.beat()


@scenario(JOIN)
def a_member_whose_session_ends(t: Talk) -> None:
    first = alone(t, session_ms=SHORT_MS)
    second = Member(t, "b", rebalance_ms=SHORT_MS)
    second.join()
    first.beat()


@scenario(JOIN, since=STATIC)
def static_members(t: Talk) -> None:
    pair(t, instance="one")


@scenario(JOIN, since=STATIC)
def a_static_member_comes_back(t: Talk) -> None:
    """A returning static follower gets a new id without a rebalance, and the old id is fenced."""
    first, second = pair(t, instance="one")
    old_id = second.member_id
    again = Member(t, "c", instance=second.instance)
    again.join()
    second.beat(member_id=old_id)
    second.sync()
    again.beat()
    again.sync()
    first.beat()


@scenario(JOIN, since=STATIC)
def a_static_leader_comes_back(t: Talk) -> None:
    """KIP-814, from version 9: a returning static leader is told to skip the assignment."""
    first, second = pair(t, instance="one")
    again = Member(t, "c", instance=first.instance)
    again.join()
    second.beat()
    first.beat()


@scenario(JOIN, since=STATIC)
def a_static_member_comes_back_with_other_metadata(t: Talk) -> None:
    """The group's protocol stays: no rebalance."""
    first, second = pair(t, instance="one")
    again = Member(t, "c", instance=second.instance, protocols=[("range", b"other")])
    again.join()
    first.beat()


@scenario(JOIN, since=STATIC)
def a_static_member_comes_back_with_another_protocol(t: Talk) -> None:
    both = [("range", b"1"), ("sticky", b"2")]
    first, second = pair(t, instance="one", protocols=both)
    again = Member(t, "c", instance=second.instance, protocols=[("sticky", b"3")])
    sent = again.send_join()
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    first.join()
    again.joined(sent)


@scenario(JOIN, since=STATIC)
def static_members_that_are_not_who_they_say(t: Talk) -> None:
    first = alone(t, instance="one")
    other = Member(t, "b", instance="one")
    other.member_id = "stranger"
    other.join()
    other.instance = "nobody"
    other.join()
    other.member_id = first.member_id
    other.join()


@scenario(JOIN, since=STATIC)
def an_empty_instance_id(t: Talk) -> None:
    Member(t, "a", instance="").join()


@scenario(JOIN, since=8)
def a_reason(t: Talk) -> None:
    member = Member(t, "a", instance="one")
    request = member.join_request()
    request.reason = "because " * 50
    t.ask(request, on="a")


@scenario(JOIN, since=MEMBER_ID_FIRST)
def an_id_that_was_given_and_not_used(t: Talk) -> None:
    """The id is used before the group has a member, then after."""
    member = Member(t, "a")
    got = t.ask(member.join_request(), on="a")
    member.member_id = got.member_id
    member.beat(generation_id=0)
    member.sync(generation_id=0)
    member.leave()
    member.join()


# --- SyncGroup -------------------------------------------------------------------------------------------------------


@scenario(SYNC)
def the_leader_assigns(t: Talk) -> None:
    first = alone(t)
    second = Member(t, "b")
    together(first, second)
    waiting = t.send(second.sync_request(), on="b")
    t.still_waits(waiting, 30)
    first.sync(first.member_id)
    t.receive(waiting)
    second.sync()
    first.sync("stranger")


@scenario(SYNC)
def nothing_assigned(t: Talk) -> None:
    member = Member(t, "a")
    member.join()
    member.sync()
    member.sync(member.member_id)


@scenario(SYNC)
def syncs_of_strangers(t: Talk) -> None:
    Member(t, "x", group=t.name("nowhere")).sync()
    Member(t, "x", group="").sync()
    member = alone(t)
    member.sync(member_id="stranger")
    member.sync(member_id="")
    for generation in (0, 2, -1):
        member.sync(generation_id=generation)


@scenario(SYNC)
def a_sync_while_members_join(t: Talk) -> None:
    first = alone(t)
    second = Member(t, "b")
    sent = second.send_join()
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    first.sync()
    t.ask(second.sync_request(generation_id=1), on="other")
    first.join()
    second.joined(sent)


@scenario(SYNC)
def a_sync_that_is_overtaken(t: Talk) -> None:
    """A third member joins while a follower waits for its assignment."""
    first = alone(t)
    second = Member(t, "b")
    together(first, second)
    waiting = t.send(second.sync_request(), on="b")
    t.still_waits(waiting, 30)
    third = Member(t, "c")
    sent = third.send_join()
    t.receive(waiting)
    joins = [first.send_join(), second.send_join()]
    first.joined(joins[0])
    second.joined(joins[1])
    third.joined(sent)


@scenario(SYNC, since=5)
def protocols_in_a_sync(t: Talk) -> None:
    member = alone(t)
    for kind, name in (
        (None, None),
        ("consumer", None),
        (None, "range"),
        ("connect", "range"),
        ("consumer", "sticky"),
        ("", ""),
    ):
        member.sync(protocol_type=kind, protocol_name=name)


@scenario(SYNC, since=3)
def static_syncs(t: Talk) -> None:
    member = alone(t, instance="one")
    member.sync()
    member.sync(group_instance_id=None)
    member.sync(group_instance_id="nobody")
    member.sync(member_id="stranger")


# --- Heartbeat -------------------------------------------------------------------------------------------------------


@scenario(HEARTBEAT)
def heartbeats(t: Talk) -> None:
    member = Member(t, "a")
    member.join()
    member.beat()
    member.sync(member.member_id)
    member.beat()
    for generation in (0, 2, -1):
        member.beat(generation_id=generation)
    member.beat(member_id="stranger")
    member.beat(member_id="")
    member.beat(group_id=t.name("nowhere"))
    member.beat(group_id="")


@scenario(HEARTBEAT)
def heartbeats_in_a_rebalance(t: Talk) -> None:
    first = alone(t)
    second = Member(t, "b")
    sent = second.send_join()
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    first.beat()
    first.beat(generation_id=7)
    first.join()
    second.joined(sent)
    second.beat()
    second.beat(generation_id=1)


@scenario(HEARTBEAT)
def heartbeats_after_leaving(t: Talk) -> None:
    member = alone(t)
    member.leave()
    member.beat()


@scenario(HEARTBEAT, since=3)
def static_heartbeats(t: Talk) -> None:
    member = alone(t, instance="one")
    member.beat()
    member.beat(group_instance_id=None)
    member.beat(group_instance_id="nobody")
    member.beat(member_id="stranger")
    member.beat(generation_id=9)
    member.beat(generation_id=9, member_id="stranger")


# --- LeaveGroup ------------------------------------------------------------------------------------------------------


def leaving(t: Talk, group: str, *who: tuple[str, str | None]) -> None:
    one = M.LeaveGroupRequest.MemberIdentity
    if t.version >= BATCH_LEAVE:
        members = [one(member_id=member_id, group_instance_id=instance, reason="done") for member_id, instance in who]
        t.ask(M.LeaveGroupRequest(group_id=group, members=members))
    else:
        for member_id, _ in who:
            t.ask(M.LeaveGroupRequest(group_id=group, member_id=member_id))


@scenario(LEAVE)
def one_of_two_leaves(t: Talk) -> None:
    first, second = pair(t)
    leaving(t, first.group, (second.member_id, None))
    first.beat()
    leaving(t, first.group, (second.member_id, None))
    first.join()


@scenario(LEAVE)
def the_last_leaves(t: Talk) -> None:
    member = alone(t)
    leaving(t, member.group, (member.member_id, None))
    t.ask(M.DescribeGroupsRequest(groups=[member.group]))


@scenario(LEAVE)
def strangers_leave(t: Talk) -> None:
    leaving(t, t.name("nowhere"), ("stranger", None))
    leaving(t, "", ("stranger", None))
    member = alone(t)
    leaving(t, member.group, ("stranger", None), ("", None))
    member.beat()


@scenario(LEAVE, since=BATCH_LEAVE)
def many_leave(t: Talk) -> None:
    first, second = pair(t, instance="one")
    leaving(t, first.group)
    leaving(t, first.group, ("", "nobody"), ("stranger", "one"), ("stranger", None), ("", second.instance))
    leaving(t, first.group, (first.member_id, "one"), (first.member_id, "one"), (second.member_id, second.instance))


@scenario(LEAVE, since=BATCH_LEAVE)
def nobody_leaves_nowhere(t: Talk) -> None:
    leaving(t, t.name("nowhere"))
    leaving(t, t.name("nowhere"), ("", "nobody"))


@scenario(LEAVE)
def leaving_while_waiting(t: Talk) -> None:
    """The member's own join is answered when it leaves."""
    first = alone(t)
    second = Member(t, "b")
    sent = second.send_join()
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    leaving(t, first.group, (first.member_id, None))
    second.joined(sent)
