"""Shards of coordinators that tests wait for."""

from __future__ import annotations

from typing import Any

from kbroker.state_log.shards import Shards
from tests.kit.parts.processors import wait_until


def await_loaded(shards: Shards[Any]) -> None:
    """Wait until no open shard is being loaded any more."""
    wait_until(lambda: not shards.is_loading, "what the open shards hold is loaded", timeout_s=30)
