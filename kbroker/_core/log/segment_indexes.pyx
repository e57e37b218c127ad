"""The index files of a partition's segments, as storage.Log opens, writes and maps them."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport strerror
from posix.mman cimport munmap

from kbroker._core.base.sync cimport *
from kbroker._core.log.io cimport io_close, io_sync
from kbroker._core.log.partition cimport *
from kbroker._core.log.pending_index cimport add_time_entry, spill_indexes
from kbroker._core.wire.layout cimport TIME_INDEX_ENTRY_SIZE
from kbroker._core.wire.transaction_marker cimport ABORTED_SIZE

from kbroker.errors import StorageFailed


cdef class SegmentIndexes(SegmentList):
    """The index files of a PartitionState's segments. Callers hold storage.Log's lock."""

    def set_index_files(self, int64_t base_offset, int index_fd, int time_index_fd):
        """Take over the descriptors to write the indexes of an unflushed segment.

        False, and not taken: it has them or is gone.
        """
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef bint taken = False
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s != NULL and s.index_fd < 0 and s.time_index_fd < 0:
                s.index_fd = index_fd
                s.time_index_fd = time_index_fd
                taken = True
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
        return taken

    @property
    def has_index_files(self):
        """Whether the active segment has descriptors to write its indexes."""
        cdef partition_t *p = self.p
        cdef bint there = False
        with nogil:
            mutex_lock(&p.lock)
            if p.segment_count:
                there = p.segments[p.segment_count - 1].index_fd >= 0
            mutex_unlock(&p.lock)
        return there

    @property
    def lacks_aborted_file(self):
        """Whether the active segment has a .txnindex without a descriptor, so that it would not be synced."""
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef bint lacking = False
        with nogil:
            mutex_lock(&p.lock)
            if p.segment_count:
                s = p.segments[p.segment_count - 1]
                lacking = s.aborted_count > 0 and s.aborted_fd < 0
            mutex_unlock(&p.lock)
        return lacking

    def write_indexes(self, bint final, bint sync):
        """Write the pending index entries of the active segment to its index files. Raises StorageFailed.

        `final`: with an entry for its largest timestamp. `sync`: and sync the files; no append may run meanwhile.
        """
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef int failed = 0
        with nogil:
            mutex_lock(&p.append_lock)
            if p.segment_count:
                s = p.segments[p.segment_count - 1]
                if s.pending != NULL:
                    if s.pending.time_count == INDEX_PENDING:
                        failed = spill_indexes(p, s)
                    if failed == 0 and final and s.size:
                        mutex_lock(&p.lock)
                        add_time_entry(s)
                        mutex_unlock(&p.lock)
                    if failed == 0:
                        failed = spill_indexes(p, s)
                    if failed:
                        write_failed(p, s, failed)
                    elif sync:
                        failed = io_sync(s.file_system, s.index_fd)
                        if failed == 0:
                            failed = io_sync(s.file_system, s.time_index_fd)
                        if failed == 0 and s.aborted_fd >= 0:
                            failed = io_sync(s.file_system, s.aborted_fd)
                        if failed:
                            # A failed sync is never tried again, whatever the error was.
                            directory_failed(p, failed)
            mutex_unlock(&p.append_lock)
        if failed:
            raise StorageFailed(f"{self.topic}-{self.partition_id}: writing an index: {strerror(-failed).decode()}")

    # --- of any segment

    def map_time_index(self, int64_t base_offset, int fd):
        """Map the .timeindex of an inactive segment for lookups. Takes over the descriptor.

        Raises StorageFailed if it cannot.
        """
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef bint failed = False
        with nogil:
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s != NULL and s.pending == NULL and s.time_index == NULL and s.fd >= 0:
                s.time_index_capacity = <int64_t>s.time_index_entries * TIME_INDEX_ENTRY_SIZE
                s.time_index = map_index_file(fd, s.time_index_capacity, False)
                failed = s.time_index == NULL
            mutex_unlock(&p.lock)
            io_close(p.file_system, fd)
        if failed:
            raise StorageFailed(f"{self.topic}-{self.partition_id}: an index cannot be mapped")

    def set_aborted_file(self, int64_t base_offset, int fd, bint is_new):
        """Map the .txnindex of a segment for lookups. Takes over the descriptor.

        The .txnindex of the active segment is also written through it. `is_new`: the file was made just now, so its
        name may not survive a power cut yet. Raises StorageFailed when the file cannot be mapped.
        """
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef uint8_t *aborted = NULL
        cdef int64_t capacity = 0
        cdef bint wanted
        cdef bint populate = False
        cdef bint kept = False
        cdef bint failed = False
        with nogil:
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            wanted = s != NULL and s.fd >= 0 and s.aborted == NULL
            if wanted:
                populate = s.pending == NULL
                capacity = <int64_t>s.aborted_count * ABORTED_SIZE
                if not populate:
                    # It grows, so as much is mapped as it may become.
                    capacity = max(capacity + ABORTED_SIZE, <int64_t>p.options.index_max_bytes)
            mutex_unlock(&p.lock)
            if wanted:
                # Without a lock: populating reads the file.
                aborted = map_index_file(fd, max(capacity, <int64_t>1), populate)
                failed = aborted == NULL
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s != NULL and s.fd >= 0:
                if s.aborted == NULL and aborted != NULL:
                    s.aborted = aborted
                    s.aborted_capacity = capacity
                    aborted = NULL
                if s.pending != NULL and s.aborted_fd < 0 and not failed:
                    failed = s.aborted_count == 0 and not add_aborting(p, s)
                    if not failed:
                        s.aborted_fd = fd
                        kept = True
                if is_new:
                    s.entry_synced = False
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
            if aborted != NULL:
                munmap(aborted, <size_t>max(capacity, <int64_t>1))
            if not kept:
                io_close(p.file_system, fd)
        if failed:
            raise StorageFailed(f"{self.topic}-{self.partition_id}: an index cannot be mapped")

    @property
    def aborted_count(self):
        """The number of aborted transactions in the .txnindex files of all segments."""
        cdef partition_t *p = self.p
        cdef int64_t count = 0
        cdef int32_t i
        with nogil:
            mutex_lock(&p.lock)
            for i in range(p.aborting_count):
                count += p.aborting[i].aborted_count
            mutex_unlock(&p.lock)
        return count
