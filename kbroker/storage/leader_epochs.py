"""Which leader epoch wrote which offsets (KIP-101): the cache behind a partition's leader-epoch-checkpoint."""

from __future__ import annotations

import logging
from bisect import bisect_right

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

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs below the log's new start; the one in force there begins at it.

        On a full disk this is written down with the next change: what is not needed any more does no harm there.
        """
        at = bisect_right([offset for _, offset in self._entries], start_offset)
        if at:
            kept = [(self._entries[at - 1][0], start_offset), *self._entries[at:]]
            if kept != self._entries:
                self._entries = kept
                try:
                    self._store(False)
                except OSError as error:
                    if error.errno not in DISK_FULL_ERRORS:
                        raise
                    self._is_durable = False

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
        at = bisect_right([start for _, start in self._entries], offset)
        return self._entries[at - 1][0] if at else NO_LEADER_EPOCH

    def make_durable(self) -> None:
        """What was stored without a sync is synced."""
        if not self._is_durable:
            self._store(True)

    def _store(self, durable: bool) -> None:
        checkpoints.store_epochs(self._fs, self._path, self._entries, durable=durable)
        self._is_durable = durable
