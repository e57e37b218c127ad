"""The election of the controller in the store.

Whoever creates /controller, and raises /controller_epoch in the same transaction, is it. The version that the epoch's
node gets by this fences every later write.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from kbroker.coordination import paths
from kbroker.coordination.store import (
    Create,
    Delete,
    NodeExists,
    NoNode,
    SetData,
    Stat,
    Store,
    StoreError,
    Watcher,
)
from kbroker.model import Endpoint

log = logging.getLogger(__name__)


class Elected(NamedTuple):
    """The controller. `epoch` and `epoch_version` (None for another broker) are those of its election."""

    broker_id: int
    creation_id: int
    """Of its node: it tells this election from a later one of the same broker."""
    endpoints: tuple[Endpoint, ...] = ()
    epoch: int = -1
    epoch_version: int | None = None
    is_kraft: bool = False
    """Whether it is a KRaft controller, which has taken the cluster over: only an operator removes its node."""

    def is_of(self, epoch_version: int) -> bool:
        """Return whether this is the election of the controller that writes at `epoch_version`."""
        return self.epoch_version == epoch_version

    def is_broker(self, broker_id: int) -> bool:
        """Return whether this broker is the controller. A KRaft controller is none, whatever its id is."""
        return self.broker_id == broker_id and not self.is_kraft

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((each for each in self.endpoints if each.listener == listener), None)


class Candidate:
    """A broker that takes part in elections, in one session."""

    def __init__(self, node_id: int, store: Store):
        self._node_id = node_id
        self._store = store

    def run(self, watcher: Watcher, now_ms: int) -> Elected:
        """Return who is the controller; this broker, if nobody was. `watcher` is told when that changes.

        It may be called again after an answer was lost: a node of this session says that the election was won.
        Raises StoreUnavailable, SessionExpired.
        """
        while True:
            found = self._read(watcher)
            if found is None:
                self._stand(now_ms)
            elif found[0].kraft_controller_epoch > 0:
                return Elected(found[0].broker_id, found[1].creation_id, is_kraft=True)
            elif found[0].broker_id != self._node_id:
                return Elected(found[0].broker_id, found[1].creation_id, self._endpoints_of(found[0].broker_id))
            elif found[1].owner == self._store.session_id:
                epoch, version = self._epoch()
                still = self._store.exists(paths.CONTROLLER)
                if still is not None and still.creation_id == found[1].creation_id:
                    return Elected(self._node_id, still.creation_id, (), epoch, version)
                # It was deposed meanwhile, so the epoch may be that of the next election.
            else:
                # Left over by an earlier session of this broker; the session may last for a while (KAFKA-14845).
                log.info("the node of an earlier session of this controller is removed")
                self._delete(found[1])

    def depose(self, elected: Elected) -> None:
        """Remove the controller's node, if it is still that of this election."""
        try:
            _, stat = self._store.get(paths.CONTROLLER)
        except NoNode:
            return
        if stat.creation_id == elected.creation_id:
            self._delete(stat)

    def _delete(self, stat: Stat) -> None:
        try:
            self._store.multi([Delete(paths.CONTROLLER, stat.version)])
        except StoreError as error:
            if not isinstance(error, NoNode):
                raise

    def _read(self, watcher: Watcher) -> tuple[paths.ControllerRegistration, Stat] | None:
        while True:
            try:
                data, stat = self._store.get(paths.CONTROLLER, watcher)
            except NoNode:
                if self._store.exists(paths.CONTROLLER, watcher) is None:
                    return None
            else:
                return paths.decode_controller(paths.CONTROLLER, data), stat

    def _endpoints_of(self, broker_id: int) -> tuple[Endpoint, ...]:
        path = paths.broker_path(broker_id)
        found = self._store.get_many([path])[0]
        if found is None:
            return ()
        try:
            return paths.decode_broker(path, found[0]).endpoints
        except paths.StoreCorrupt:
            return ()

    def _epoch(self) -> tuple[int, int]:
        """Return the epoch and the version of its node, which is made if it is missing."""
        while True:
            try:
                data, stat = self._store.get(paths.CONTROLLER_EPOCH)
            except NoNode:
                try:
                    self._store.create(paths.CONTROLLER_EPOCH, paths.encode_controller_epoch(0))
                except NodeExists:
                    pass
            else:
                return paths.decode_controller_epoch(paths.CONTROLLER_EPOCH, data), stat.version

    def _stand(self, now_ms: int) -> None:
        """Try to become the controller. Whether that has succeeded is seen when the node is read again.

        Raises StoreCorrupt if no epoch can follow the last one.
        """
        epoch, version = self._epoch()
        if epoch >= paths.HIGHEST_CONTROLLER_EPOCH:
            raise paths.StoreCorrupt(paths.CONTROLLER_EPOCH, f"{epoch}, and no higher epoch can follow")
        try:
            self._store.multi(
                [
                    Create(paths.CONTROLLER, paths.encode_controller(self._node_id, now_ms), ephemeral=True),
                    SetData(paths.CONTROLLER_EPOCH, paths.encode_controller_epoch(epoch + 1), version),
                ]
            )
        except StoreError as error:
            log.info("this broker was not elected: %s", error)
