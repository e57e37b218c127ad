"""The leader epochs of a partition and the offsets that each wrote (KIP-101).

This is the cache behind the file leader-epoch-checkpoint.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence

from kbroker.errors import DiskDamaged
from kbroker.fs import FileSystem
from kbroker.model import NO_LEADER_EPOCH
from kbroker.storage import checkpoints
from kbroker.storage.failures import DISK_FULL_ERRORS

logger = logging.getLogger("kbroker.storage")


class LeaderEpochs:
    """A partition's leader epochs as `(epoch, start offset)`, ascending. The log's lock guards it.

    A full disk is no error here: what could not be stored is kept in memory, and `is_stored` is False. The disk's
    other errors are raised as OSError.
    """

    def __init__(
        self, fs: FileSystem, directory: str, on_change: Callable[[list[tuple[int, int]]], None] = lambda entries: None
    ):
        self._fs = fs
        self._path = f"{directory}/{checkpoints.LEADER_EPOCHS}"
        self._on_change = on_change
        """Called with the entries after each change, before it is stored."""
        self._known: list[tuple[int, int]] = []
        self._is_durable = True
        self.is_stored = True
        """Whether the file holds what is known here. False after `begin`, and after a write that failed."""
        self._log_start_offset = 0

    def load(self) -> bool:
        """Read the checkpoint. False if it is damaged: then no epoch is known, and the log has to be scanned."""
        try:
            self._entries = checkpoints.load_epochs(self._fs, self._path)
            return True
        except DiskDamaged as damage:
            if damage.what != checkpoints.EMPTY:
                logger.warning("%s; it is made anew from the log", damage)
            self._entries = []
            return False

    @property
    def _entries(self) -> list[tuple[int, int]]:
        return self._known

    @_entries.setter
    def _entries(self, entries: list[tuple[int, int]]) -> None:
        if entries != self._known:
            self._known = entries
            self._on_change(entries)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch; -1 if there is none."""
        return self._entries[-1][0] if self._entries else NO_LEADER_EPOCH

    def assign(self, epoch: int, start_offset: int, *, durable: bool = True) -> None:
        """Add `epoch`, which begins at `start_offset`. Entries with a later offset or a later epoch are dropped."""
        if self._add(epoch, start_offset):
            self._store(durable)

    def begin(self, epoch: int, start_offset: int) -> None:
        """Add `epoch`, which begins at the log's end, as `assign` does, but leave it to `settle` to store it.

        A power cut may lose the entry until then. It loses nothing else: a record of the epoch names it, so recovery
        finds the epoch in the records above the recovery point, and `settle` comes before each recovery point. Without
        such a record nobody can tell the difference.
        """
        if self._add(epoch, start_offset):
            self._is_durable = self.is_stored = False

    def _add(self, epoch: int, start_offset: int) -> bool:
        if self._entries and self._entries[-1][0] == epoch:
            return False
        kept = [entry for entry in self._entries if entry[0] < epoch and entry[1] < start_offset]
        self._entries = [*kept, (epoch, start_offset)]
        return True

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or above the log's new end."""
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        if kept != self._entries:
            self._entries = kept
            self._store(True)

    def clear(self) -> None:
        """Forget every epoch, durably: the log is emptied."""
        self._entries = []
        self._store(True)

    def begin_at(self, start_offset: int) -> None:
        """Note that the log begins elsewhere now: in what is stored from now on, the epoch in force there begins there.

        Store this durably before log-start-offset-checkpoint. A broker's start that finds an earlier offset here than
        in that checkpoint takes it for a flipped bit.
        """
        self._log_start_offset = start_offset

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs below the log's new start, durably. The epoch in force there begins at the new start."""
        self.begin_at(start_offset)
        if self._from_start() == self._entries and self._is_durable:
            return
        self._store(True)

    def _from_start(self) -> list[tuple[int, int]]:
        at = bisect_right([offset for _, offset in self._entries], self._log_start_offset)
        return [(self._entries[at - 1][0], self._log_start_offset), *self._entries[at:]] if at else self._entries

    def forget(self) -> None:
        """Forget every epoch, in memory only: they are wrong, and the log is to be scanned."""
        self._entries = []

    def replace_from(self, offset: int, entries: list[tuple[int, int]], end_offset: int) -> None:
        """Replace the entries from `offset` to the log's `end_offset` with those that a scan has found."""
        kept = [entry for entry in self._entries if entry[1] < offset]
        for entry in [*entries, *(entry for entry in self._entries if entry[1] >= max(offset, end_offset))]:
            if not kept or entry[0] > kept[-1][0]:
                kept.append(entry)
        if kept != self._entries:
            self._entries = kept
            self._store(True)

    def cover(self, earlier: list[tuple[int, int]]) -> None:
        """Add the entries that a scan has found below the first known one."""
        first_epoch, first_offset = self._entries[0] if self._entries else (1 << 31, 1 << 63)
        below = [entry for entry in earlier if entry[1] < first_offset and entry[0] <= first_epoch]
        if below:
            kept = self._entries[1:] if below[-1][0] == first_epoch else self._entries
            self._entries = [*below, *kept]
            self._store(True)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return `(epoch, end offset)` of the largest epoch up to `epoch`; (-1, -1) if it is unknown (KIP-279)."""
        if epoch == NO_LEADER_EPOCH or not self._entries or epoch > self.latest:
            return NO_LEADER_EPOCH, -1
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right([known for known, _ in self._entries], epoch)
        end_offset = self._entries[above][1]
        return (self._entries[above - 1][0] if above else epoch), end_offset

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote `offset`; -1 if it is unknown."""
        return epoch_at(self._entries, offset)

    def make_durable(self) -> None:
        """Store the entries again with a sync, if they were stored without. Raises OSError."""
        if not self._is_durable:
            self._write(True)

    def settle(self) -> None:
        """Store the epochs that `begin` has left, or that a full disk has kept from being stored. Raises OSError.

        Call it before a checkpoint says that the log is flushed up to an offset or begins at one. Until then recovery
        finds the epochs in the records.
        """
        if not self.is_stored:
            self._write(True)

    def store_in(self, directory: str) -> None:
        """Store the entries, durably, in another directory. Raises OSError."""
        checkpoints.store_epochs(self._fs, f"{directory}/{checkpoints.LEADER_EPOCHS}", self._from_start(), durable=True)

    def move(self, directory: str) -> None:
        """Go on in another directory, which has the entries."""
        self._path = f"{directory}/{checkpoints.LEADER_EPOCHS}"
        self._is_durable = self.is_stored = True

    def _store(self, durable: bool) -> None:
        try:
            self._write(durable)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            self._is_durable = self.is_stored = False

    def _write(self, durable: bool) -> None:
        self._entries = self._from_start()
        checkpoints.store_epochs(self._fs, self._path, self._entries, durable=durable)
        self._is_durable, self.is_stored = durable, True


def epoch_at(entries: Sequence[tuple[int, int]], offset: int) -> int:
    """Return the epoch that wrote `offset`; -1 if unknown. `entries` are `(epoch, start offset)`, ascending."""
    at = bisect_right([start for _, start in entries], offset)
    return entries[at - 1][0] if at else NO_LEADER_EPOCH
