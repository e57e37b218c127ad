"""Hot state of a partition's log: what an append and a read touch, as C structs with one small lock each.

Python (`kbroker.storage`) creates, opens, rolls, deletes and recovers; the functions here append to the active segment,
find offsets, wake waiting fetches and release waiting acknowledgements without the interpreter.

Ownership. `partition_t` and `segment_t` are reference-counted (`*_ref`, `*_unref`). A segment's descriptor and maps live
until its last reference goes, so a file may be unlinked under a reader. The registry holds one reference of each open
partition; whoever looks one up gets a reference of his own.

Locks. `partition_t.lock` guards every mutable field of the partition, its segment list and its waiter lists; held over
write(2) of an append (order of offsets is order of bytes), never over fsync or open. Order: registry, partition,
log_dir, mailbox.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._core.mailbox cimport mail_t
from kbroker._core.producers cimport producers_t
from kbroker._core.record_batch cimport batch_info_t
from kbroker._core.sync cimport condition_t, mutex_t

cdef enum:
    # What the compiled calls return besides Kafka's error codes (which are >= -1).
    NEEDS_PYTHON = -100        # run it in the interpreter, on this thread
    NEEDS_HANDLER = -101       # it may block: run it on a request handler thread

    PARTITION_CLOSED = 0       # known, but its log is not opened yet: NEEDS_HANDLER opens it
    PARTITION_OPEN = 1
    PARTITION_OFFLINE = 2      # its log directory failed: KAFKA_STORAGE_ERROR
    PARTITION_DELETED = 3      # UNKNOWN_TOPIC_OR_PARTITION

    TAIL_RING = 64             # batches at the log's end whose position is remembered (a power of two)

ctypedef struct log_dir_t:
    mutex_t lock               # guards the queue of partitions that wait for a flush
    condition_t wanted
    partition_t *flush_head
    partition_t *flush_tail
    int32_t offline            # atomic
    int32_t stopping
    int64_t stalled_until_ns   # atomic; while in the future, appends go to the handler threads (a write took too long)

ctypedef struct segment_t:
    int32_t refs               # atomic
    int32_t fd                 # of the .log; -1 while closed
    int64_t base_offset
    int64_t size               # atomic; bytes of whole batches that may be read
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t first_timestamp    # of the first batch, -1 while empty: the basis of rolling by age
    uint8_t *index             # the mapped .index, NULL while closed
    int64_t index_capacity     # bytes mapped
    int32_t index_entries      # atomic
    uint8_t *time_index
    int64_t time_index_capacity
    int32_t time_index_entries
    int64_t bytes_since_index
    int64_t last_used          # for the LRU of closed segments' descriptors

ctypedef struct tail_entry_t:
    int64_t base_offset
    int64_t position           # in the active segment

ctypedef struct fetch_waiter_t:
    # Embedded in a parked fetch, one per partition it waits on. Linked under partition_t.lock.
    fetch_waiter_t *next
    fetch_waiter_t *previous
    partition_t *partition     # a reference
    int64_t *bytes_missing     # atomic, shared by the fetch's waiters: an append subtracts its size, at <= 0 it posts `mail`
    mail_t *mail

ctypedef struct ack_waiter_t:
    # Embedded in a produce slot, one per partition whose flush (later: replication) the response waits for.
    ack_waiter_t *next
    partition_t *partition     # a reference
    int64_t offset             # satisfied when flushed_offset > this (offset of the last record)
    int32_t *pending           # atomic, shared by the slot's waiters: the one that brings it to 0 posts `mail`
    int16_t *error             # where to put KAFKA_STORAGE_ERROR when the flush fails (read after pending is 0)
    mail_t *mail

ctypedef struct log_options_t:
    int64_t segment_bytes
    int64_t segment_ms
    int64_t segment_jitter_ms
    int32_t max_message_bytes
    int32_t index_interval_bytes
    int32_t index_max_bytes
    int64_t flush_messages     # flush before ack when so many are unflushed; 1 = fsync before every ack
    int64_t timestamp_before_max_ms
    int64_t timestamp_after_max_ms
    int8_t log_append_time     # message.timestamp.type
    int8_t compacted           # a key is required in every record
    int8_t compression         # -1 producer, else the codec to recompress with (NEEDS_HANDLER)
    int8_t flushed_visibility  # log.flush.visibility=flushed
    int32_t min_insync_replicas

ctypedef struct partition_t:
    int32_t refs               # atomic
    int32_t state              # atomic
    mutex_t lock
    char *topic                # UTF-8, owned
    int16_t topic_size
    int32_t partition_id
    uint8_t topic_id[16]
    int32_t leader_epoch
    int64_t log_start_offset   # atomic, as the three below: readers take them without the lock
    int64_t log_end_offset
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t flushed_offset     # everything below is on the device (Kafka's recovery point)
    int64_t last_flush_ms
    segment_t **segments       # ascending by base offset; the last one is active. References.
    int32_t segment_count
    int32_t segment_capacity
    tail_entry_t tail[64]      # ring over the newest batches of the active segment
    uint32_t tail_count        # ever written; index = count & (TAIL_RING - 1)
    log_options_t options
    log_dir_t *dir
    producers_t *producers
    fetch_waiter_t *fetch_waiters
    ack_waiter_t *ack_waiters
    partition_t *flush_next    # queue of log_dir_t
    int32_t flush_queued
    int64_t messages_in        # counters, atomic
    int64_t bytes_in
    int64_t bytes_out
    void *file_system          # borrowed PyObject of an injected FileSystem, NULL for the real one

ctypedef struct append_result_t:
    int64_t base_offset
    int64_t last_offset
    int64_t log_append_time    # -1 unless LogAppendTime
    int64_t log_start_offset
    bint must_wait             # the ack waits until flushed_offset > last_offset

ctypedef struct read_result_t:
    segment_t *segment         # a reference for the caller; NULL when there is nothing to send
    int64_t position
    int64_t size
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset

# --- partitions and the registry ---------------------------------------------------------------------
cdef void partition_ref(partition_t *p) noexcept nogil
cdef void partition_unref(partition_t *p) noexcept nogil
cdef void segment_ref(segment_t *s) noexcept nogil
cdef void segment_unref(segment_t *s) noexcept nogil           # the last one closes the descriptor and unmaps

# --- the two hot calls --------------------------------------------------------------------------------
# Validated batch in, offsets stamped in place, one write(2). Returns 0, a Kafka error code, or NEEDS_HANDLER (closed,
# roll due, directory stalled). `may_block`: the caller is a handler thread, so a stalled directory is waited for.
# `now_ms` is the wall clock. A duplicate of an idempotent batch returns 0 with the first append's offsets.
cdef int partition_append(partition_t *p, uint8_t *batch, batch_info_t *info, int64_t now_ms, bint may_block,
                          append_result_t *result) noexcept nogil

# Where to read. Returns 0 (result.segment NULL: at the end), OFFSET_OUT_OF_RANGE, ..., or NEEDS_HANDLER (a closed
# segment must be opened). `max_bytes` limits size, but with `at_least_one` the first batch is whole however large
# (KIP-74). `committed`: stop at the last stable offset, else at the high watermark.
cdef int partition_read(partition_t *p, int64_t offset, int64_t max_bytes, bint at_least_one, bint committed,
                        read_result_t *result) noexcept nogil

# --- waiting ------------------------------------------------------------------------------------------
# Link the waiter, unless the partition has passed `offset` already (false then). Unlink is idempotent.
cdef bint partition_await_bytes(partition_t *p, fetch_waiter_t *waiter, int64_t from_offset, bint committed) noexcept nogil
cdef void partition_forget_bytes(fetch_waiter_t *waiter) noexcept nogil
cdef bint partition_await_flush(partition_t *p, ack_waiter_t *waiter) noexcept nogil   # also asks the flushers

cdef class LogDirectory:
    """A log directory's flush queue and health, shared by its partitions."""
    cdef log_dir_t dir

cdef class PartitionState:
    """Python's handle on one partition_t."""
    cdef partition_t *p
    cdef readonly LogDirectory directory
    cdef object file_system

cdef class Registry:
    """All partitions this broker leads, by (topic name, partition) and by (topic id, partition)."""
    cdef void *table
    # A reference for the caller, or NULL.
    cdef partition_t *find(self, const uint8_t *topic, int32_t topic_size, int32_t partition_id) noexcept nogil
    cdef partition_t *find_by_id(self, const uint8_t *topic_id, int32_t partition_id) noexcept nogil
    cdef bint knows_topic_id(self, const uint8_t *topic_id) noexcept nogil
