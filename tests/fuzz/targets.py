"""Every target by its name."""

from __future__ import annotations

from tests.fuzz import (
    answers,
    client_frames,
    compaction,
    consuming,
    conversation,
    parsers,
    segment_check,
    session,
    values,
)
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (parsers, client_frames, consuming, answers, compaction, segment_check, conversation, session, values)
    for target in module.TARGETS
}
