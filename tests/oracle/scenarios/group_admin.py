"""DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.group_members import Member, alone, pair
from tests.oracle.scenarios.offsets import committed, store

DESCRIBE, LIST, DELETE = ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DELETE_GROUPS


def describe(t: Talk, *groups: str, operations: bool = False) -> None:
    t.ask(M.DescribeGroupsRequest(groups=list(groups), include_authorized_operations=operations))


@scenario(DESCRIBE)
def states(t: Talk) -> None:
    first = Member(t, "a")
    first.join()
    describe(t, first.group)
    first.sync(first.member_id)
    describe(t, first.group)
    second = Member(t, "b")
    sent = second.send_join()
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    describe(t, first.group)
    first.join()
    second.joined(sent)
    describe(t, first.group)
    first.leave()
    second.leave()
    describe(t, first.group)


@scenario(DESCRIBE)
def groups_that_are_not_there(t: Talk) -> None:
    describe(t, t.name("nowhere"), "")
    describe(t)


@scenario(DESCRIBE)
def a_group_of_offsets(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    store(t, group, topic, (0, 5))
    describe(t, group, group, t.name("nowhere"))


@scenario(DESCRIBE)
def a_group_of_static_members(t: Talk) -> None:
    first, _ = pair(t, instance="one")
    describe(t, first.group)


@scenario(DESCRIBE)
def a_group_of_another_kind(t: Talk) -> None:
    member = alone(t, protocol_type="connect", protocols=[("sessioned", b"\1\2\3")])
    describe(t, member.group)


@scenario(DESCRIBE, since=3)
def authorized_operations(t: Talk) -> None:
    member = alone(t)
    describe(t, member.group, t.name("nowhere"), operations=True)


def listed(t: Talk, *states: str, kinds: tuple[str, ...] = ()) -> None:
    def only_mine(answer: M.ListGroupsResponse) -> None:
        answer.groups = [group for group in answer.groups if group.group_id.startswith(t.prefix)]

    t.ask(M.ListGroupsRequest(states_filter=list(states), types_filter=list(kinds)), keep=only_mine)


@scenario(LIST)
def groups(t: Talk) -> None:
    alone(t, group=t.name("stable"))
    alone(t, group=t.name("connect"), protocol_type="connect")
    store(t, t.name("offsets"), t.topic(), (0, 5))
    Member(t, "j", group=t.name("joined")).join()
    listed(t)


@scenario(LIST, since=4)
def groups_by_state(t: Talk) -> None:
    alone(t, group=t.name("stable"))
    store(t, t.name("offsets"), t.topic(), (0, 5))
    for states in (
        ["Stable"],
        ["Empty"],
        ["stable"],
        ["Stable", "Empty"],
        ["NoSuchState"],
        ["Dead"],
        [""],
        ["Stable", "Stable"],
    ):
        listed(t, *states)


@scenario(LIST, since=5)
def groups_by_kind(t: Talk) -> None:
    alone(t, group=t.name("stable"))
    for kinds in (("classic",), ("Classic",), ("consumer",), ("classic", "consumer"), ("no such",), ("",)):
        listed(t, kinds=kinds)
    listed(t, "Stable", kinds=("classic",))
    listed(t, "Empty", kinds=("classic",))


def delete(t: Talk, *names: str) -> None:
    t.ask(M.DeleteGroupsRequest(groups_names=list(names)))


@scenario(DELETE)
def an_empty_group(t: Talk) -> None:
    topic, group = t.topic(), t.name("g")
    store(t, group, topic, (0, 5))
    delete(t, group)
    delete(t, group)
    committed(t, group, topic)
    t.ask(M.DescribeGroupsRequest(groups=[group]))


@scenario(DELETE)
def groups_that_cannot_be_deleted(t: Talk) -> None:
    member = alone(t)
    delete(t, member.group, t.name("nowhere"))
    member.beat()
    member.leave()
    delete(t, member.group)


@scenario(DELETE, alone=True)
def the_group_without_a_name(t: Talk) -> None:
    """Other scenarios commit to this group too, so this one runs alone."""
    store(t, "", t.topic(), (0, 5))
    delete(t, "")
    delete(t, "")


@scenario(DELETE)
def a_group_twice(t: Talk) -> None:
    group = t.name("g")
    store(t, group, t.topic(), (0, 5))
    delete(t, group, group)
    delete(t)
