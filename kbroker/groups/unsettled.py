"""Answers that tell what the log may still lose.

A group of the consumer protocol applies a change once its leader's log has it, before followers have it too. A member
must not hear of it until then: if this broker is lost, the next coordinator may not know of the change.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.rules.group_member import Token


class Unsettled:
    """How many changes of one group are not committed yet, and the answers that wait for that.

    Guarded by the lock of the group's shard.
    """

    __slots__ = ("_waiting", "count")

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[tuple[Token, object]] = []

    def due(self, answers: list[tuple[Token, object]]) -> list[tuple[Token, object]]:
        """Return the answers that may be given now: those that have waited, too. Errors never wait."""
        if not self.count:
            answers, self._waiting = self._waiting + answers, []
            return answers
        self._waiting += [each for each in answers if not _error_of(each[1])]
        return [each for each in answers if _error_of(each[1])]

    def fail(self, error: ErrorCode) -> list[tuple[Token, object]]:
        """Return `error` as the answer of all that wait."""
        waiting, self._waiting = self._waiting, []
        return [(token, answer._replace(error=error)) for token, answer in waiting]  # type: ignore[attr-defined]


def _error_of(answer: object) -> ErrorCode:
    return answer.error  # type: ignore[attr-defined,no-any-return]
