"""Writes that are refused as soon as another controller has been elected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbroker.coordination import paths
from kbroker.coordination.store import BadVersion, Check, NoNode, Operation, Outcome, Store
from kbroker.errors import NotNow


class Moved(NotNow):
    """Raised when a write was refused because another controller has been elected. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("another broker is the controller")


class FencedWrites:
    """Transactions with a check of /controller_epoch in front of each."""

    def __init__(self, store: Store, epoch_version: int):
        """`epoch_version`: the version that the node of the epoch got when this controller was elected."""
        self._store = store
        self._check = Check(paths.CONTROLLER_EPOCH, epoch_version)
        self.is_unsure = False
        """Whether the writes of this command may have been made already, in a try whose answer was lost."""

    def one(self, operations: Sequence[Operation]) -> Outcome:
        """Carry out a transaction. Returns its results, or the StoreError for which it was not done. Raises Moved."""
        return self.each([operations])[0]

    def each(self, transactions: Iterable[Sequence[Operation]]) -> list[Outcome]:
        """Carry out each transaction, with an outcome each. Raises Moved if one was refused by the fence.

        Raises StoreUnavailable or SessionExpired: any of them may have been made.
        """
        fenced = [[self._check, *operations] for operations in transactions]
        if not fenced:
            return []
        outcomes: list[Outcome] = []
        for outcome in self._store.multi_many(fenced):
            if isinstance(outcome, BadVersion | NoNode) and outcome.path == paths.CONTROLLER_EPOCH:
                raise Moved
            outcomes.append(outcome[1:] if isinstance(outcome, list) else outcome)
        return outcomes
