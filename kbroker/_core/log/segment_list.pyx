"""The list of a partition's segments, as storage.Log changes it: roll, open, close, remove, replace.

The files of their indexes are in segment_indexes.pyx.
"""

from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove
from posix.mman cimport munmap

from kbroker._core.base.clock cimport monotonic_ns
from kbroker._core.base.sync cimport *
from kbroker._core.log.io cimport io_close
from kbroker._core.log.partition cimport *
from kbroker._core.log.pending_index cimport index_count, time_index_count
from kbroker._core.wire.layout cimport INDEX_ENTRY_SIZE

from typing import NamedTuple

from kbroker.errors import StorageFailed


class SegmentView(NamedTuple):
    """The state of a segment at one moment. Timestamps (ms) are -1 when no record has one."""

    base_offset: int
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    first_timestamp: int
    created_ms: int              # monotonic
    index_count: int             # entries
    time_index_count: int
    is_open: bool


cdef class SegmentHandle:
    """A segment that has left its log. Its files stay open for the readers that use it."""

    def __init__(self):
        raise TypeError("made by PartitionState")

    def __dealloc__(self):
        if self.s != NULL:
            segment_unref(self.s)

    @property
    def base_offset(self):
        return self.s.base_offset

    @property
    def size(self):
        return self.s.size

    @property
    def in_use(self):
        """Whether a reader still uses it."""
        return atomic_load_i32(&self.s.refs) > 1


cdef SegmentHandle handle_of(segment_t *s):
    """Return a handle that takes over the caller's reference."""
    cdef SegmentHandle handle = SegmentHandle.__new__(SegmentHandle)
    handle.s = s
    return handle


cdef segment_t *new_segment(partition_t *p, segment, int fd, int64_t roll_jitter_ms, bint active) except NULL:
    """Make a segment that is in no list yet. Return the only reference; it takes over the descriptor."""
    cdef segment_t *s = <segment_t *>calloc(1, sizeof(segment_t))
    if s == NULL:
        raise MemoryError
    s.refs = 1
    s.fd = -1
    s.index_fd = -1
    s.time_index_fd = -1
    s.aborted_fd = -1
    try:
        s.base_offset = segment.base_offset
        s.size = segment.size
        s.max_timestamp = segment.max_timestamp
        s.max_timestamp_offset = segment.max_timestamp_offset
        s.first_timestamp = segment.first_timestamp
        s.index_entries = segment.index_count
        s.time_index_entries = segment.time_index_count
        s.last_time_entry = segment.last_time_entry
        s.bytes_since_index = segment.bytes_since_index
        s.aborted_count = segment.aborted_count
        s.entry_synced = segment.entry_synced
        s.indexes_dirty = active
        if active:
            s.pending = <pending_index_t *>calloc(1, sizeof(pending_index_t))
            if s.pending == NULL:
                raise MemoryError
    except BaseException:
        free(s)
        raise
    s.created_ms = monotonic_ns() // 1_000_000
    s.roll_jitter_ms = roll_jitter_ms
    s.fd = fd
    if p.file_system != NULL:
        s.file_system = p.file_system
        Py_INCREF(<object>s.file_system)
    return s


