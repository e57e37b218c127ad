"""Checks the names of topics."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kbroker.errors import ErrorCode

MAX_LENGTH = 249
"""With this length, the name of a partition's directory (topic, dash, partition number) fits into 255 bytes."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """Why `name` is not a valid topic name, in Kafka's words; None if it is valid."""
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
    """The first `most` names as one line of text, which ends with how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def missing_topic_error(name: str) -> ErrorCode:
    """The error code for a topic that does not exist: INVALID_TOPIC_EXCEPTION if its name is not valid."""
    return (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_name_problem(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    )


def collision_key(name: str) -> str:
    """A key that is equal for names that collide where '.' becomes '_', as in the names of metrics."""
    return name.replace(".", "_")
