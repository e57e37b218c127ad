"""The interface of the group coordinator for its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from kbroker.groups.shard import GroupShard, ServedGroup
from kbroker.rules.group_member import Token
from kbroker.state_log.shards import Refusal

Answers: TypeAlias = list[tuple[Token, object]]
"""Tokens of requests and their answers, to be delivered when no lock is held."""


class Home(NamedTuple):
    """The functions of the group coordinator that its parts call."""

    hold: Callable[[str], GroupShard | Refusal]
    """For `with`: the group's shard with its lock held, or why the group is not served here now."""
    settle: Callable[[GroupShard, ServedGroup], Answers]
    """Appends what the group asks to store; returns the answers to deliver after the lock is released."""
    arm: Callable[[GroupShard, ServedGroup], None]
    """Schedules the group's next deadline, after a call that stores nothing."""
    deliver: Callable[[Answers], None]
    """Delivers answers; the caller holds no lock."""
    now_ms: Callable[[], int]
    """Monotonic milliseconds."""
    has_room: Callable[[str], bool]
    """Whether clients of that host may create one more group."""
