"""Which leader epoch wrote which offsets (KIP-101): the cache behind a partition's leader-epoch-checkpoint."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence

from kbroker.errors import DiskDamaged
from kbroker.fs import FileSystem
from kbroker.model import NO_LEADER_EPOCH
from kbroker.storage import checkpoints
from kbroker.storage.log_context import DISK_FULL_ERRORS

logger = logging.getLogger("kbroker.storage")


class LeaderEpochs:
    """Ascending `(epoch, start offset)`. The log's lock guards it."""

    def __init__(self, fs: FileSystem, directory: str):
        self._fs = fs
        self._path = f"{directory}/{checkpoints.LEADER_EPOCHS}"
        self._entries: list[tuple[int, int]] = []
        self._is_durable = True
        self.is_stored = True
        """Whether the file says what is known here; not where a full disk was in the way."""
        self._log_start_offset = 0

    def load(self) -> bool:
        """Read the checkpoint; False when it is damaged, then it is empty and the log has to be scanned for it."""
        try:
            self._entries = checkpoints.load_epochs(self._fs, self._path)
            return True
        except DiskDamaged as damage:
            if damage.what != checkpoints.EMPTY:
                logger.warning("%s; it is made anew from the log", damage)
            self._entries = []
            return False

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(self._entries)

    @property
    def latest(self) -> int:
        """-1 when there is none."""
        return self._entries[-1][0] if self._entries else NO_LEADER_EPOCH

    def assign(self, epoch: int, start_offset: int, *, durable: bool = True) -> None:
        """`epoch` begins at `start_offset`. Entries that contradict it go: later offsets and later epochs."""
        if self._entries and self._entries[-1][0] == epoch:
            return
        kept = [entry for entry in self._entries if entry[0] < epoch and entry[1] < start_offset]
        self._entries = [*kept, (epoch, start_offset)]
        self._store(durable)

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or above the log's new end."""
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        if kept != self._entries:
            self._entries = kept
            self._store(True)

    def begin_at(self, start_offset: int) -> None:
        """The log starts here: the epoch in force begins here in what is stored from now on.

        So the file never says less than log-start-offset-checkpoint, if it is durable first: a start takes that for a
        flipped bit.
        """
        self._log_start_offset = start_offset

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs below the log's new start, durably; the one in force there begins at it."""
        self.begin_at(start_offset)
        if self._from_start() == self._entries and self._is_durable:
            return
        self._store(True)

    def _from_start(self) -> list[tuple[int, int]]:
        at = bisect_right([offset for _, offset in self._entries], self._log_start_offset)
        return [(self._entries[at - 1][0], self._log_start_offset), *self._entries[at:]] if at else self._entries

    def forget(self) -> None:
        """What is known is wrong: the log is asked. Nothing is written before."""
        self._entries = []

    def replace_from(self, offset: int, entries: list[tuple[int, int]], end_offset: int) -> None:
        """What a scan has found from `offset` to the log's end takes the place of what was known there."""
        kept = [entry for entry in self._entries if entry[1] < offset]
        for entry in [*entries, *(entry for entry in self._entries if entry[1] >= max(offset, end_offset))]:
            if not kept or entry[0] > kept[-1][0]:
                kept.append(entry)
        if kept != self._entries:
            self._entries = kept
            self._store(True)

    def cover(self, earlier: list[tuple[int, int]]) -> None:
        """What a scan has found below the first entry comes before it."""
        first_epoch, first_offset = self._entries[0] if self._entries else (1 << 31, 1 << 63)
        below = [entry for entry in earlier if entry[1] < first_offset and entry[0] <= first_epoch]
        if below:
            kept = self._entries[1:] if below[-1][0] == first_epoch else self._entries
            self._entries = [*below, *kept]
            self._store(True)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """`(epoch, end offset)` of the largest epoch up to this one; (-1, -1) when it is unknown (KIP-279)."""
        if epoch == NO_LEADER_EPOCH or not self._entries or epoch > self.latest:
            return NO_LEADER_EPOCH, -1
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right([known for known, _ in self._entries], epoch)
        end_offset = self._entries[above][1]
        return (self._entries[above - 1][0] if above else epoch), end_offset

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 when unknown."""
        return epoch_at(self._entries, offset)

    def make_durable(self) -> None:
        """What was stored without a sync is synced. Raises OSError."""
        if not self._is_durable:
            self._write(True)

    def settle(self) -> None:
        """What a full disk has kept from being written down is written down, before checkpoints say that the log is
        flushed so far, or begins there: until then recovery finds the epochs in the records. Raises OSError."""
        if not self.is_stored:
            self._write(True)

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
    """Of `(epoch, start offset)` ascending, the epoch that wrote `offset`; -1 when unknown."""
    at = bisect_right([start for _, start in entries], offset)
    return entries[at - 1][0] if at else NO_LEADER_EPOCH
