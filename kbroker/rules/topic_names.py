"""What a topic may be called."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kbroker.errors import ErrorCode

MAX_LENGTH = 249
"""With the longest partition number behind it, a directory's name still fits into 255 bytes."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """Why `name` is no topic name, in Kafka's words; None if it is one."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > MAX_LENGTH:
        problem = f"the length of '{name}' is longer than the max allowed length {MAX_LENGTH}"
    elif not _LEGAL.fullmatch(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {problem}"


def listed(names: Sequence[str], most: int) -> str:
    """Names for one line of text: the first `most`, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def missing_topic_error(name: str) -> ErrorCode:
    """What is answered about a topic that is not there."""
    return (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_name_problem(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    )


def collision_key(name: str) -> str:
    """Names with equal keys cannot be told apart where '.' becomes '_', as in the names of metrics."""
    return name.replace(".", "_")
