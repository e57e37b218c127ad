"""The nodes of a ZooKeeper, for who carries them to a store of ours or back. The only import of kazoo.

The calls are those of `store.Store` that carrying needs: no watches, no ephemeral nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    KazooException,
    NoAuthError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError

from kbroker.coordination.store import Check, Create, NoNode, Operation, SetData, Stat, StoreUnavailable, check_path
from kbroker.errors import ConfigError

MAX_OPERATIONS = 100
"""In one transaction."""
MAX_TRANSACTION_SIZE = 400_000
"""Bytes: a ZooKeeper takes a megabyte (jute.maxbuffer)."""
IN_FLIGHT = 500
"""Reads that are asked for before the first is waited for."""


class ZooKeeperSession:
    """A session with `HOST:PORT[,HOST:PORT...][/CHROOT]`. A chroot that is not there holds nothing."""

    def __init__(self, address: str, timeout_s: float):
        self._address = address
        hosts, slash, chroot = address.partition("/")
        self._chroot = f"/{chroot.strip('/')}" if slash and chroot.strip("/") else ""
        check_path(self._chroot or "/")
        # Kazoo's own account of every attempt to connect is not for the user of a command.
        quiet = logging.getLogger("kbroker.zookeeper")
        quiet.setLevel(logging.CRITICAL)
        try:
            self._client = KazooClient(hosts, timeout=timeout_s, logger=quiet)
        except ValueError as error:
            what = str(error).lower()
            raise ConfigError(f"zookeeper {address!r}: not HOST:PORT[,HOST:PORT...][/CHROOT]: {what}") from None
        with self._errors():
            try:
                self._client.start(timeout_s)
            except BaseException:
                self.close()
                raise

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """Data and stat of each, None for no node. Not one moment's picture."""
        found: list[tuple[bytes, Stat] | None] = []
        waiting = iter(paths)
        with self._errors():
            while some := [self._client.get_async(self._inner(path)) for path in islice(waiting, IN_FLIGHT)]:
                for one in some:
                    try:
                        data, stat = one.get()
                    except NoNodeError:
                        found.append(None)
                        continue
                    found.append((data or b"", Stat(stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)))
        return found

    def children(self, path: str) -> list[str]:
        """Sorted names, or NoNode."""
        with self._errors():
            try:
                return sorted(self._client.get_children(self._inner(path)))
            except NoNodeError:
                raise NoNode(path) from None

    def multi(self, operations: Sequence[Operation]) -> None:
        """In transactions of some hundred, in order: who is cut short does it again."""
        with self._errors():
            if self._chroot:
                self._client.ensure_path(self._chroot)
            for some in _parcels(operations):
                self._commit(some)

    def _commit(self, operations: Sequence[Operation]) -> None:
        transaction = self._client.transaction()
        for each in operations:
            path = self._inner(each.path)
            if isinstance(each, Create):
                transaction.create(path, each.data)
            elif isinstance(each, SetData):
                transaction.set_data(path, each.data, each.version)
            elif isinstance(each, Check):
                transaction.check(path, each.version)
            else:
                transaction.delete(path, each.version)
        for each, result in zip(operations, transaction.commit(), strict=True):
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                raise StoreUnavailable(f"ZooKeeper {self._address}: node {each.path}: {_said(result)}")

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def _inner(self, path: str) -> str:
        return (self._chroot + path.rstrip("/")) or "/"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What kazoo raises as one clear line."""
        try:
            yield
        except KazooTimeoutError:
            raise StoreUnavailable(f"ZooKeeper {self._address} cannot be reached, or does not answer") from None
        except (NoAuthError, AuthFailedError):
            raise StoreUnavailable(f"ZooKeeper {self._address} refuses access: its nodes are protected") from None
        except KazooException as error:
            raise StoreUnavailable(f"ZooKeeper {self._address}: {_said(error)}") from error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _parcels(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    parcel: list[Operation] = []
    size = 0
    for each in operations:
        cost = len(each.path) + (len(each.data) if isinstance(each, Create | SetData) else 0) + 100
        if parcel and (len(parcel) == MAX_OPERATIONS or size + cost > MAX_TRANSACTION_SIZE):
            yield parcel
            parcel, size = [], 0
        parcel.append(each)
        size += cost
    if parcel:
        yield parcel
