"""A store that always uses the newest session of a member, for parts that keep no node of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.coordination.store import (
    ANY_VERSION,
    Operation,
    Outcome,
    Result,
    Stat,
    Store,
    StoreUnavailable,
    Watcher,
)


class CurrentSession:
    """A `Store` over the session that `use` has given last. Calls fail with SessionExpired while it has ended."""

    def __init__(self) -> None:
        self._session: Store | None = None

    def use(self, session: Store) -> None:
        self._session = session

    @property
    def session(self) -> Store:
        """The session. Raises StoreUnavailable before the first one."""
        if self._session is None:
            raise StoreUnavailable("there is no session with ZooKeeper yet; nothing was changed")
        return self._session

    @property
    def session_id(self) -> int:
        return self.session.session_id

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        return self.session.create(path, data, ephemeral=ephemeral, sequential=sequential)

    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        return self.session.get(path, watch)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return self.session.set(path, data, version)

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.session.delete(path, version)

    def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        return self.session.exists(path, watch)

    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        return self.session.children(path, watch)

    def get_many(self, paths: Sequence[str], watch: Watcher | None = None) -> list[tuple[bytes, Stat] | None]:
        return self.session.get_many(paths, watch)

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        return self.session.multi(operations)

    def multi_many(self, transactions: Sequence[Sequence[Operation]]) -> list[Outcome]:
        return self.session.multi_many(transactions)

    @property
    def may_have_ended(self) -> bool:
        return self.session.may_have_ended

    def on_end(self, callback: Callable[[], None]) -> None:
        self.session.on_end(callback)

    def close(self) -> None:
        self.session.close()
