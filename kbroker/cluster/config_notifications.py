"""The notifications that tell all members of a cluster of changed configs: nodes below /config/changes.

Whoever changes configs makes a node there, with the path of what was changed. Each member carries out those with a
number above the last one that it has seen, and removes those that are older than 15 minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker.coordination import paths
from kbroker.coordination.store import Create, Delete, Store, Watcher

log = logging.getLogger(__name__)

KEPT_S = 15 * 60.0
"""How long a notification stays, seen from a member: longer than any member is without its session and lives."""


def notification(entity_path: str) -> Create:
    """The operation that tells of changed configs. `entity_path` is the path of their node after "/config/"."""
    return Create(paths.CONFIG_CHANGE_PREFIX, paths.encode_config_change(entity_path), sequential=True)


class ConfigNotifications:
    """The notifications as one member sees them. Called by one thread at a time."""

    def __init__(self, on_change: Watcher):
        """`on_change` is called once after each `take`, when there is another notification."""
        self._on_change = on_change
        self._last = -1
        self._first_seen: dict[str, float] = {}
        """When each notification that is still there was first seen, in monotonic seconds."""

    def begin(self, store: Store) -> None:
        """Count all notifications that are there now as seen: the caller reads all configs after this call."""
        names = store.children(paths.CONFIG_CHANGES, self._on_change)
        self._last = max(map(_number, names), default=self._last)

    def take(self, store: Store, now_s: float) -> list[str]:
        """Return the entity paths of the new notifications, in their order, and remove those that are too old.

        A notification that cannot be read is skipped, and logged once. Other nodes are left alone.
        """
        children = sorted(store.children(paths.CONFIG_CHANGES, self._on_change), key=_number)
        names = [name for name in children if _number(name) >= 0]
        new = [name for name in names if _number(name) > self._last]
        changed = []
        for name, found in zip(new, store.get_many([_path(name) for name in new]), strict=True):
            if found is None:
                continue  # purged by another member
            try:
                changed.append(paths.decode_config_change(_path(name), found[0]))
            except paths.StoreCorrupt as error:
                log.warning("a config change is skipped: %s", error)
        self._last = max(map(_number, new), default=self._last)
        self.purge(store, names, now_s)
        return list(dict.fromkeys(changed))

    def purge(self, store: Store, names: Sequence[str], now_s: float) -> None:
        """Remove those of the notifications `names` that this member has first seen more than KEPT_S ago."""
        self._first_seen = {name: self._first_seen.get(name, now_s) for name in names}
        old = [name for name in names if now_s - self._first_seen[name] > KEPT_S]
        # Other members remove the same ones at about the same time: NoNode is as good.
        store.multi_many([[Delete(_path(name))] for name in old])


def _path(name: str) -> str:
    return f"{paths.CONFIG_CHANGES}/{name}"


def _number(name: str) -> int:
    """The number of a notification; -1 for a node that is none."""
    try:
        return paths.sequence_of(name)
    except paths.StoreCorrupt:
        return -1