cdef class SegmentList:
    """The segments of a PartitionState.

    Callers that change the list (open, close, roll, remove) hold storage.Log's lock.
    """

    def __dealloc__(self):
        if self.p != NULL:
            partition_unref(self.p)

    @property
    def size(self):
        """The size of all segments in bytes, without their indexes."""
        cdef partition_t *p = self.p
        cdef int64_t size = 0
        cdef int32_t i
        with nogil:
            mutex_lock(&p.lock)
            for i in range(p.segment_count):
                size += p.segments[i].size
            mutex_unlock(&p.lock)
        return size

    def segment(self, base_offset=None):
        """Return the SegmentView with this base offset, by default of the active segment; None when there is none."""
        cdef partition_t *p = self.p
        cdef int64_t wanted = -1 if base_offset is None else base_offset
        cdef segment_t *s = NULL
        cdef segment_t copy
        with nogil:
            mutex_lock(&p.lock)
            if wanted >= 0:
                s = find_segment(p, wanted)
            elif p.segment_count:
                s = p.segments[p.segment_count - 1]
            if s != NULL:
                copy = s[0]
                copy.index_entries = index_count(s)
                copy.time_index_entries = time_index_count(s)
            mutex_unlock(&p.lock)
        return view_of(&copy) if s != NULL else None

    @property
    def removals(self):
        """A number that changes when segments are removed or replaced: earlier positions are not valid any more."""
        cdef partition_t *p = self.p
        cdef uint32_t removals
        with nogil:
            mutex_lock(&p.lock)
            removals = p.removals
            mutex_unlock(&p.lock)
        return removals

    @property
    def largest_timestamp(self):
        """The largest timestamp (ms) of all segments, records below the log start offset included; -1 without one."""
        cdef partition_t *p = self.p
        cdef int64_t largest = -1
        with nogil:
            mutex_lock(&p.lock)
            if p.segment_count:
                largest = newest_up_to(p.segments[p.segment_count - 1])
            mutex_unlock(&p.lock)
        return largest

    def segments(self):
        """Return all segments as `SegmentView`, ascending by base offset."""
        cdef partition_t *p = self.p
        cdef segment_t *copies = NULL
        cdef int32_t count = 0
        cdef int32_t i
        with nogil:
            mutex_lock(&p.lock)
            copies = <segment_t *>malloc(<size_t>(p.segment_count + 1) * sizeof(segment_t))
            if copies != NULL:
                count = p.segment_count
                for i in range(count):
                    copies[i] = p.segments[i][0]
                    copies[i].index_entries = index_count(p.segments[i])
                    copies[i].time_index_entries = time_index_count(p.segments[i])
            mutex_unlock(&p.lock)
        if copies == NULL:
            raise MemoryError
        try:
            return [view_of(&copies[i]) for i in range(count)]
        finally:
            free(copies)

    def add_segment(self, segment, int fd, int64_t roll_jitter_ms, bint active):
        """Append a storage.segment.Segment to the list.

        Takes over the descriptor (-1: closed); an active one must be open.
        """
        cdef partition_t *p = self.p
        cdef segment_t *s = new_segment(p, segment, fd, roll_jitter_ms, active)
        with nogil:
            mutex_lock(&p.append_lock)
        grown = self.grow_segments() and (s.aborted_count == 0 or add_aborting(p, s))
        if grown:
            with nogil:
                mutex_lock(&p.lock)
                p.segments[p.segment_count] = s
                p.segment_count += 1
                note_newest(p, p.segment_count - 1)
                mutex_unlock(&p.lock)
        mutex_unlock(&p.append_lock)
        if not grown:
            segment_unref(s)
            raise MemoryError

    cdef bint grow_segments(self) noexcept:
        """Make room for one more segment (append_lock held). False: memory is out."""
        cdef partition_t *p = self.p
        cdef segment_t **segments
        cdef segment_t **old
        cdef int32_t capacity
        if p.segment_count < p.segment_capacity:
            return True
        capacity = p.segment_capacity * 2 if p.segment_capacity else 2
        segments = <segment_t **>malloc(<size_t>capacity * sizeof(segment_t *))
        if segments == NULL:
            return False
        with nogil:
            mutex_lock(&p.lock)
            old = p.segments
            if p.segment_count:
                memcpy(segments, old, <size_t>p.segment_count * sizeof(segment_t *))
            p.segments = segments
            p.segment_capacity = capacity
            mutex_unlock(&p.lock)
        free(old)
        return True

    # --- rolling

    def begin_roll(self):
        """Begin a roll: hold appends back. Return the log's end, which is the base offset of the segment to make."""
        return self.set_rolling(True)

    def abort_roll(self):
        """End a roll without a new segment: appends go on in the active one."""
        self.set_rolling(False)

    cdef int64_t set_rolling(self, bint rolling) noexcept:
        cdef partition_t *p = self.p
        cdef int64_t end
        with nogil:
            mutex_lock(&p.append_lock)
            p.rolling = rolling
            end = p.log_end_offset
            mutex_unlock(&p.append_lock)
        return end

    def finish_roll(self, segment, int fd, int64_t roll_jitter_ms):
        """Make a new, empty segment the active one. Takes over the descriptor.

        Raises AssertionError without `begin_roll`, or when the segment does not begin at the log's end.
        """
        cdef partition_t *p = self.p
        cdef segment_t *old
        if segment.base_offset != p.log_end_offset or not p.rolling:
            raise AssertionError(f"{self!r} cannot roll at {segment.base_offset}")
        self.add_segment(segment, fd, roll_jitter_ms, True)
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            old = p.segments[p.segment_count - 2]
            free(old.pending)
            old.pending = NULL
            p.tail_count = 0
            p.rolling = False
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)

    # --- closed segments

    def open_segment(self, int64_t base_offset, int fd, int index_fd, int32_t index_count):
        """Open a closed segment: keep its descriptor and map its .index. True: both descriptors were taken over.

        False: the segment is open already, or gone. Raises StorageFailed when the index cannot be mapped.
        """
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef bint taken = False
        cdef uint8_t *index = NULL
        cdef int64_t capacity = <int64_t>index_count * INDEX_ENTRY_SIZE
        with nogil:
            if index_count:
                # Populated here, where it may block: a lookup on a processor finds the pages.
                index = map_index_file(index_fd, capacity, True)
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s != NULL and s.fd < 0 and (index != NULL or not index_count):
                s.index = index
                s.index_capacity = capacity
                s.index_entries = index_count
                s.fd = fd
                atomic_store_i32(&s.touched, 1)
                taken = True
            mutex_unlock(&p.lock)
            if taken:
                io_close(p.file_system, index_fd)
            elif index != NULL:
                munmap(index, <size_t>capacity)
        if index_count and index == NULL:
            raise StorageFailed(f"{self.topic}-{self.partition_id}: an index cannot be mapped")
        return taken

    def set_entry_synced(self, int64_t base_offset):
        """Note that the names of the segment's files are durable: they survive a power cut."""
        cdef partition_t *p = self.p
        cdef segment_t *s
        with nogil:
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s != NULL:
                s.entry_synced = True
            mutex_unlock(&p.lock)

    def close_segment(self, int64_t base_offset):
        """Close an inactive, flushed segment that nobody reads or has used since the last call.

        Return whether it is closed.
        """
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef segment_t files
        cdef bint closed = False
        files.fd = -1
        with nogil:
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s == NULL or s.fd < 0:
                closed = True
            elif s != p.segments[p.segment_count - 1] and s.refs == 1 and not s.indexes_dirty \
                    and p.flushed_offset > s.base_offset and (
                segment_behind(p, s).base_offset <= p.flushed_offset
            ):
                if not atomic_claim_i32(&s.touched, 1, 0):
                    files = s[0]
                    s.fd = -1
                    s.index_fd = -1
                    s.time_index_fd = -1
                    s.aborted_fd = -1
                    s.index = NULL
                    s.time_index = NULL
                    s.aborted = NULL
                    closed = True
            mutex_unlock(&p.lock)
            if closed and files.fd >= 0:
                segment_close_files(&files)
        return closed

    def remove_segments(self, int64_t before_offset, int64_t log_start_offset):
        """Remove whole segments below `before_offset`, never the active one, and raise the log start offset.

        Return the handles of the removed segments.
        """
        cdef partition_t *p = self.p
        cdef int32_t count = 0
        cdef int32_t i
        cdef segment_t **removed = NULL
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            while count + 1 < p.segment_count and p.segments[count + 1].base_offset <= before_offset:
                count += 1
            if count:
                removed = <segment_t **>malloc(<size_t>count * sizeof(segment_t *))
                if removed != NULL:
                    memcpy(removed, p.segments, <size_t>count * sizeof(segment_t *))
                    memmove(p.segments, p.segments + count, <size_t>(p.segment_count - count) * sizeof(segment_t *))
                    p.segment_count -= count
                    p.removals += 1
                    list_aborting(p)
                    note_newest(p, 0)
            if log_start_offset > p.log_start_offset:
                atomic_store_i64(&p.log_start_offset, log_start_offset)
                if settle_last_stable(p):
                    wake_fetches(p, 0, INT32_MAX, 0)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
        if count and removed == NULL:
            raise MemoryError
        handles = []
        for i in range(count):
            handles.append(handle_of(removed[i]))
        free(removed)
        return handles

    def replace_segments(self, segment, int64_t before_offset):
        """Put a closed storage.segment.Segment in place of the inactive ones from its base offset to `before_offset`.

        Return the handles of the replaced segments; an empty list when there are none, and then nothing has changed. No
        roll and no deletion may run meanwhile.
        """
        cdef partition_t *p = self.p
        cdef segment_t **removed = NULL
        cdef segment_t *added = NULL
        cdef int64_t base_offset = segment.base_offset
        cdef int32_t last
        cdef int32_t first = 0
        cdef int32_t count = 0
        cdef int32_t i
        added = new_segment(p, segment, -1, 0, False)
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            last = p.segment_count - 1
            while first < last and p.segments[first].base_offset < base_offset:
                first += 1
            while first + count < last and p.segments[first + count].base_offset < before_offset:
                count += 1
            if count:
                # Make room in `aborting` before anything is changed; list_aborting below lists it anew.
                if added.aborted_count == 0 or add_aborting(p, added):
                    removed = <segment_t **>malloc(<size_t>count * sizeof(segment_t *))
                if removed != NULL:
                    memcpy(removed, p.segments + first, <size_t>count * sizeof(segment_t *))
                    p.segments[first] = added
                    memmove(p.segments + first + 1, p.segments + first + count,
                            <size_t>(p.segment_count - first - count) * sizeof(segment_t *))
                    p.segment_count -= count - 1
                    p.removals += 1
                    note_newest(p, first)
                list_aborting(p)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
        if removed == NULL:
            segment_unref(added)
            if count:
                raise MemoryError
            return []
        handles = []
        for i in range(count):
            handles.append(handle_of(removed[i]))
        free(removed)
        return handles


