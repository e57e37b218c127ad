"""The class with which Python drives a partition: offsets, appends, reads. Its segments are in segment_list.pyx."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from kbroker._core.base.clock cimport monotonic_ns
from kbroker._core.base.sync cimport *
from kbroker._core.log.append cimport append_result_t, appender_t, partition_append, partition_verify
from kbroker._core.log.directory cimport LogDirectory
from kbroker._core.log.acks cimport acks_fail
from kbroker._core.log.flush cimport partition_flush, partition_set_directory, recovery_point_locked, request_flush
from kbroker._core.log.follow cimport followed_t, leader_state_t, partition_follow, partition_follow_start
from kbroker._core.log.io cimport io_read
from kbroker._core.log.partition cimport *
from kbroker._core.log.position cimport endless, partition_read, patience_t
from kbroker._core.log.producer_table cimport ProducerTable
from kbroker._core.log.producers cimport (
    FROM_CLIENT, FROM_COORDINATOR, producers_copy, producers_expire, producers_first_undecided, producers_free,
    producers_had_markers, producers_new, producers_t,
)
from kbroker._core.log.replica_roles cimport ReplicaRoles
from kbroker._core.log.replicas cimport low_waiters_fail, low_watermark_moved, note_ended
from kbroker._core.log.segment_list cimport handle_of
from kbroker._core.log.time_position cimport partition_find_time, time_result_t
from kbroker._core.log.verifications cimport NO_GUARD
from kbroker._core.wire.crc cimport crc32c
from kbroker._core.wire.cursor cimport store_u32
from kbroker._core.wire.error_codes cimport UNKNOWN_TOPIC_OR_PARTITION, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR
from kbroker._core.wire.layout cimport ATTRIBUTE_CODEC_MASK, BATCH_ATTRIBUTES, BATCH_CRC, BATCH_HEADER_SIZE
from kbroker._core.wire.record_batch cimport (
    BATCH_OK, batch_error_code, batch_header, batch_info_t, batch_verify, batch_walk,
)
from kbroker._core.wire.transaction_marker cimport MARKER_ABORT, MARKER_COMMIT, MARKER_SIZE, marker_t, write_marker

from typing import NamedTuple

from kbroker.errors import StorageFailed

AS_CLIENT = FROM_CLIENT
AS_COORDINATOR = FROM_COORDINATOR
STATES = ("closed", "open", "offline", "deleted")

# Makes a NamedTuple of a tuple without the constructor's Python code, in a third of the time.
cdef object named = tuple.__new__


class AppendResult(NamedTuple):
    """Where a batch was appended."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    must_flush: bool             # the flush policy asks for a flush before the batch is acknowledged
    must_replicate: bool         # the batch is acknowledged when the high watermark has passed it
    led_since: int               # the leader epoch since which this broker has led without a break


class LocatedRead(NamedTuple):
    """What a fetch would read."""

    code: int                    # an error code; 0: none
    base_offset: int             # of the segment; -1: nothing to read
    position: int                # in the segment's .log, in bytes
    size: int                    # in bytes


class TimeSearch(NamedTuple):
    """How far a search for a timestamp has come. With offset -1 the record was not found yet, or there is none."""

    code: int                    # an error code; 0: none
    timestamp: int               # of the record, in ms
    offset: int
    leader_epoch: int
    base_offset: int             # of the segment
    position: int                # of the batch, in bytes
    batch: object                # a compressed batch that may have the record; None: there is none


