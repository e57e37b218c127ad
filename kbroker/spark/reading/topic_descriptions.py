"""Describes topics, some of which may not exist."""

from __future__ import annotations

from collections.abc import Collection

from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import TopicDescription
from kbroker.client.errors import BrokerError, PartialFailure
from kbroker.errors import ErrorCode


def described(admin: AdminClient, topics: Collection[str]) -> tuple[dict[str, TopicDescription], set[str]]:
    """Return the descriptions of the topics that exist, and the names of those that do not.

    Raises BrokerError when a topic cannot be described for another reason.
    """
    if not topics:
        return {}, set()
    try:
        return admin.describe_topics(topics), set()
    except BrokerError as error:
        found, errors = {}, dict.fromkeys(topics, error)
        if isinstance(error, PartialFailure):
            found, errors = error.results, error.errors
        if any(each.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for each in errors.values()):
            raise
        return found, set(errors)
