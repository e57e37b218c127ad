"""Every target by its name."""

from __future__ import annotations

from tests.fuzz import compaction, conversation, parsers, session
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target for target in [*parsers.TARGETS, *compaction.TARGETS, *conversation.TARGETS, *session.TARGETS]
}
