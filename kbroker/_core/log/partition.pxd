"""Hot state of a partition's log: what an append and a read touch, as C structs with one small lock each.

Python (`kbroker.storage`) creates, opens, rolls, deletes and recovers; the functions here append to the active segment
and wake waiting fetches without the interpreter. position.pxd finds offsets, flush.pxd flushes and releases
waiting acknowledgements, partition_state.pxd lets Python drive it all.

Ownership. `partition_t` and `segment_t` are reference-counted (`*_ref`, `*_unref`). A segment's descriptor and maps live
until its last reference goes, so a file may be unlinked under a reader. The registry holds one reference of each
partition; whoever looks one up gets a reference of his own.

Locks. `append_lock` is held over a whole append, write(2) included (order of offsets is order of bytes), and by whatever
changes the list of segments; never over fsync or open. It guards the producer table and what only appends touch.
`lock` is held for a few instructions, never over a system call that can touch a disk: it guards the segment list, the
tail ring, the entries pending for the indexes and the waiter lists, so a read never waits for another one's write.
`flush_lock` is held over fdatasync, one at a time for each partition: who comes meanwhile finds that it has served him
too, or makes the next one with all the others who came.
Order: registry, flush_lock, append_lock, lock, log_dir, mailbox. Whoever holds the GIL gives it up before he takes any of them.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._core.base.mailbox cimport mail_t
from kbroker._core.base.sync cimport atomic_add_i32, atomic_load_i32, atomic_load_i64, condition_t, mutex_t
from kbroker._core.log.producers cimport producers_t
from kbroker._core.log.verifications cimport verifications_t
from kbroker._core.wire.error_codes cimport UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR
from kbroker._core.wire.record_batch cimport batch_info_t
from kbroker._core.wire.transaction_marker cimport marker_t

cdef enum:
    # What the compiled calls return besides Kafka's error codes (which are >= -1).
    NEEDS_HANDLER = -101       # it may block: run it on a request handler thread
    NEEDS_VERIFICATION = -103  # the first batch of a transaction: its coordinator has to be asked

    PARTITION_CLOSED = 0       # known, but its log is not opened yet: NEEDS_HANDLER opens it
    PARTITION_OPEN = 1
    PARTITION_OFFLINE = 2      # its log directory failed: KAFKA_STORAGE_ERROR
    PARTITION_DELETED = 3      # UNKNOWN_TOPIC_OR_PARTITION

    FULL_TOLD_EVERY_S = 30     # a line about a full disk in the log, while appends are refused for it

    TAIL_RING = 64             # batches at the log's end whose position is remembered (a power of two)
    INDEX_PENDING = 64         # index entries of the active segment kept in memory before they are written in one go

ctypedef struct log_dir_t:
    mutex_t lock               # guards the queue of partitions that wait for a flush
    condition_t wanted
    partition_t *flush_head
    partition_t *flush_tail
    int32_t offline            # atomic; 1 after an I/O error or a failed fsync, for good
    int32_t stopping
    int64_t flush_count        # atomic counters, for metrics
    int64_t flush_ns
    int64_t acks_flushed
    int64_t full_told_ns       # atomic; when something was last refused for lack of space; 0 when there is some
    int64_t stalled_until_ns   # atomic; while in the future, appends go to the handler threads (a write took too long)

ctypedef struct pending_index_t:
    # Entries of the active segment's indexes that are not in their files yet, in file format (partition_t.lock).
    int32_t count              # entries not in `index` yet
    int32_t time_count
    uint8_t index[512]         # INDEX_PENDING entries of 8 bytes
    uint8_t time_index[768]    # INDEX_PENDING entries of 12 bytes

ctypedef struct segment_t:
    int32_t refs               # atomic
    int32_t fd                 # of the .log; -1 while closed
    int32_t index_fd           # of the active and of unflushed segments, else -1
    int32_t time_index_fd
    int32_t aborted_fd         # of the .txnindex of the active and of unflushed segments, else -1
    int32_t aborted_count      # entries in the .txnindex (written under both locks, before the end that they are for)
    int64_t base_offset
    int64_t size               # atomic; bytes of whole batches that may be read
    int64_t max_timestamp      # -1 while empty
    int64_t max_timestamp_offset # last offset of the first batch that has it
    int64_t max_timestamp_before # `lock`; the largest of all older segments, -1 when none has one: never falls along the list
    int64_t first_timestamp    # of the first batch, -1 while empty: the basis of rolling by age
    int64_t created_ms         # monotonic; the basis of rolling by age while first_timestamp is -1
    int64_t roll_jitter_ms
    uint8_t *index             # the mapped .index, NULL until a lookup needs it; read only, written through index_fd
    int64_t index_capacity     # bytes mapped
    uint8_t *time_index        # the mapped .timeindex, likewise: NULL until a lookup by time needs it
    int64_t time_index_capacity
    uint8_t *aborted           # the mapped .txnindex, likewise: NULL until a fetch of committed records needs it
    int64_t aborted_capacity
    int32_t index_entries      # in the file; the pending ones come behind
    int32_t time_index_entries
    int64_t last_time_entry    # timestamp of the newest time index entry, pending ones included; -1 when none
    int64_t bytes_since_index
    pending_index_t *pending   # active segment only
    int32_t entry_synced       # `lock`; whether its name survives a power cut
    int32_t indexes_dirty      # `lock`; whether its index files may not be on the device yet; always of the active segment
    int32_t touched            # atomic; set by readers, cleared by the LRU of closed segments' descriptors
    void *file_system          # owned PyObject of an injected FileSystem, NULL for the real one

ctypedef struct tail_entry_t:
    int64_t base_offset
    int64_t position           # in the active segment

ctypedef struct fetch_waiter_t:
    # Embedded in a parked fetch, one per partition it waits on. Linked under partition_t.lock.
    bint committed             # it waits for the last stable offset, else for the high watermark
    fetch_waiter_t *next
    fetch_waiter_t *previous
    partition_t *partition     # NULL while not linked; await takes a reference, forget drops it
    int64_t *bytes_missing     # atomic, shared by the fetch's waiters: an append subtracts its size, at <= 0 it posts `mail`
    mail_t *mail

ctypedef struct ack_waiter_t:
    # Embedded in a produce slot, one per partition whose flush (later: replication) the response waits for.
    ack_waiter_t *next
    partition_t *partition     # await takes a reference, whoever completes the waiter drops it
    int64_t offset             # satisfied when flushed_offset > this (offset of the last record)
    int32_t *pending           # atomic, shared by the slot's waiters: the one that brings it to 0 posts `mail`
    int16_t *error             # where to put KAFKA_STORAGE_ERROR when the flush fails (read after pending is 0)
    mail_t *mail

ctypedef struct log_options_t:
    int64_t segment_bytes
    int64_t segment_ms
    int32_t max_message_bytes
    int32_t index_interval_bytes
    int32_t index_max_bytes
    int64_t flush_messages     # flush before ack when so many are unflushed; 1 = fsync before every ack
    int64_t timestamp_before_max_ms
    int64_t timestamp_after_max_ms
    int8_t log_append_time     # message.timestamp.type
    int8_t compacted           # a key is required in every record
    int8_t compression         # -1 producer, else the codec to recompress with (NEEDS_HANDLER)
    int32_t compression_level  # of that codec, as its setting has it
    int8_t flushed_visibility  # log.flush.visibility=flushed
    int8_t downconversion      # message.downconversion.enable
    int8_t verify_transactions # transaction.partition.verification.enable

ctypedef struct partition_t:
    int32_t refs               # atomic
    int32_t state              # atomic
    mutex_t flush_lock
    mutex_t append_lock
    mutex_t lock
    char *topic                # UTF-8, owned
    int16_t topic_size
    int32_t partition_id
    uint8_t topic_id[16]
    int32_t leader_epoch       # atomic
    int64_t log_start_offset   # atomic, as the five below: read without a lock, written under `lock`
    int64_t log_end_offset
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t first_undecided    # where the oldest open transaction begins, INT64_MAX without one (written under both locks)
    int64_t flushed_offset     # everything below is on the device (Kafka's recovery point)
    int64_t unflushed_since_ms # atomic; no unflushed batch was appended before this monotonic time; -1 when all is flushed
    int64_t last_append_ms     # `lock`; monotonic
    segment_t **segments       # ascending by base offset; the last one is active. References. Written under both locks.
    int32_t segment_count
    int32_t segment_capacity
    segment_t **aborting       # those of the segments that have aborted transactions, likewise
    int32_t aborting_count
    int32_t aborting_capacity
    tail_entry_t tail[64]      # ring over the newest batches of the active segment
    uint32_t tail_count        # ever written; index = count & (TAIL_RING - 1)
    log_options_t options
    log_dir_t *dir
    producers_t *producers     # append_lock
    verifications_t verifications # append_lock
    fetch_waiter_t *fetch_waiters
    ack_waiter_t *ack_waiters
    int32_t rolling            # append_lock: the log's end stands still while a new segment is made
    uint32_t truncations       # ever made; a flush that overlaps one does not count
    uint32_t removals          # `lock`; of segments from the list, one by another included: what was found in it may be gone
    partition_t *flush_next    # queue of log_dir_t
    int32_t flush_state        # log_dir_t.lock: 0 idle, 1 queued, 2 running, 3 running and wanted again
    int64_t messages_in        # counters, atomic
    int64_t bytes_in
    int64_t bytes_out
    int64_t fetches
    void *directory            # owned PyObject: the LogDirectory of `dir`
    void *file_system          # owned PyObject of an injected FileSystem, NULL for the real one
    void *log                  # owned PyObject: weak reference to the storage.Log that opens and rolls, or NULL
    partition_t *name_next     # Registry's chains
    partition_t *id_next

ctypedef struct append_result_t:
    int64_t base_offset
    int64_t last_offset
    int64_t log_append_time    # -1 unless LogAppendTime
    int64_t log_start_offset
    bint must_wait             # the ack waits until flushed_offset > last_offset

ctypedef struct aborted_t:
    # An aborted transaction of which something may be among what a fetch gets.
    int64_t producer_id
    int64_t first_offset

ctypedef struct read_result_t:
    segment_t *segment         # a reference for the caller; NULL when there is nothing to send
    aborted_t *aborted         # owned by the caller, freed by free(); with `committed` only
    int32_t aborted_count
    int32_t aborted_capacity
    int64_t position
    int64_t size
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset

# --- partitions and the registry ---------------------------------------------------------------------
cdef void partition_ref(partition_t *p) noexcept nogil
cdef void partition_unref(partition_t *p) noexcept nogil
cdef inline void segment_ref(segment_t *s) noexcept nogil:
    atomic_add_i32(&s.refs, 1)
cdef void segment_unref(segment_t *s) noexcept nogil           # the last one closes the descriptor and unmaps

# --- appending ----------------------------------------------------------------------------------------
# `may_block`: the caller is a request handler thread without the GIL. Then the call opens, rolls and waits for a stalled
# directory itself, through storage.Log where needed, and never returns NEEDS_HANDLER. Otherwise NEEDS_HANDLER means that
# nothing was changed and that the same call has to be made again from a handler thread.

ctypedef struct appender_t:
    # On whose behalf a batch is appended.
    int8_t origin              # FROM_CLIENT, FROM_COORDINATOR
    int64_t guard              # of partition_verify; NO_GUARD: nobody was asked
    bint adds                  # what begins a transaction adds the partition to it (KIP-890, part 2)
    const marker_t *marker     # not NULL: the batch is this, the end of a transaction

# Validated batch in (batch_check and batch_walk have passed), offsets, epoch and timestamps stamped in place, one
# write(2). Returns 0, a Kafka error code, NEEDS_HANDLER (closed, roll due, directory stalled), or NEEDS_VERIFICATION:
# nothing was changed; ask the coordinator between partition_verify and the same call with the guard. `now_ms` is the
# wall clock. A duplicate of an idempotent batch returns 0 with the first append's offsets. When `must_wait` is set a
# flush has been asked for already.
cdef int partition_append(partition_t *p, uint8_t *batch, batch_info_t *info, const appender_t *appender, int64_t now_ms,
                          bint may_block, append_result_t *result) noexcept nogil
# Before the coordinator of a transaction is asked whether it knows of its being here, or to add it (may block). 0 with a guard, or with
# NO_GUARD when nobody has to be asked; else an error code. From here on a marker of the producer makes the guard useless.
cdef int partition_verify(partition_t *p, const batch_info_t *info, bint adds, int64_t *guard) noexcept nogil

# The end of what a fetch may see now: last stable offset or high watermark, not beyond what is flushed where only
# flushed records are visible.
cdef inline int64_t partition_visible_end(partition_t *p, bint committed) noexcept nogil:
    cdef int64_t end = atomic_load_i64(&p.last_stable_offset) if committed else atomic_load_i64(&p.high_watermark)
    cdef int64_t flushed
    if p.options.flushed_visibility:
        flushed = atomic_load_i64(&p.flushed_offset)
        return flushed if flushed < end else end
    return end

# --- waiting ------------------------------------------------------------------------------------------
# Link the waiter, unless what a fetch may see has passed `from_offset` already, or the partition is offline or deleted
# (false then, nothing linked). forget: idempotent; once it has returned, no append touches the waiter or its mail.
cdef bint partition_await_bytes(partition_t *p, fetch_waiter_t *waiter, int64_t from_offset, bint committed) noexcept nogil
cdef void partition_forget_bytes(fetch_waiter_t *waiter) noexcept nogil

# --- for position.pyx, flush.pyx and partition_state.pyx -----------------------------------------
cdef enum:
    # What storage.Log.prepare is asked for.
    PREPARE_NOTHING = 0        # only come again
    PREPARE_OPEN = 1           # the log is closed
    PREPARE_ROLL = 2           # the segment with this base offset is full or too old
    PREPARE_INDEX = 3          # the indexes of the segment with this base offset need descriptors
    PREPARE_SEGMENT = 4        # the segment with this base offset is closed
    PREPARE_DIRECTORY = 5      # the name of the segment with this base offset has to be made durable
    PREPARE_TIME_INDEX = 6     # the time index of the inactive segment with this base offset is not mapped
    PREPARE_ABORTED = 7        # the .txnindex of the segment with this base offset has to be made, or is not mapped

# Why the partition serves nothing, 0 if it does, NEEDS_HANDLER if it is closed.
cdef inline int refusal(partition_t *p) noexcept nogil:
    cdef int32_t state = atomic_load_i32(&p.state)
    if state == PARTITION_DELETED:
        return UNKNOWN_TOPIC_OR_PARTITION
    if state == PARTITION_OFFLINE or atomic_load_i32(&p.dir.offline):
        return KAFKA_STORAGE_ERROR
    return 0 if state == PARTITION_OPEN else NEEDS_HANDLER

ctypedef struct need_t:
    int kind                   # PREPARE_*
    int64_t base_offset

cdef int prepare(partition_t *p, int kind, int64_t base_offset) noexcept with gil
# A disk that is broken: the log directory refuses everything from here on, and the server hears of it. The two halves are
# for who holds a lock at the first and may not at the second; `take_offline` says whether it is news.
cdef void directory_failed(partition_t *p, int failed) noexcept nogil
cdef bint take_offline(partition_t *p) noexcept nogil
cdef void tell_offline(partition_t *p, int failed) noexcept with gil
cdef int32_t index_count(segment_t *s) noexcept nogil
cdef int32_t time_index_count(segment_t *s) noexcept nogil
cdef int spill_indexes(partition_t *p, segment_t *s) noexcept nogil
cdef void add_time_entry(segment_t *s) noexcept nogil
cdef int write_failed(partition_t *p, segment_t *s, int failed) noexcept nogil
cdef void wake_fetches(partition_t *p, int64_t size, int64_t committed_size) noexcept nogil
# Last stable offset from what it hangs on (`lock` held). Whether it has moved.
cdef bint settle_last_stable(partition_t *p) noexcept nogil
# A segment that is in the list, its last, has aborted transactions from now on (both locks held). False: memory is out.
cdef bint add_aborting(partition_t *p, segment_t *s) noexcept nogil
# Where the first of `count` segments with this base offset or a later one is; `count` without one.
cdef int32_t first_segment_from(segment_t *const *segments, int32_t count, int64_t base_offset) noexcept nogil
cdef segment_t *find_segment(partition_t *p, int64_t base_offset) noexcept nogil
cdef inline int64_t newest_up_to(const segment_t *s) noexcept nogil:
    """The largest timestamp of the segment and all older ones (`lock` held)."""
    return s.max_timestamp if s.max_timestamp > s.max_timestamp_before else s.max_timestamp_before
cdef void segment_close_files(segment_t *s) noexcept nogil
# The first `size` bytes of an index, which may grow to that; segment_close_files unmaps. NULL: it cannot be mapped. Touches no
# disk, unless it may block and reads what is there (`populate`).
cdef uint8_t *map_index_file(int32_t fd, int64_t size, bint populate) noexcept nogil
