"""What the parts of a coordinator ask of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from kbroker.errors import ErrorCode
from kbroker.groups.shard import GroupShard, ServedGroup
from kbroker.rules.group_member import Token

Answers: TypeAlias = list[tuple[Token, object]]
"""Whom to tell what, once no lock is held."""


class Home(NamedTuple):
    """The coordinator as its parts see it."""

    acquire: Callable[[str], GroupShard | ErrorCode]
    """The group's shard with its lock held, for the caller to release; or why the group is not served here now."""
    settle: Callable[[GroupShard, ServedGroup], Answers]
    """Stores what has to be stored; returns the answers to be given once the lock is released."""
    arm: Callable[[GroupShard, ServedGroup], None]
    """Sets the next time to look at the group, where nothing has to be stored."""
    deliver: Callable[[Answers], None]
    """Gives answers; the caller holds no lock."""
    now_ms: Callable[[], int]
    """Monotonic milliseconds."""
    has_room: Callable[[str], bool]
    """Whether clients of that host may make one more group."""
