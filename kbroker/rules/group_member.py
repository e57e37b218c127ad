"""The values of a classic group's state machine: requests, answers, states to be stored, members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from kbroker.errors import ErrorCode

NO_GENERATION = -1

Token: TypeAlias = object
"""Given by the caller with a request; the state machine only hands it back with the answer."""


class Joining(NamedTuple):
    """The fields of a JoinGroup request. `member_id` is empty for a new member."""

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
    """JoinGroup v4 and later: a new member is given an id and has to join again with it (KIP-394)."""
    can_skip_assignment: bool = True
    """JoinGroup v9 and later: a static leader that comes back may be told to lead but not to assign (KIP-814)."""


class GenerationMember(NamedTuple):
    """A member in the JoinGroup answer to the leader of the generation."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to a JoinGroup. Only the leader gets `members`; for others it is empty."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[GenerationMember, ...] = ()

    def failed(self, error: ErrorCode) -> JoinAnswer:
        """Return the answer that is given in place of this one if the state could not be stored."""
        return JoinAnswer(error, self.member_id)


class SyncAnswer(NamedTuple):
    """The answer to a SyncGroup."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Leaving(NamedTuple):
    """One of the members that a LeaveGroup request names.

    An administrator may name a static one by `instance_id` alone.
    """

    member_id: str
    instance_id: str | None = None


class StoreAssignment(NamedTuple):
    """The leader's assignment of this generation, to be made durable before any member gets it."""

    generation: int
    assignments: dict[str, bytes]


class StoreEmpty(NamedTuple):
    """The group has no members any more; to be made durable."""

    generation: int


class StoreReplacement(NamedTuple):
    """A static member has come back under a new id (KIP-345); to be made durable before its JoinGroup is answered."""

    generation: int
    instance_id: str
    member_id: str
    replaced_member_id: str
    replaced_leader: str
    protocols: Mapping[str, bytes]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    can_skip_assignment: bool
    """`replaced_...` and the three fields above this one are the values before, to be restored after an error."""


Store: TypeAlias = StoreAssignment | StoreEmpty | StoreReplacement


class Member:
    """One member of a group. Only its group changes it."""

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
        """Whether the member has never been told its generation; it cannot heartbeat yet."""
        self.deadline_ms: int | None = None
        """When the member is removed unless it is heard of before; None while one of its requests waits."""

    @classmethod
    def from_joining(cls, member_id: str, joining: Joining) -> Member:
        """A new member with the values of its JoinGroup."""
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
        """Whether `protocols` equal the member's protocols, in the same order of preference."""
        return self.protocols == protocols and list(self.protocols) == list(protocols)
