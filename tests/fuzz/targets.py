"""Every target by its name."""

from __future__ import annotations

from tests.fuzz import conversation, parsers, session
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target for target in [*parsers.TARGETS, *conversation.TARGETS, *session.TARGETS]
}
