"""The identity of a lake: this loader made it, of one cluster, with one kind of hours and one isolation level."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

from kbroker.spark.loader.errors import NotALake
from kbroker.spark.loader.lake.storage import HOME, IDENTITY, Directory, ObjectStore
from kbroker.spark.loader.settings import Settings
from kbroker.spark.options.kafka_options import READ_COMMITTED

FORMAT = 1


def is_lake(storage: Directory | ObjectStore) -> bool:
    """Return whether there is a lake. Raises NotALake when there is something else."""
    there = storage.names("")
    if HOME in there:
        return IDENTITY.rpartition("/")[2] in storage.names(HOME)
    if there:
        raise NotALake(
            f"{storage.name} is not empty and no lake of kbroker load: it has {min(there)!r}; name a new directory"
        )
    return False


def check(storage: Directory | ObjectStore, settings: Settings, cluster_id: str | None) -> None:
    """Raise NotALake if the lake was made with other hours or isolation, of another cluster, or by a later kbroker."""
    found = _found(storage)
    hours, cluster, isolation = found["time"], found["cluster_id"], found.get("isolation")
    if hours != settings.time:
        raise NotALake(f"{storage.name} has hours of {hours} time: load with --time {hours}, or into another lake")
    if isolation is not None and isolation != settings.isolation:
        raise NotALake(f"{storage.name} was made {_made(isolation)}: load so, or into another lake")
    if cluster_id is not None and cluster is not None and cluster != cluster_id:
        raise NotALake(f"{storage.name} is a lake of cluster {cluster}, and this is {cluster_id}")


def as_made(storage: Directory | ObjectStore, settings: Settings) -> Settings:
    """Return settings with the hours of the lake, and with its isolation if the lake says it.

    Raises NotALake when there is no lake, or a later kbroker made it.
    """
    found = _found(storage)
    client = dict(settings.client)
    if "isolation" in found:
        client["isolation.level"] = found["isolation"]
    return replace(settings, time=found["time"], client=client)


def lake_id(storage: Directory | ObjectStore) -> str:
    """Return the lake's id, which is the same wherever it is mounted or moved to. Raises NotALake as `as_made` does."""
    return str(_found(storage)["id"])


def _found(storage: Directory | ObjectStore) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(storage.read(IDENTITY))
        kept, _, _, _ = found["format"], found["id"], found["time"], found["cluster_id"]
    except (ValueError, TypeError, KeyError):
        raise NotALake(f"{storage.name}/{IDENTITY} is not what kbroker load writes") from None
    if kept != FORMAT:
        raise NotALake(f"{storage.name} is a lake of format {kept}; this kbroker knows {FORMAT}")
    return found


def _made(isolation: str) -> str:
    if isolation == READ_COMMITTED:
        return "of committed records only (--committed)"
    return "of all records, those of aborted transactions too (without --committed)"


def make(storage: Directory | ObjectStore, settings: Settings, cluster_id: str | None) -> None:
    """Make a lake. Several loaders may try at once, and one succeeds: call `check` afterwards."""
    found = {
        "format": FORMAT,
        "id": uuid.uuid4().hex,
        "time": settings.time,
        "cluster_id": cluster_id,
        "isolation": settings.isolation,
    }
    data = json.dumps(found).encode()
    if isinstance(storage, Directory):
        storage.create(IDENTITY, data)
    else:
        storage.write(IDENTITY, data)
