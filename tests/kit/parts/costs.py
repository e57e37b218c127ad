"""What a controller's work costs: the commands of its rules, and the round trips to the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.cluster.controller import Controller
from tests.kit.parts.memory_store import MemorySession

ROUND_TRIPS = ("exists", "children", "get_many", "multi_many")


class Costs:
    """Counts the commands of rules, and the round trips to the store, since the last `take`."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self._commands: Counter[str] = Counter()
        self._round_trips = 0
        carry_out = Controller._carry_out

        def counted(controller: Controller, term: Any, command: Any) -> Any:
            self._commands[type(command).__name__] += 1
            return carry_out(controller, term, command)

        patch.setattr(Controller, "_carry_out", counted)
        for name in ROUND_TRIPS:
            patch.setattr(MemorySession, name, self._round_trip(getattr(MemorySession, name)))

    def _round_trip(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self._round_trips += 1
            return call(*arguments, **named)

        return counted

    def take(self) -> tuple[dict[str, int], int]:
        taken = dict(self._commands), self._round_trips
        self._commands.clear()
        self._round_trips = 0
        return taken
