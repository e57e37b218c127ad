"""Every target by its name."""

from __future__ import annotations

from tests.fuzz import (
    answers,
    client_frames,
    cluster_nodes,
    compaction,
    consuming,
    conversation,
    parsers,
    replicas,
    segment_check,
    session,
    values,
)
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (
        parsers,
        client_frames,
        consuming,
        answers,
        compaction,
        segment_check,
        conversation,
        session,
        values,
        cluster_nodes,
        replicas,
    )
    for target in module.TARGETS
}
