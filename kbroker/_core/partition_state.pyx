"""Python's handles on log directories, segments and partitions; the work is done in partition.pyx."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset, strerror

from kbroker._core.layout cimport ATTRIBUTE_CODEC_MASK, BATCH_HEADER_SIZE, INDEX_ENTRY_SIZE
from kbroker._core.log_flush cimport (
    complete_acks, drop_refs, flusher_loop, partition_flush, recovery_point_locked, request_flush,
)
from kbroker._core.log_io cimport io_close, io_read, io_sync, monotonic_ns
from kbroker._core.log_position cimport partition_read
from kbroker._core.partition cimport *
from kbroker._core.producers cimport (
    ProducerTable, producers_copy, producers_expire, producers_free, producers_new, producers_t,
)
from kbroker._core.record_batch cimport BATCH_OK, batch_error_code, batch_info_t, batch_verify, batch_walk
from kbroker._core.sync cimport *

import logging

from kbroker.errors import StorageFailed

logger = logging.getLogger("kbroker.storage")

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t size, int protection, int flags, int fd, int64_t offset)
    int munmap(void *address, size_t size)
    int PROT_READ
    int MAP_SHARED
    int MAP_POPULATE


cdef class LogDirectory:
    """One log directory: its flush queue and whether it still works."""

    def __cinit__(self, str path):
        self.path = path
        self.on_offline = None
        mutex_init(&self.dir.lock, NULL)
        condition_init(&self.dir.wanted, NULL)

    def __dealloc__(self):
        mutex_destroy(&self.dir.lock)
        condition_destroy(&self.dir.wanted)

    def set_on_offline(self, callback):
        """`callback(reason)` is called once, on the thread that saw the directory fail."""
        self.on_offline = callback

    def run_flusher(self):
        """Body of a flusher thread: fsync partitions as they ask for it, until `stop_flushers`. Several may run."""
        cdef log_dir_t *d = &self.dir
        with nogil:
            flusher_loop(d)

    def stop_flushers(self):
        """The flushers finish what is queued and return."""
        cdef log_dir_t *d = &self.dir
        with nogil:
            mutex_lock(&d.lock)
            d.stopping = True
            condition_broadcast(&d.wanted)
            mutex_unlock(&d.lock)

    def fail(self, str reason):
        """Take the directory offline; there is no way back but a restart."""
        if atomic_claim_i32(&self.dir.offline, 0, 1):
            self.tell_offline(reason)

    def tell_offline(self, str reason):
        logger.error("log directory %s is offline: %s", self.path, reason)
        if self.on_offline is not None:
            self.on_offline(reason)

    def tell_full(self, str log):
        """One line while there is no space, for the first append that is refused and then every 30 seconds."""
        cdef int64_t now_ns = monotonic_ns()
        cdef int64_t told_ns = atomic_load_i64(&self.dir.full_told_ns)
        if told_ns and now_ns - told_ns < FULL_TOLD_EVERY_S * 1000000000LL:
            return
        atomic_store_i64(&self.dir.full_told_ns, now_ns)
        logger.error("log directory %s is full: %s cannot be appended to until there is space", self.path, log)

    @property
    def is_offline(self):
        return atomic_load_i32(&self.dir.offline) != 0

    @property
    def is_stalled(self):
        return atomic_load_i64(&self.dir.stalled_until_ns) > monotonic_ns()

    @property
    def flush_count(self):
        return atomic_load_i64(&self.dir.flush_count)

    @property
    def flush_ns(self):
        return atomic_load_i64(&self.dir.flush_ns)

    @property
    def acks_flushed(self):
        return atomic_load_i64(&self.dir.acks_flushed)


cdef class SegmentHandle:
    """A segment that has left its log, still open for the readers that were in it."""

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
        """Whether somebody reads it still."""
        return atomic_load_i32(&self.s.refs) > 1


cdef SegmentHandle handle_of(segment_t *s):
    """Takes the caller's reference over."""
    cdef SegmentHandle handle = SegmentHandle.__new__(SegmentHandle)
    handle.s = s
    return handle


STATES = ("closed", "open", "offline", "deleted")


