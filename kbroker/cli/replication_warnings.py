"""Warnings about topics whose replicas and min.insync.replicas promise less than they seem to."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping

from kbroker.cli.output import counted
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import ConfigEntry
from kbroker.client.errors import ClientError, PartialFailure
from kbroker.rules.min_in_sync import replication_warning

MIN_IN_SYNC = "min.insync.replicas"
MOST_NAMED = 3
"""How many topics are named of those of which the same is to be said."""


def min_in_sync_of(admin: AdminClient, topics: Collection[str]) -> dict[str, int]:
    """Return min.insync.replicas by topic, of the topics of which it is told."""
    found: Mapping[str, Mapping[str, ConfigEntry]]
    try:
        found = admin.describe_topic_configs(topics, only=[MIN_IN_SYNC])
    except PartialFailure as error:
        found = error.results
    except ClientError:
        return {}  # the settings of topics are not for everybody, and a topic may have gone
    return {
        topic: int(entry.value)
        for topic, settings in found.items()
        if (entry := settings.get(MIN_IN_SYNC)) is not None and entry.value is not None
    }


def replication_warnings(
    replicas: Iterable[tuple[str, int]], min_in_sync: Mapping[str, int], brokers: int
) -> list[str]:
    """Return the warnings about topics, each given with a number of replicas that partitions of it have.

    A topic that is not in `min_in_sync` is passed over.
    """
    return lines_of(
        (topic, replication_warning(count, min_in_sync[topic], brokers))
        for topic, count in replicas
        if topic in min_in_sync
    )


def lines_of(warnings: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return a line for all topics of which the same is to be said. None: nothing."""
    topics: dict[str, list[str]] = {}
    for topic, warning in sorted({(topic, warning) for topic, warning in warnings if warning is not None}):
        topics.setdefault(warning, []).append(topic)
    return [f"{_named(found)}: {warning}" for warning, found in topics.items()]


def print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(f"kbroker: {warning}", file=sys.stderr, flush=True)


def _named(topics: Collection[str]) -> str:
    """Name topics, the first of many only: `topic a`, `5 topics (a, b, c, ...)`."""
    if len(topics) == 1:
        return f"topic {''.join(topics)}"
    first = ", ".join(list(topics)[:MOST_NAMED])
    return f"{counted(len(topics), 'topic')} ({first}{', ...' if len(topics) > MOST_NAMED else ''})"