cdef class PartitionState(ReplicaRoles):
    """The hot state of one partition. Every method may be called from any thread; none keeps the GIL while it waits."""

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
        p.newest_epoch = -1
        if file_system is not None and not file_system.passthrough:
            p.file_system = <void *>file_system
            Py_INCREF(file_system)
        if log is not None:
            p.log = <void *>log
            Py_INCREF(log)
        self.update_options(options)

    def __repr__(self):
        return f"<PartitionState {self.topic}-{self.partition_id} {self.state}, ends at {self.log_end_offset}>"

    def update_options(self, options):
        """Take over a LogOptions. It applies from the next append and read on."""
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
        fresh.compression_level = options.compression_level
        fresh.flushed_visibility = options.flushed_visibility
        fresh.downconversion = options.downconversion
        fresh.verify_transactions = options.verify_transactions
        fresh.min_in_sync = options.min_in_sync
        fresh.replica_lag_ms = options.replica_lag_ms
        fresh.leader_throttled = self.partition_id in options.leader_throttled
        fresh.follower_throttled = self.partition_id in options.follower_throttled
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

    def visible_end(self, bint committed=False):
        """Return the offset up to which a fetch may see: of all records, or of committed ones."""
        return partition_visible_end(self.p, TO_LAST_STABLE if committed else TO_HIGH_WATERMARK)

    @property
    def flushed_offset(self):
        return atomic_load_i64(&self.p.flushed_offset)

    @property
    def recovery_point(self):
        """The offset below which segments need no recovery after a power cut. At most `flushed_offset`."""
        cdef partition_t *p = self.p
        cdef int64_t offset
        with nogil:
            mutex_lock(&p.lock)
            offset = recovery_point_locked(p)
            mutex_unlock(&p.lock)
        return offset

    @property
    def unflushed_ms(self):
        """For how many ms the partition has had unflushed records, by the monotonic clock; -1 when all are flushed."""
        cdef int64_t since_ms = atomic_load_i64(&self.p.unflushed_since_ms)
        return monotonic_ns() // 1_000_000 - since_ms if since_ms >= 0 else -1

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
        """The number of fetches that wait for records of this partition."""
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

    # --- opening and closing

    def open(self, list segments, int64_t log_start_offset, int64_t log_end_offset, int64_t flushed_offset,
             ProducerTable producers=None):
        """Open the log with these segments: arguments for `add_segment`, ascending, the last one active and open.

        The high watermark stays, within the log, unless the broker is alone: then it is the log's end. Raises
        AssertionError when the log is not closed.
        """
        cdef partition_t *p = self.p
        cdef producers_t *fresh
        cdef int64_t high_watermark = log_end_offset
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
            if p.role != ROLE_ALONE:
                high_watermark = max(log_start_offset, min(p.high_watermark, log_end_offset))
            atomic_store_i64(&p.high_watermark, high_watermark)
            note_ended_before(p, fresh, log_end_offset)
            atomic_store_i64(&p.first_undecided, producers_first_undecided(fresh))
            settle_last_stable(p)
            atomic_store_i64(&p.flushed_offset, flushed_offset)
            atomic_store_i64(&p.unflushed_since_ms, -1 if flushed_offset >= log_end_offset else 0)
            atomic_store_i32(&p.state, PARTITION_OPEN)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)

    def set_closed_offsets(self, int64_t log_start_offset, int64_t log_end_offset, int64_t high_watermark=-1):
        """Set the offsets that are known of a closed log, for callers that only ask for offsets.

        `high_watermark` is ignored by a broker that is alone.
        """
        if self.state != "closed":
            raise AssertionError(f"{self!r} is not closed")
        atomic_store_i64(&self.p.log_start_offset, log_start_offset)
        atomic_store_i64(&self.p.log_end_offset, log_end_offset)
        if self.p.role == ROLE_ALONE:
            high_watermark = log_end_offset
        atomic_store_i64(&self.p.high_watermark, high_watermark)
        atomic_store_i64(&self.p.last_stable_offset, high_watermark)
        atomic_store_i64(&self.p.flushed_offset, log_end_offset)

    def close(self):
        """Close the log: appends and reads find it closed. Return the handles of its segments."""
        return self.leave(PARTITION_CLOSED)

    def set_directory(self, LogDirectory directory not None):
        """Note that the files of the closed log are in another directory from now on.

        The caller keeps the old one: threads may still look at it.
        """
        cdef partition_t *p = self.p
        cdef log_dir_t *to = &directory.dir
        cdef PyObject *old = <PyObject *>p.directory
        if self.state != "closed":
            raise AssertionError(f"{self!r} is not closed")
        Py_INCREF(directory)
        with nogil:
            partition_set_directory(p, to)
        p.directory = <void *>directory
        self.directory = directory
        Py_XDECREF(old)

    def delete(self):
        """Close the log for good and return its handles.

        Calls and waiting acks get UNKNOWN_TOPIC_OR_PARTITION; fetches wake.
        """
        return self.leave(PARTITION_DELETED)

    def go_offline(self):
        """Note that the directory has failed: waiting acks get KAFKA_STORAGE_ERROR, waiting fetches wake up."""
        cdef partition_t *p = self.p
        with nogil:
            mutex_lock(&p.lock)
            if p.state != PARTITION_DELETED:
                atomic_store_i32(&p.state, PARTITION_OFFLINE)
            wake_fetches(p, INT32_MAX, INT32_MAX, INT32_MAX)
            acks_fail(p, KAFKA_STORAGE_ERROR, False)
            low_waiters_fail(p, KAFKA_STORAGE_ERROR)
            mutex_unlock(&p.lock)

    cdef list leave(self, int32_t state):
        cdef partition_t *p = self.p
        cdef segment_t **segments
        cdef int32_t count
        cdef int32_t i
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            segments = p.segments
            count = p.segment_count
            p.segments = NULL
            p.segment_count = 0
            p.segment_capacity = 0
            p.aborting_count = 0
            p.tail_count = 0
            p.truncations += 1
            p.removals += 1
            atomic_store_i32(&p.state, state)
            if state == PARTITION_DELETED:
                wake_fetches(p, INT32_MAX, INT32_MAX, INT32_MAX)
                acks_fail(p, UNKNOWN_TOPIC_OR_PARTITION, False)
                low_waiters_fail(p, UNKNOWN_TOPIC_OR_PARTITION)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
        handles = []
        for i in range(count):
            handles.append(handle_of(segments[i]))
        free(segments)
        return handles

    # --- appending and reading from Python

    def append(self, batch, int64_t now_ms, int8_t origin=FROM_CLIENT, int64_t guard=NO_GUARD, int16_t acks=-1,
               int32_t leader_epoch=-1):
        """Append one batch of magic 2 that this process has made. May block.

        Header, CRC and, when not compressed, records are checked. `origin`: AS_CLIENT, or AS_COORDINATOR for batches
        without sequences. `guard`: from `verify`, for the first batch of a transaction. `acks` as in Produce: with -1
        the in-sync replicas must be enough. `leader_epoch`: this broker must have led since that epoch, or an earlier
        one; -1: any. Return (error code, AppendResult); with an error the offsets are -1.
        """
        cdef partition_t *p = self.p
        cdef Py_buffer view
        cdef batch_info_t info
        cdef append_result_t result
        cdef appender_t appender
        cdef uint8_t *copy
        cdef int code = 0
        appender.origin = origin
        appender.acks = acks
        appender.leader_epoch = leader_epoch
        appender.guard = guard
        appender.adds = False
        appender.marker = NULL
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        memset(&result, 0, sizeof(result))
        with nogil:
            copy = <uint8_t *>malloc(<size_t>view.len + 1)
            if copy != NULL:
                memcpy(copy, view.buf, <size_t>view.len)
                code = check_own_batch(copy, view.len, &info, p.options.compacted)
                if code == 0:
                    code = partition_append(p, copy, &info, &appender, now_ms, True, &result)
                free(copy)
        PyBuffer_Release(&view)
        if copy == NULL:
            raise MemoryError
        return outcome_of(p, code, &result)

    def append_as_follower(self, records, int32_t leader_epoch, int64_t high_watermark, int64_t log_start_offset):
        """Append batches as the partition's leader has sent them in `leader_epoch`. May block.

        The last batch may be cut off. Returns an error code: 0; FENCED_LEADER_EPOCH if the partition follows no leader
        in this epoch; CORRUPT_MESSAGE for a damaged batch, INVALID_RECORD for one that does not belong here (those
        before it are appended); KAFKA_STORAGE_ERROR. The high watermark and the log's start follow the leader's. When
        `flush_due` is true after the call, flush before the leader is told of the new log end.
        """
        cdef partition_t *p = self.p
        cdef Py_buffer view
        cdef leader_state_t leader
        cdef followed_t followed
        cdef int code
        leader.leader_epoch = leader_epoch
        leader.fetch_offset = -1
        leader.high_watermark = high_watermark
        leader.log_start_offset = log_start_offset
        PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
        with nogil:
            code = partition_follow(p, <const uint8_t *>view.buf, view.len, &leader, &followed)
            if code == 0 and followed.starts_later:
                code = partition_follow_start(p, log_start_offset)
        PyBuffer_Release(&view)
        return code

    @property
    def flush_due(self):
        """Whether the flush policy asks for a flush before the records up to the log's end are acknowledged."""
        return is_flush_due(self.p)

    def append_marker(self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, bint commit,
                      int64_t now_ms, bint bumped=False, int32_t leader_epoch=-1):
        """Append a marker, the end of a producer's transaction, even when none is open here. Return what `append` does.

        The in-sync replicas must be enough; `leader_epoch` is as in `append`.

        `bumped`: the coordinator raised the epoch for this marker, so it does not end a transaction of this same epoch.
        """
        cdef partition_t *p = self.p
        cdef uint8_t[MARKER_SIZE] batch
        cdef batch_info_t info
        cdef append_result_t result
        cdef appender_t appender
        cdef marker_t marker
        cdef int code
        marker.type = MARKER_COMMIT if commit else MARKER_ABORT
        marker.coordinator_epoch = coordinator_epoch
        marker.bumped = bumped
        appender.origin = FROM_COORDINATOR
        appender.acks = -1
        appender.leader_epoch = leader_epoch
        appender.guard = NO_GUARD
        appender.adds = False
        appender.marker = &marker
        memset(&result, 0, sizeof(result))
        with nogil:
            write_marker(batch, producer_id, producer_epoch, &marker, now_ms)
            store_u32(batch + BATCH_CRC, crc32c(0, batch + BATCH_ATTRIBUTES, MARKER_SIZE - BATCH_ATTRIBUTES))
            code = batch_error_code(batch_header(batch, MARKER_SIZE, &info))
            info.walked_max_timestamp = info.walked_min_timestamp = now_ms
            if code == 0:
                code = partition_append(p, batch, &info, &appender, now_ms, True, &result)
        return outcome_of(p, code, &result)

    def verify(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence=-1, bint adds=False):
        """Begin the verification of a transaction's first batch in this partition. May block.

        Returns (error code, guard for `append`). To be called before a transaction's coordinator is asked whether this
        partition belongs to it or, with `adds`, is asked to add it. Guard 0: nobody has to be asked, because the
        transaction is open here or is not to be verified.
        """
        cdef partition_t *p = self.p
        cdef batch_info_t info
        cdef int64_t guard = NO_GUARD
        cdef int code
        memset(&info, 0, sizeof(info))
        info.producer_id = producer_id
        info.producer_epoch = producer_epoch
        info.base_sequence = base_sequence
        with nogil:
            code = partition_verify(p, &info, adds, &guard)
        return code, guard

    def locate(self, int64_t offset, int64_t max_bytes, bint at_least_one=True, bint committed=False,
               bint may_block=True, bint to_log_end=False):
        """Return what a fetch would read, as LocatedRead. `to_log_end` as in `read`.

        Code -101, without `may_block` only: needs a handler.
        """
        cdef partition_t *p = self.p
        cdef patience_t patience = endless()
        cdef read_result_t found
        cdef int code
        patience.may_block = may_block
        with nogil:
            code = partition_read(
                p, offset, max_bytes, at_least_one,
                TO_LOG_END if to_log_end else TO_LAST_STABLE if committed else TO_HIGH_WATERMARK, &patience, &found,
            )
        free(found.aborted)
        if code or found.segment == NULL:
            return named(LocatedRead, (code, -1, 0, 0))
        base_offset = found.segment.base_offset
        segment_unref(found.segment)
        return named(LocatedRead, (0, base_offset, found.position, found.size))

    def aborted(self, int64_t offset, int64_t max_bytes, bint at_least_one=True, bint may_block=True):
        """Return the aborted transactions that a fetch of committed records gets with its records.

        The result is (code, size of the records in bytes, [(producer id, first offset), ...]).
        """
        cdef partition_t *p = self.p
        cdef patience_t patience = endless()
        cdef read_result_t found
        cdef int code
        patience.may_block = may_block
        with nogil:
            code = partition_read(p, offset, max_bytes, at_least_one, TO_LAST_STABLE, &patience, &found)
        if found.segment != NULL:
            segment_unref(found.segment)
        try:
            return code, found.size, [(found.aborted[at].producer_id,
                                       found.aborted[at].first_offset) for at in range(found.aborted_count)]
        finally:
            free(found.aborted)

    def find_timestamp(self, int64_t timestamp, int64_t base_offset=-1, int64_t position=-1):
        """Find the first record at or after `timestamp` (ms). Return a TimeSearch. May block.

        With offset -1 and a batch, look into the batch. If it does not have the record, call again with the search's
        base offset and the position behind the batch; they are valid while `removals` does not change.
        """
        cdef partition_t *p = self.p
        cdef time_result_t found
        cdef int code
        found.timestamp = -1
        found.leader_epoch = -1
        found.base_offset = base_offset
        found.position = position
        with nogil:
            code = partition_find_time(p, timestamp, &found)
        try:
            batch = <bytes>found.batch[:found.size] if found.batch != NULL else None
        finally:
            free(found.batch)
        return named(TimeSearch, (
            code, found.timestamp, found.offset, found.leader_epoch, found.base_offset, found.position, batch,
        ))

    def read(self, int64_t offset, int64_t max_bytes, bint at_least_one=True, bint committed=False,
             bint to_log_end=False):
        """Return (code, bytes that a fetch from `offset` gets). The last batch may be cut. May block.

        `to_log_end`: beyond the high watermark too, as followers and coordinators read.
        """
        cdef partition_t *p = self.p
        cdef patience_t patience = endless()
        cdef read_result_t found
        cdef int code
        cdef int64_t got = 0
        cdef bytes data
        cdef uint8_t *target
        with nogil:
            code = partition_read(
                p, offset, max_bytes, at_least_one,
                TO_LOG_END if to_log_end else TO_LAST_STABLE if committed else TO_HIGH_WATERMARK, &patience, &found,
            )
        free(found.aborted)
        if code or found.segment == NULL:
            return code, b""
        try:
            data = PyBytes_FromStringAndSize(NULL, found.size)
            target = <uint8_t *>PyBytes_AS_STRING(data)
            with nogil:
                got = io_read(found.segment.fd, target, found.size, found.position, True)
                if got < 0:
                    directory_failed(p, <int>got)
        finally:
            segment_unref(found.segment)
        if got != found.size:
            return KAFKA_STORAGE_ERROR, b""
        return 0, data

    def flush(self, int64_t until=-1):
        """Return when everything below `until` (-1: all that was appended before the call) is on the device.

        Concurrent callers and the flushers share the fdatasync. Raises StorageFailed when it fails.
        """
        cdef partition_t *p = self.p
        cdef int code
        with nogil:
            code = partition_flush(p, until)
        if code:
            raise StorageFailed(f"{self.topic}-{self.partition_id} cannot be flushed (error code {code})")

    def request_flush(self):
        """Ask a flusher thread to flush the partition soon; do not wait for it."""
        cdef partition_t *p = self.p
        with nogil:
            request_flush(p)

    def advance_log_start_offset(self, int64_t offset):
        """Raise the log start offset: records below it are not served any more. A lower offset is ignored."""
        cdef partition_t *p = self.p
        with nogil:
            mutex_lock(&p.lock)
            if offset > p.log_start_offset:
                atomic_store_i64(&p.log_start_offset, offset)
                if settle_last_stable(p):
                    wake_fetches(p, 0, INT32_MAX, 0)
                if p.low_waiters != NULL:
                    low_watermark_moved(p)
            mutex_unlock(&p.lock)

    @property
    def newest_epoch(self):
        """The newest leader epoch that the log knows; -1 if it knows none."""
        return atomic_load_i32(&self.p.newest_epoch)

    # --- producers

    def producers(self):
        """Return a copy of the producer table and the log end offset it belongs to."""
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

    @property
    def first_undecided_offset(self):
        """The first offset of the oldest open transaction; 2^63 - 1 when none is open."""
        return atomic_load_i64(&self.p.first_undecided)

    def expire_producers(self, int64_t oldest_timestamp):
        """Forget producers without an open transaction whose last batch is older than `oldest_timestamp` (ms)."""
        cdef partition_t *p = self.p
        with nogil:
            mutex_lock(&p.append_lock)
            producers_expire(p.producers, oldest_timestamp)
            mutex_unlock(&p.append_lock)


