"""What a group's state machine is told, what it answers, and what it keeps of one member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from kbroker.errors import ErrorCode

NO_GENERATION = -1

Token: TypeAlias = object
"""What the caller gave with a request that is answered later; the state machine only hands it back."""


class Joining(NamedTuple):
    """A JoinGroup as the state machine sees it. `member_id` is empty for somebody new."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Mapping[str, bytes]
    """Metadata by protocol name, the preferred one first."""
    known_member_id_required: bool = True
    """KIP-394, JoinGroup v4+: somebody new is given an id and has to come back with it."""
    can_skip_assignment: bool = True
    """KIP-814, JoinGroup v9+: a returning static leader may be told that it is the leader without assigning again."""


class GenerationMember(NamedTuple):
    """A member as the leader of the generation is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to a JoinGroup. `members` is empty for everybody but the leader."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[GenerationMember, ...] = ()

    def failed(self, error: ErrorCode) -> JoinAnswer:
        """The answer when what it says could not be stored."""
        return JoinAnswer(error, self.member_id)


class SyncAnswer(NamedTuple):
    """The answer to a SyncGroup."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Leaving(NamedTuple):
    """One member of a LeaveGroup. An administrator names it by `instance_id` alone."""

    member_id: str
    instance_id: str | None = None


class StoreAssignment(NamedTuple):
    """To be made durable before anybody hears of it: what the leader assigned in this generation."""

    generation: int
    assignments: dict[str, bytes]


class StoreEmpty(NamedTuple):
    """To be made durable: the group has no member any more."""

    generation: int


class StoreReplacement(NamedTuple):
    """To be made durable before the join is answered: a static member has come back under a new id (KIP-345)."""

    generation: int
    instance_id: str
    member_id: str
    replaced_member_id: str
    replaced_leader: str
    protocols: Mapping[str, bytes]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    can_skip_assignment: bool
    """`replaced_...` and the three above this one are what the member was before, for the way back."""


Store: TypeAlias = StoreAssignment | StoreEmpty | StoreReplacement


class Member:
    """One member. Owned by its group; nothing else changes it."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "instance_id",
        "is_new",
        "join_token",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_token",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Mapping[str, bytes],
        assignment: bytes = b"",
    ):
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.join_token: Token | None = None
        """A JoinGroup that waits for the generation to begin."""
        self.sync_token: Token | None = None
        """A SyncGroup that waits for the leader's assignment."""
        self.is_new = False
        """Has never been told its generation, so it cannot heartbeat yet."""
        self.deadline_ms: int | None = None
        """When it is taken for dead unless it is heard of; None while a request of its own is waiting."""

    @classmethod
    def of(cls, member_id: str, joining: Joining) -> Member:
        """Somebody new, as he joins."""
        member = cls(
            member_id,
            joining.instance_id,
            joining.client_id,
            joining.client_host,
            joining.rebalance_timeout_ms,
            joining.session_timeout_ms,
            joining.protocols,
        )
        member.is_new = True
        return member

    def supports_exactly(self, protocols: Mapping[str, bytes]) -> bool:
        """Whether `protocols` are the ones that it has, in the same order of preference."""
        return self.protocols == protocols and list(self.protocols) == list(protocols)