cdef class PartitionState:
    """One partition's hot state. Every method may be called from any thread; none keeps the GIL while it waits.

    Who changes the list of segments (open, close, roll, remove) is serialized by storage.Log's lock.
    """

    def __cinit__(self, LogDirectory directory not None, str topic not None, int partition_id, bytes topic_id not None,
                  options, file_system=None, log=None):
        cdef bytes name = topic.encode()
        cdef partition_t *p
        if len(topic_id) != 16 or not 0 < len(name) <= 32767:
            raise ValueError(f"topic id of {len(topic_id)} bytes, name of {len(name)} bytes")
        p = <partition_t *>calloc(1, sizeof(partition_t))
        if p == NULL:
            raise MemoryError
        self.p = p
        self.directory = directory
        self.topic = topic
        self.partition_id = partition_id
        p.refs = 1
        mutex_init(&p.flush_lock, NULL)
        mutex_init(&p.append_lock, NULL)
        mutex_init(&p.lock, NULL)
        p.topic = <char *>malloc(<size_t>len(name))
        p.producers = producers_new()
        p.dir = &directory.dir
        p.directory = <void *>directory
        Py_INCREF(directory)
        if p.topic == NULL or p.producers == NULL:
            raise MemoryError
        memcpy(p.topic, PyBytes_AS_STRING(name), <size_t>len(name))
        p.topic_size = <int16_t>len(name)
        p.partition_id = partition_id
        memcpy(p.topic_id, PyBytes_AS_STRING(topic_id), 16)
        p.unflushed_since_ms = -1
        if file_system is not None and not file_system.passthrough:
            p.file_system = <void *>file_system
            Py_INCREF(file_system)
        if log is not None:
            p.log = <void *>log
            Py_INCREF(log)
        self.update_options(options)

    def __dealloc__(self):
        if self.p != NULL:
            partition_unref(self.p)

    def __repr__(self):
        return f"<PartitionState {self.topic}-{self.partition_id} {self.state}, ends at {self.log_end_offset}>"

    def update_options(self, options):
        """Take over a LogOptions; in force from the next append and read on."""
        cdef log_options_t fresh
        cdef partition_t *p = self.p
        fresh.segment_bytes = options.segment_bytes
        fresh.segment_ms = options.segment_ms
        fresh.max_message_bytes = options.max_message_bytes
        fresh.index_interval_bytes = options.index_interval_bytes
        fresh.index_max_bytes = options.index_max_bytes
        fresh.flush_messages = options.flush_messages
        fresh.timestamp_before_max_ms = options.timestamp_before_max_ms
        fresh.timestamp_after_max_ms = options.timestamp_after_max_ms
        fresh.log_append_time = options.log_append_time
        fresh.compacted = options.compacted
        fresh.compression = options.compression
        fresh.flushed_visibility = options.flushed_visibility
        fresh.min_insync_replicas = options.min_insync_replicas
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            p.options = fresh
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)

    # --- what it knows

    @property
    def state(self):
        """One of "closed", "open", "offline", "deleted"."""
        cdef int32_t state = atomic_load_i32(&self.p.state)
        if state in (PARTITION_OPEN, PARTITION_CLOSED) and atomic_load_i32(&self.p.dir.offline):
            state = PARTITION_OFFLINE
        return STATES[state]

    @property
    def topic_id(self):
        return PyBytes_FromStringAndSize(<char *>self.p.topic_id, 16)

    @property
    def log_start_offset(self):
        return atomic_load_i64(&self.p.log_start_offset)

    @property
    def log_end_offset(self):
        return atomic_load_i64(&self.p.log_end_offset)

    @property
    def high_watermark(self):
        return atomic_load_i64(&self.p.high_watermark)

    @property
    def last_stable_offset(self):
        return atomic_load_i64(&self.p.last_stable_offset)

    @property
    def flushed_offset(self):
        return atomic_load_i64(&self.p.flushed_offset)

    @property
    def recovery_point(self):
        """Segments that end below need no recovery after a power cut; at most `flushed_offset`."""
        cdef partition_t *p = self.p
        cdef int64_t offset
        with nogil:
            mutex_lock(&p.lock)
            offset = recovery_point_locked(p)
            mutex_unlock(&p.lock)
        return offset

    @property
    def unflushed_since_ms(self):
        return atomic_load_i64(&self.p.unflushed_since_ms)

    @property
    def leader_epoch(self):
        return atomic_load_i32(&self.p.leader_epoch)

    @property
    def messages_in(self):
        return atomic_load_i64(&self.p.messages_in)

    @property
    def bytes_in(self):
        return atomic_load_i64(&self.p.bytes_in)

    @property
    def bytes_out(self):
        return atomic_load_i64(&self.p.bytes_out)

    @property
    def waiting_fetches(self):
        """Fetches that wait for records of this partition."""
        cdef partition_t *p = self.p
        cdef fetch_waiter_t *waiter
        cdef int64_t count = 0
        with nogil:
            mutex_lock(&p.lock)
            waiter = p.fetch_waiters
            while waiter != NULL:
                count += 1
                waiter = waiter.next
            mutex_unlock(&p.lock)
        return count

    @property
    def fetches(self):
        return atomic_load_i64(&self.p.fetches)

    @property
    def size(self):
        """Bytes of all segments' logs."""
        cdef partition_t *p = self.p
        cdef int64_t size = 0
        cdef int32_t i
        with nogil:
            mutex_lock(&p.lock)
            for i in range(p.segment_count):
                size += p.segments[i].size
            mutex_unlock(&p.lock)
        return size

    def segments(self):
        """Per segment, ascending: (base_offset, size, max_timestamp, max_timestamp_offset, first_timestamp, created_ms,
        index_count, time_index_count, is_open)."""
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
            return [
                (
                    copies[i].base_offset, copies[i].size, copies[i].max_timestamp, copies[i].max_timestamp_offset,
                    copies[i].first_timestamp, copies[i].created_ms, copies[i].index_entries,
                    copies[i].time_index_entries, copies[i].fd >= 0,
                )
                for i in range(count)
            ]
        finally:
            free(copies)

    # --- opening and closing

    def open(self, list segments, int64_t log_start_offset, int64_t log_end_offset, int64_t flushed_offset,
             ProducerTable producers=None):
        """Serve these segments (arguments of `add_segment`; ascending, the last one active and open)."""
        cdef partition_t *p = self.p
        cdef producers_t *fresh
        if self.state != "closed" or p.segment_count:
            raise AssertionError(f"{self!r} cannot be opened")
        for segment in segments:
            self.add_segment(*segment)
        fresh = producers_new()
        if fresh == NULL:
            raise MemoryError
        if producers is not None and producers_copy(producers.table, fresh) < 0:
            producers_free(fresh)
            raise MemoryError
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            producers_free(p.producers)
            p.producers = fresh
            p.tail_count = 0
            p.rolling = False
            atomic_store_i64(&p.log_start_offset, log_start_offset)
            atomic_store_i64(&p.log_end_offset, log_end_offset)
            atomic_store_i64(&p.high_watermark, log_end_offset)
            atomic_store_i64(&p.last_stable_offset, log_end_offset)
            atomic_store_i64(&p.flushed_offset, flushed_offset)
            atomic_store_i64(&p.unflushed_since_ms, -1 if flushed_offset >= log_end_offset else 0)
            atomic_store_i32(&p.state, PARTITION_OPEN)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)

    def set_closed_offsets(self, int64_t log_start_offset, int64_t log_end_offset):
        """What a closed log is known to hold, for those who only ask for its offsets."""
        if self.state != "closed":
            raise AssertionError(f"{self!r} is not closed")
        atomic_store_i64(&self.p.log_start_offset, log_start_offset)
        atomic_store_i64(&self.p.log_end_offset, log_end_offset)
        atomic_store_i64(&self.p.high_watermark, log_end_offset)
        atomic_store_i64(&self.p.last_stable_offset, log_end_offset)
        atomic_store_i64(&self.p.flushed_offset, log_end_offset)

    def close(self):
        """Let go of all segments: appends and reads find the log closed. Returns their handles."""
        return self.leave(PARTITION_CLOSED)

    def delete(self):
        """As close, for good: everybody who asks is told that there is no such partition; who waits is answered."""
        return self.leave(PARTITION_DELETED)

    def go_offline(self):
        """The directory has failed: everybody who waits is answered."""
        cdef partition_t *p = self.p
        cdef int32_t completed
        with nogil:
            mutex_lock(&p.lock)
            if p.state != PARTITION_DELETED:
                atomic_store_i32(&p.state, PARTITION_OFFLINE)
            wake_fetches(p, INT32_MAX)
            completed = complete_acks(p, KAFKA_STORAGE_ERROR)
            mutex_unlock(&p.lock)
            drop_refs(p, completed)

    cdef list leave(self, int32_t state):
        cdef partition_t *p = self.p
        cdef segment_t **segments
        cdef int32_t count
        cdef int32_t i
        cdef int32_t completed = 0
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            segments = p.segments
            count = p.segment_count
            p.segments = NULL
            p.segment_count = 0
            p.segment_capacity = 0
            p.tail_count = 0
            p.truncations += 1
            atomic_store_i32(&p.state, state)
            if state == PARTITION_DELETED:
                wake_fetches(p, INT32_MAX)
                completed = complete_acks(p, UNKNOWN_TOPIC_OR_PARTITION)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
            drop_refs(p, completed)
        handles = []
        for i in range(count):
            handles.append(handle_of(segments[i]))
        free(segments)
        return handles

    def add_segment(self, segment, int fd, int64_t created_ms, int64_t roll_jitter_ms, bint active):
        """Append a storage.segment.Segment to the list; takes the descriptor over (-1: closed). An active one must be open."""
        cdef partition_t *p = self.p
        cdef segment_t *s = <segment_t *>calloc(1, sizeof(segment_t))
        if s == NULL:
            raise MemoryError
        s.refs = 1
        s.fd = -1
        s.index_fd = -1
        s.time_index_fd = -1
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
            s.entry_synced = segment.entry_synced
            s.indexes_dirty = active
            if active:
                s.pending = <pending_index_t *>calloc(1, sizeof(pending_index_t))
                if s.pending == NULL:
                    raise MemoryError
        except BaseException:
            free(s)
            raise
        s.created_ms = created_ms
        s.roll_jitter_ms = roll_jitter_ms
        s.fd = fd
        if p.file_system != NULL:
            s.file_system = p.file_system
            Py_INCREF(<object>s.file_system)
        with nogil:
            mutex_lock(&p.append_lock)
        grown = self.grow_segments()
        if grown:
            with nogil:
                mutex_lock(&p.lock)
                p.segments[p.segment_count] = s
                p.segment_count += 1
                mutex_unlock(&p.lock)
        mutex_unlock(&p.append_lock)
        if not grown:
            segment_unref(s)
            raise MemoryError

    cdef bint grow_segments(self) noexcept:
        """Room for one more (append_lock held)."""
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

    # --- appending and reading from Python

    def append(self, batch, int64_t now_ms):
        """Append one batch that this process has made (magic 2; header, CRC and, when not compressed, records are checked).

        Returns (error code, base_offset, last_offset, log_append_time, log_start_offset, must_wait). May block; `must_wait`
        means that the batch is durable only after `flush`.
        """
        cdef partition_t *p = self.p
        cdef Py_buffer view
        cdef batch_info_t info
        cdef append_result_t result
        cdef uint8_t *copy
        cdef int code = 0
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        memset(&result, 0, sizeof(result))
        with nogil:
            copy = <uint8_t *>malloc(<size_t>view.len + 1)
            if copy != NULL:
                memcpy(copy, view.buf, <size_t>view.len)
                code = check_own_batch(copy, view.len, &info, p.options.compacted)
                if code == 0:
                    code = partition_append(p, copy, &info, now_ms, True, &result)
                free(copy)
        PyBuffer_Release(&view)
        if copy == NULL:
            raise MemoryError
        if code:
            return code, -1, -1, -1, p.log_start_offset, False
        return 0, result.base_offset, result.last_offset, result.log_append_time, result.log_start_offset, result.must_wait

    def locate(self, int64_t offset, int64_t max_bytes, bint at_least_one=True, bint committed=False, bint may_block=True):
        """Where a fetch would read: (code, base offset of the segment or -1, position, size). -101: needs a handler."""
        cdef partition_t *p = self.p
        cdef read_result_t found
        cdef int code
        with nogil:
            code = partition_read(p, offset, max_bytes, at_least_one, committed, may_block, &found)
        if code or found.segment == NULL:
            return code, -1, 0, 0
        base_offset = found.segment.base_offset
        segment_unref(found.segment)
        return 0, base_offset, found.position, found.size

    def read(self, int64_t offset, int64_t max_bytes, bint at_least_one=True, bint committed=False):
        """(code, bytes): what a fetch from `offset` gets; the last batch may be cut. May block."""
        cdef partition_t *p = self.p
        cdef read_result_t found
        cdef int code
        cdef int64_t got = 0
        cdef bytes data
        cdef uint8_t *target
        with nogil:
            code = partition_read(p, offset, max_bytes, at_least_one, committed, True, &found)
        if code or found.segment == NULL:
            return code, b""
        try:
            data = PyBytes_FromStringAndSize(NULL, found.size)
            target = <uint8_t *>PyBytes_AS_STRING(data)
            with nogil:
                got = io_read(found.segment.fd, target, found.size, found.position, True)
        finally:
            segment_unref(found.segment)
        if got != found.size:
            return KAFKA_STORAGE_ERROR, b""
        return 0, data

    def flush(self, int64_t until=-1):
        """Return when what is below `until` (-1: everything appended before the call) is on the device. Raises StorageFailed.

        Who calls it at the same time, and the flushers, share the fdatasync.
        """
        cdef partition_t *p = self.p
        cdef int code
        with nogil:
            code = partition_flush(p, until)
        if code:
            raise StorageFailed(f"{self.topic}-{self.partition_id} cannot be flushed (error code {code})")

    def request_flush(self):
        """Let a flusher do it, soon."""
        cdef partition_t *p = self.p
        with nogil:
            request_flush(p)

    # --- rolling

    def begin_roll(self):
        """Hold appends back; returns the log's end, the base offset of the segment to make."""
        return self.set_rolling(True)

    def abort_roll(self):
        """Appends go on in the segment there is."""
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

    def set_index_files(self, int64_t base_offset, int index_fd, int time_index_fd):
        """Descriptors for writing the indexes of an unflushed segment; takes them over. False: it has some already."""
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
        """Whether the active segment's indexes have descriptors."""
        cdef partition_t *p = self.p
        cdef bint there = False
        with nogil:
            mutex_lock(&p.lock)
            if p.segment_count:
                there = p.segments[p.segment_count - 1].index_fd >= 0
            mutex_unlock(&p.lock)
        return there

    def write_indexes(self, bint final, bint sync):
        """Write the active segment's pending index entries; `final`: its largest timestamp too. Raises StorageFailed.

        `sync`: and sync them; nobody may append meanwhile.
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
                    if failed == 0 and sync:
                        failed = io_sync(s.file_system, s.index_fd)
                    if failed == 0 and sync:
                        failed = io_sync(s.file_system, s.time_index_fd)
                    if failed:
                        write_failed(p, s, failed)
            mutex_unlock(&p.append_lock)
        if failed:
            raise StorageFailed(f"{self.topic}-{self.partition_id}: writing an index: {strerror(-failed).decode()}")

    def finish_roll(self, segment, int fd, int64_t created_ms, int64_t roll_jitter_ms):
        """The new, empty segment takes the appends from here on; takes the descriptor over."""
        cdef partition_t *p = self.p
        cdef segment_t *old
        if segment.base_offset != self.log_end_offset or not p.rolling:
            raise AssertionError(f"{self!r} cannot roll at {segment.base_offset}")
        self.add_segment(segment, fd, created_ms, roll_jitter_ms, True)
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
        """Descriptor and map of a segment that was closed; takes both descriptors over. False: it is open, or gone."""
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef bint taken = False
        cdef void *address = NULL
        cdef int64_t capacity = <int64_t>index_count * INDEX_ENTRY_SIZE
        with nogil:
            if index_count:
                # Populated here, where it may block: a lookup on a processor finds the pages.
                address = mmap(NULL, <size_t>capacity, PROT_READ, MAP_SHARED | MAP_POPULATE, index_fd, 0)
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s != NULL and s.fd < 0 and address != <void *>-1:
                s.index = <uint8_t *>address
                s.index_capacity = capacity
                s.index_entries = index_count
                s.fd = fd
                atomic_store_i32(&s.touched, 1)
                taken = True
            mutex_unlock(&p.lock)
            if taken:
                io_close(p.file_system, index_fd)
            elif address != NULL and address != <void *>-1:
                munmap(address, <size_t>capacity)
        return taken

    def set_entry_synced(self, int64_t base_offset):
        """The names of the segment's files survive a power cut."""
        cdef partition_t *p = self.p
        cdef segment_t *s
        with nogil:
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s != NULL:
                s.entry_synced = True
            mutex_unlock(&p.lock)

    def close_segment(self, int64_t base_offset):
        """Close an inactive, flushed segment that nobody reads and nobody has used since the last call. Whether it is closed."""
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
            elif s != p.segments[p.segment_count - 1] and s.refs == 1 and p.flushed_offset > s.base_offset and (
                segment_behind(p, s).base_offset <= p.flushed_offset
            ):
                if not atomic_claim_i32(&s.touched, 1, 0):
                    files = s[0]
                    s.fd = -1
                    s.index_fd = -1
                    s.time_index_fd = -1
                    s.index = NULL
                    closed = True
            mutex_unlock(&p.lock)
            if closed and files.fd >= 0:
                segment_close_files(&files)
        return closed

    def remove_segments(self, int64_t before_offset, int64_t log_start_offset):
        """Take out whole segments below `before_offset`, never the active one. Returns their handles; the log starts anew."""
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
            if log_start_offset > p.log_start_offset:
                atomic_store_i64(&p.log_start_offset, log_start_offset)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
        if count and removed == NULL:
            raise MemoryError
        handles = []
        for i in range(count):
            handles.append(handle_of(removed[i]))
        free(removed)
        return handles

    def advance_log_start_offset(self, int64_t offset):
        """Records below are not served any more."""
        cdef partition_t *p = self.p
        with nogil:
            mutex_lock(&p.lock)
            if offset > p.log_start_offset:
                atomic_store_i64(&p.log_start_offset, offset)
            mutex_unlock(&p.lock)

    def set_leader_epoch(self, int32_t epoch):
        """Stamped into every batch from the next append on."""
        cdef partition_t *p = self.p
        with nogil:
            mutex_lock(&p.append_lock)
            atomic_store_i32(&p.leader_epoch, epoch)
            mutex_unlock(&p.append_lock)

    # --- producers

    def producers(self):
        """A copy of the producer table and the log end offset it belongs to."""
        cdef partition_t *p = self.p
        cdef ProducerTable table = ProducerTable()
        cdef int64_t end
        cdef int copied
        with nogil:
            mutex_lock(&p.append_lock)
            copied = producers_copy(p.producers, table.table)
            end = p.log_end_offset
            mutex_unlock(&p.append_lock)
        if copied < 0:
            raise MemoryError
        return table, end

    def expire_producers(self, int64_t oldest_timestamp):
        """Forget producers whose last batch is older."""
        cdef partition_t *p = self.p
        with nogil:
            mutex_lock(&p.append_lock)
            producers_expire(p.producers, oldest_timestamp)
            mutex_unlock(&p.append_lock)


cdef segment_t *segment_behind(partition_t *p, segment_t *s) noexcept nogil:
    """The one after an inactive segment (`lock` held)."""
    cdef int32_t i = p.segment_count - 1
    while p.segments[i - 1] != s:
        i -= 1
    return p.segments[i]


cdef int check_own_batch(const uint8_t *data, int64_t size, batch_info_t *info, bint key_required) noexcept nogil:
    cdef int finding = batch_verify(data, size, info)
    if finding == BATCH_OK:
        if info.attributes & ATTRIBUTE_CODEC_MASK:
            info.walked_max_timestamp = info.max_timestamp
            info.walked_min_timestamp = info.base_timestamp
            info.walked_max_timestamp_delta = info.last_offset_delta
        else:
            finding = batch_walk(data + BATCH_HEADER_SIZE, info.size - BATCH_HEADER_SIZE, info, key_required)
    return batch_error_code(finding)