cdef void note_ended_before(partition_t *p, const producers_t *producers, int64_t log_end_offset) noexcept nogil:
    """Hold the last stable offset back for transactions whose markers are not replicated yet (both locks held).

    A log that is opened again knows them, less those whose markers were cut off. At the first opening nobody knows
    which they are: if there may be some, the last stable offset waits at the log's start until the high watermark has
    reached the log's end of now. If the log is cut before that, it waits for the new end.
    """
    while p.ended_count and p.ended[p.ended_count - 1].offset >= log_end_offset:
        p.ended_count -= 1
    if p.role == ROLE_ALONE or p.high_watermark >= log_end_offset:
        p.ended_count = 0
        p.ended_unknown_below = 0
    elif p.ended_unknown_below > log_end_offset or (not p.ended_known and producers_had_markers(producers)):
        p.ended_unknown_below = log_end_offset
        note_ended(p, p.log_start_offset, log_end_offset - 1)
    p.ended_known = True


cdef tuple outcome_of(partition_t *p, int code, const append_result_t *result):
    if code:
        code = INVALID_TXN_STATE if code == NEEDS_VERIFICATION else code
        return code, named(AppendResult, (-1, -1, -1, p.log_start_offset, False, False, 0))
    return 0, named(AppendResult, (
        result.base_offset, result.last_offset, result.log_append_time, result.log_start_offset, result.must_flush,
        result.must_replicate, result.led_since,
    ))


cdef int check_own_batch(const uint8_t *data, int64_t size, batch_info_t *info, bint key_required) noexcept nogil:
    cdef int finding = batch_verify(data, size, info)
    if finding == BATCH_OK:
        if info.attributes & ATTRIBUTE_CODEC_MASK:
            info.walked_max_timestamp = info.max_timestamp
            info.walked_min_timestamp = info.base_timestamp
        else:
            finding = batch_walk(data + BATCH_HEADER_SIZE, info.size - BATCH_HEADER_SIZE, info, key_required)
    return batch_error_code(finding)