cdef object view_of(const segment_t *s):
    return SegmentView(
        s.base_offset, s.size, s.max_timestamp, s.max_timestamp_offset, s.first_timestamp, s.created_ms,
        s.index_entries, s.time_index_entries, s.fd >= 0,
    )


cdef segment_t *segment_behind(partition_t *p, segment_t *s) noexcept nogil:
    """Return the segment after an inactive one (`lock` held)."""
    cdef int32_t low = 0
    cdef int32_t high = p.segment_count - 1
    cdef int32_t middle
    while low < high:
        middle = (low + high) >> 1
        if p.segments[middle].base_offset <= s.base_offset:
            low = middle + 1
        else:
            high = middle
    return p.segments[low]


cdef void list_aborting(partition_t *p) noexcept nogil:
    """Make the list of segments with aborted transactions anew, after segments have gone (both locks held).

    The list does not grow, so it needs no memory.
    """
    cdef int32_t i
    p.aborting_count = 0
    for i in range(p.segment_count):
        if p.segments[i].aborted_count or p.segments[i].aborted_fd >= 0:
            p.aborting[p.aborting_count] = p.segments[i]
            p.aborting_count += 1


cdef void note_newest(partition_t *p, int32_t first) noexcept nogil:
    """Set `max_timestamp_before` of the segment at `first`, which is new there, and of all behind it (`lock` held)."""
    cdef int64_t before = newest_up_to(p.segments[first - 1]) if first else -1
    cdef int32_t at = first
    while at < p.segment_count and (at == first or p.segments[at].max_timestamp_before != before):
        p.segments[at].max_timestamp_before = before
        before = newest_up_to(p.segments[at])
        at += 1
