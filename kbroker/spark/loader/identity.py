"""What a lake is: made by this loader, of one cluster, with one kind of hours."""

from __future__ import annotations

import json
import uuid

from kbroker.spark.loader.errors import NotALake
from kbroker.spark.loader.lake import HOME, IDENTITY, Directory, ObjectStore
from kbroker.spark.loader.settings import Settings

FORMAT = 1


def is_lake(storage: Directory | ObjectStore) -> bool:
    """NotALake: there is something else."""
    there = storage.names("")
    if HOME in there:
        return IDENTITY.rpartition("/")[2] in storage.names(HOME)
    if there:
        raise NotALake(
            f"{storage.name} is not empty and no lake of kbroker load: it has {min(there)!r}; name a new directory"
        )
    return False


def check(storage: Directory | ObjectStore, settings: Settings, cluster_id: str | None) -> None:
    """NotALake: it was made with other hours, of another cluster, or by a later kbroker."""
    try:
        found = json.loads(storage.read(IDENTITY))
        kept, hours, cluster = found["format"], found["time"], found["cluster_id"]
    except (ValueError, TypeError, KeyError):
        raise NotALake(f"{storage.name}/{IDENTITY} is not what kbroker load writes") from None
    if kept != FORMAT:
        raise NotALake(f"{storage.name} is a lake of format {kept}; this kbroker knows {FORMAT}")
    if hours != settings.time:
        raise NotALake(f"{storage.name} has hours of {hours} time: load with --time {hours}, or into another lake")
    if cluster_id is not None and cluster is not None and cluster != cluster_id:
        raise NotALake(f"{storage.name} is a lake of cluster {cluster}, and this is {cluster_id}")


def make(storage: Directory | ObjectStore, settings: Settings, cluster_id: str | None) -> None:
    """Of several loaders at once one makes it; `check` it afterwards."""
    data = json.dumps(
        {"format": FORMAT, "id": uuid.uuid4().hex, "time": settings.time, "cluster_id": cluster_id}
    ).encode()
    if isinstance(storage, Directory):
        storage.create(IDENTITY, data)
    else:
        storage.write(IDENTITY, data)
