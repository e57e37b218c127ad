"""The scripts, a file per API or family of APIs; `requests.py` builds what most ask for. Importing registers all."""

from tests.oracle.scenarios import (
    api_versions,
    cluster,
    configs,
    fetch,
    fetch_sessions,
    group_admin,
    group_members,
    idempotence,
    list_offsets,
    metadata,
    offsets,
    old_messages,
    produce,
    records,
    topics,
)

__all__ = [
    "api_versions",
    "cluster",
    "configs",
    "fetch",
    "fetch_sessions",
    "group_admin",
    "group_members",
    "idempotence",
    "list_offsets",
    "metadata",
    "offsets",
    "old_messages",
    "produce",
    "records",
    "topics",
]
