"""Hot state of a partition's log: what an append and a read touch, as C structs with one small lock each.

Python (`kbroker.storage`) creates, opens, rolls, deletes and recovers. What runs without the interpreter is in
append.pxd (appends), position.pxd (finds offsets), flush.pxd (flushes), replicas.pxd (followers, high watermark) and
acks.pxd (acknowledgements that wait); partition_state.pxd lets Python drive it all. Here are the structs, their
references, and fetches that wait.

Ownership. `partition_t` and `segment_t` are reference-counted (`*_ref`, `*_unref`). A segment's descriptor and maps
live until its last reference goes, so a file may be unlinked under a reader. The partition table holds one reference of
each partition; a lookup in it returns a reference that the caller owns.

Locks. `append_lock` is held over a whole append, write(2) included (order of offsets is order of bytes), and by every
change of the list of segments; never over open, and over fsync only while a closing log syncs its indexes. It guards
the producer table and what only appends touch.
`lock` is held for a few instructions, never over a system call that can touch a disk: it guards the segment list, the
tail ring, the entries pending for the indexes and the waiter lists, so a read never waits for another one's write.
"Both locks" in a comment means these two: a field that is written under both may be read under either.
`flush_lock` is held over fdatasync, so one runs at a time for each partition. A thread that waited for it finds that
the last flush has covered its records too, or makes the next flush for all that came meanwhile.
Order: flush_lock, append_lock, lock, log_dir, mailbox. Nothing is taken under the lock of the partition table. A thread
gives up the GIL before it takes any of them.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.mailbox cimport mail_t, post
from kbroker._core.base.sync cimport (
    atomic_add_i32, atomic_add_i64, atomic_load_i32, atomic_load_i64, atomic_store_i32, atomic_store_i64, condition_t,
    mutex_t,
)
from kbroker._core.log.producers cimport producers_t
from kbroker._core.log.verifications cimport verifications_t
from kbroker._core.wire.error_codes cimport KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS, UNKNOWN_TOPIC_OR_PARTITION

cdef enum:
    # What the compiled calls return besides Kafka's error codes (which are >= -1).
    NEEDS_HANDLER = -101       # the call may block: repeat it on a request handler thread
    NEEDS_VERIFICATION = -103  # the first batch of a transaction: its coordinator has to be asked

    PARTITION_CLOSED = 0       # known, but its log is not open yet: a call returns NEEDS_HANDLER
    PARTITION_OPEN = 1
    PARTITION_OFFLINE = 2      # its log directory failed: calls return KAFKA_STORAGE_ERROR
    PARTITION_DELETED = 3      # calls return UNKNOWN_TOPIC_OR_PARTITION

    # partition_t.role: what this broker is for the partition.
    ROLE_ALONE = 0             # a broker that is no member of a cluster: all that is appended is committed
    ROLE_LEADER = 1            # the high watermark moves when the followers have fetched
    ROLE_FOLLOWER = 2          # appends come from the leader only, and so does the high watermark
    ROLE_STOPPED = 3           # the controller has not told yet, or has said that this replica is to stop

    # How far a read or a waiting fetch may see.
    TO_HIGH_WATERMARK = 0
    TO_LAST_STABLE = 1         # committed transactions only
    TO_LOG_END = 2             # what followers read

    FULL_TOLD_EVERY_S = 30     # seconds between two log lines about a full disk, while it refuses appends

    TAIL_RING = 64             # newest batches of the active segment whose position is remembered (a power of two)
    INDEX_PENDING = 64         # index entries of the active segment kept in memory before they are written in one go

ctypedef struct log_dir_t:
    mutex_t lock               # guards the queue of partitions that wait for a flush
    condition_t wanted
    partition_t *flush_head
    partition_t *flush_tail
    int32_t offline            # atomic; 1 after an I/O error or a failed fsync, for good
    int32_t stopping
    int64_t flush_count        # atomic counters, for metrics: fdatasync calls,
    int64_t flush_ns           # the time spent in them,
    int64_t acks_flushed       # acknowledgements that a flush released
    int64_t full_told_ns       # atomic; monotonic; when an append was last refused for lack of space; 0: there is space
    int64_t stalled_until_ns   # atomic; monotonic; until then appends go to the handler threads: a write took too long
    int64_t set_ms             # atomic; set by hand: the time of fetches and refusals (simulated brokers); -1: not set

ctypedef struct pending_index_t:
    # Entries of the active segment's indexes that are not in their files yet, in file format. Written under both locks.
    int32_t count              # entries in `index`, below
    int32_t time_count         # entries in `time_index`, below
    uint8_t index[512]         # INDEX_PENDING entries of 8 bytes
    uint8_t time_index[768]    # INDEX_PENDING entries of 12 bytes

ctypedef struct segment_t:
    int32_t refs               # atomic
    int32_t fd                 # of the .log; -1 while closed
    int32_t index_fd           # of the .index while it may be written (active and unflushed segments), else -1
    int32_t time_index_fd      # of the .timeindex while it may be written, else -1
    int32_t aborted_fd         # of the .txnindex while it may be written, else -1
    int32_t aborted_count      # both locks; entries in the .txnindex; raised before the log end passes the abort marker
    int64_t base_offset
    int64_t size               # atomic; bytes of whole batches that may be read
    int64_t max_timestamp      # ms; the largest timestamp of the segment, -1 while empty
    int64_t max_timestamp_offset # last offset of the first batch with that timestamp
    int64_t max_timestamp_before # `lock`; the largest of all older segments, -1 without one; never falls along the list
    int64_t first_timestamp    # ms; of the first batch, -1 while empty: the basis of rolling by age
    int64_t created_ms         # monotonic; the basis of rolling by age while first_timestamp is -1
    int64_t roll_jitter_ms     # subtracted from segment.ms, so that segments do not all roll at once
    uint8_t *index             # the mapped .index, NULL until a lookup needs it; read only, written through index_fd
    int64_t index_capacity     # bytes mapped
    uint8_t *time_index        # the mapped .timeindex, NULL until a lookup by time needs it; read only
    int64_t time_index_capacity # bytes mapped
    uint8_t *aborted           # the mapped .txnindex, NULL until a fetch of committed records needs it; read only
    int64_t aborted_capacity   # bytes mapped
    int32_t index_entries      # entries in the .index file; the pending ones follow them
    int32_t time_index_entries # entries in the .timeindex file, likewise
    int64_t last_time_entry    # timestamp of the newest time index entry, pending ones included; -1 without one
    int64_t bytes_since_index  # bytes from the batch of the newest .index entry on, pending entries included
    pending_index_t *pending   # owned; NULL but in the active segment
    int32_t entry_synced       # `lock`; 1: the names of its files survive a power cut
    int32_t indexes_dirty      # `lock`; 1: its index files may not be on the device yet; always 1 in the active segment
    int32_t touched            # atomic; set by readers, cleared by the LRU that closes inactive segments
    void *file_system          # owned PyObject of an injected FileSystem, NULL for the real one

ctypedef struct tail_entry_t:
    int64_t base_offset
    int64_t position           # byte in the active segment

ctypedef struct fetch_waiter_t:
    # Embedded in a parked fetch, one per partition that the fetch waits on. Linked under partition_t.lock.
    int8_t until               # TO_*: which end it waits for
    fetch_waiter_t *next
    fetch_waiter_t *previous
    partition_t *partition     # NULL while not linked; partition_await_bytes takes a reference, _forget_bytes drops it
    int64_t *bytes_missing     # atomic, of all the fetch's waiters; an append subtracts its size, posts `mail` at <= 0
    mail_t *mail

ctypedef struct ack_waiter_t:
    # One partition that a Produce response, or a caller in Python, waits for: for replicas, for a flush, or for both.
    # Linked under partition_t.lock, ascending by offset.
    ack_waiter_t *next
    ack_waiter_t *previous
    partition_t *partition     # a reference from acks_await to acks_forget
    int64_t offset             # of the last record
    int32_t led_since          # partition_t.led_since at the append
    int8_t for_replicas        # complete when high_watermark > offset ...
    int8_t for_flush           # ... and flushed_offset > offset
    int8_t linked              # partition_t.lock
    int32_t *pending           # atomic, shared by the slot's waiters; the thread that brings it to 0 posts `mail`
    int16_t *error             # where the error code goes; read after `pending` is 0
    mail_t *mail

ctypedef struct follower_t:
    # What a leader knows of another replica.
    int32_t node_id
    int8_t in_sync             # in the ISR that the controller has committed
    int8_t counts              # in the maximal ISR: that one, and those that this leader has asked to let in
    int8_t live                # its broker is alive by the metadata
    int64_t broker_epoch       # of its newest fetch; -1: not known
    int64_t log_end_offset     # -1: not known
    int64_t log_start_offset   # -1: not known
    int64_t last_fetch_ms      # monotonic; 0: never
    int64_t last_fetch_leader_end # log end of the leader at that fetch
    int64_t last_caught_up_ms  # monotonic; when it had last all that the leader had; 0: never
    int8_t ready               # its newest fetch told ReplicaNews; take_ready clears it
    int64_t told_ms            # monotonic; when ReplicaNews was last told that it may be let in; 0: never

ctypedef struct ended_transaction_t:
    int64_t first_offset
    int64_t offset             # of the marker that ended it

ctypedef struct epoch_t:
    # A leader epoch and the offset of its first record (KIP-101).
    int32_t epoch
    int64_t start_offset

ctypedef struct log_options_t:
    # The topic's settings that an append or a read needs. Written under both locks.
    int64_t segment_bytes
    int64_t segment_ms
    int32_t max_message_bytes
    int32_t index_interval_bytes
    int32_t index_max_bytes
    int64_t flush_messages     # flush before the ack when so many records are unflushed; 1 = fsync before every ack
    int64_t timestamp_before_max_ms
    int64_t timestamp_after_max_ms
    int8_t log_append_time     # message.timestamp.type=LogAppendTime
    int8_t compacted           # cleanup.policy has compact: every record must have a key
    int8_t compression         # -1: producer; else the codec to recompress with, which needs a handler
    int32_t compression_level  # level of that codec, as its setting has it
    int8_t flushed_visibility  # log.flush.visibility=flushed
    int8_t downconversion      # message.downconversion.enable
    int8_t verify_transactions # transaction.partition.verification.enable
    int32_t min_in_sync        # min.insync.replicas
    int64_t replica_lag_ms     # replica.lag.time.max.ms
    int8_t leader_throttled    # leader.replication.throttled.replicas has this replica
    int8_t follower_throttled  # follower.replication.throttled.replicas has it

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
    int32_t newest_epoch       # atomic; the newest leader epoch in the log's LeaderEpochs, -1 without one
    int32_t role               # ROLE_*; atomic; written under both locks
    int64_t log_start_offset   # this and the next five: atomic; read without a lock, written under `lock`
    int64_t log_end_offset
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t first_undecided    # both locks; first offset of the oldest open transaction, INT64_MAX without one
    int64_t flushed_offset     # everything below is on the device (Kafka's recovery point)
    int64_t unflushed_since_ms # atomic; monotonic; no unflushed batch was appended before it; -1 when all is flushed
    int64_t last_append_ms     # `lock`; monotonic; when the newest batch was written
    segment_t **segments       # ascending by base offset, the last one is active; references; written under both locks
    int32_t segment_count
    int32_t segment_capacity
    segment_t **aborting       # those with aborted transactions, ascending; no references; written under both locks
    int32_t aborting_count
    int32_t aborting_capacity
    tail_entry_t tail[64]      # ring over the newest batches of the active segment
    uint32_t tail_count        # batches ever written to it; the slot of the next one is count & (TAIL_RING - 1)
    log_options_t options
    log_dir_t *dir
    producers_t *producers     # owned; append_lock
    verifications_t verifications # append_lock
    fetch_waiter_t *fetch_waiters# `lock`
    ack_waiter_t *ack_waiters  # `lock`; this and the next, the first and the last one
    ack_waiter_t *ack_waiters_tail
    ack_waiter_t *low_waiters  # `lock`; a chain of those that wait until all live replicas begin at their `offset`
    follower_t *followers      # owned; `lock`; of a leader: the other replicas
    int32_t follower_count
    int32_t in_sync_count      # `lock`; of a leader: size of the committed ISR, this broker included
    int32_t maximal_count      # `lock`; of a leader: size of the maximal ISR, this broker included
    int64_t epoch_start_offset # `lock`; of a leader: its log end when its epoch began
    epoch_t *epochs            # owned; `lock`; a copy of storage.LeaderEpochs, ascending
    int32_t epoch_count
    ended_transaction_t *ended # owned; `lock`; those whose markers are not below the high watermark; both ascending
    int32_t ended_count
    int32_t ended_capacity
    int32_t ended_known        # `lock`; 1: `ended` has them all, because the log was opened before
    int64_t ended_unknown_below # `lock`; but for those with markers below this offset, of before the first opening
    int32_t led_since          # both locks; of a leader: the epoch in which it became one
    int32_t lead_doubted       # `lock`; of a leader: 1: a client knows of more records, and the lead is to be checked
    int64_t lead_checked_ms    # `lock`; monotonic; when a check of the lead began that has found nobody else; 0: never
    int32_t news_posted        # `lock`; 1: news_mail is on its way, with a reference of the partition
    mail_t news_mail           # to the ReplicaNews of its PartitionTable; news_mail.box is NULL without one (`lock`)
    int32_t rolling            # append_lock; 1: appends wait, because a new segment is being made
    int64_t refused_ms         # atomic; monotonic; when the disk, or an ISR that is too small, last refused a batch
    int32_t refused_code       # atomic; why: KAFKA_STORAGE_ERROR or NOT_ENOUGH_REPLICAS
    uint32_t truncations       # `lock`; how often the log was closed or deleted; a flush that overlaps is not counted
    uint32_t removals          # `lock`; how often segments left the list or were replaced: what was found may be gone
    partition_t *flush_next    # log_dir_t.lock; the next one in the queue of log_dir_t
    int32_t flush_state        # log_dir_t.lock: 0 idle, 1 queued, 2 running, 3 running and wanted again
    int64_t messages_in        # atomic counters, for metrics
    int64_t bytes_in
    int64_t bytes_out
    int64_t fetches
    void *directory            # owned PyObject: the LogDirectory of `dir`
    void *file_system          # owned PyObject of an injected FileSystem, NULL for the real one
    void *log                  # owned PyObject: weak reference to the storage.Log that opens and rolls, or NULL
    partition_t *name_next     # PartitionTable's chains
    partition_t *id_next

ctypedef struct aborted_t:
    # An aborted transaction that may have records among those that a fetch gets.
    int64_t producer_id
    int64_t first_offset

ctypedef struct read_result_t:
    segment_t *segment         # a reference for the caller; NULL when there is nothing to send
    aborted_t *aborted         # owned by the caller, who frees it by free(); only set for `committed`
    int32_t aborted_count
    int32_t aborted_capacity
    int64_t position           # byte in the segment
    int64_t size               # bytes
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset

# --- references ---------------------------------------------------------------------------------------
cdef void partition_ref(partition_t *p) noexcept nogil
cdef void partition_unref(partition_t *p) noexcept nogil
cdef inline void segment_ref(segment_t *s) noexcept nogil:
    atomic_add_i32(&s.refs, 1)
cdef void segment_unref(segment_t *s) noexcept nogil           # the last one closes the descriptors and unmaps

# --- visibility -------------------------------------------------------------------------------------
# The offset up to which a fetch may see now, by TO_*. Where only flushed records are visible (log.flush.visibility), it
# is not beyond flushed_offset, except for followers: their leader's flush is no business of theirs.
cdef inline int64_t partition_visible_end(partition_t *p, int8_t until) noexcept nogil:
    cdef int64_t end
    cdef int64_t flushed
    if until == TO_LOG_END:
        return atomic_load_i64(&p.log_end_offset)
    end = atomic_load_i64(&p.last_stable_offset if until == TO_LAST_STABLE else &p.high_watermark)
    if p.options.flushed_visibility:
        flushed = atomic_load_i64(&p.flushed_offset)
        return flushed if flushed < end else end
    return end

# --- waiting ------------------------------------------------------------------------------------------
# partition_await_bytes links the waiter. It returns false and links nothing when the visible end is beyond
# `from_offset` already, or when the partition serves nothing (closed, offline, deleted). partition_forget_bytes unlinks
# it; it is idempotent, and once it has returned, no append touches the waiter or its mail.
cdef bint partition_await_bytes(partition_t *p, fetch_waiter_t *waiter, int64_t from_offset,
                                int8_t until) noexcept nogil
cdef void partition_forget_bytes(fetch_waiter_t *waiter) noexcept nogil

# --- for the other modules of this folder -------------------------------------------------------------
cdef enum:
    # need_t.kind
    NEED_NOTHING = 0        # nothing: repeat the call on a handler thread
    NEED_OPEN = 1           # open the log, which is closed
    NEED_ROLL = 2           # roll: the segment with this base offset is full or too old
    NEED_INDEX = 3          # open the indexes of the segment with this base offset
    NEED_SEGMENT = 4        # open the segment with this base offset, which is closed
    NEED_DIRECTORY = 5      # make the names of the files of the segment with this base offset durable
    NEED_TIME_INDEX = 6     # map the time index of the inactive segment with this base offset
    NEED_ABORTED = 7        # make or map the .txnindex of the segment with this base offset
    NEED_EPOCH = 8          # note that need_t.leader_epoch begins at this offset
    NEED_BEGIN = 9          # let the active segment, which is empty, begin at this offset
    NEED_START = 10         # let the log start at this offset, as the leader's does

# Whether the flush policy asks for a flush before the records up to the log's end are acknowledged.
cdef inline bint is_flush_due(partition_t *p) noexcept nogil:
    cdef int64_t unflushed = atomic_load_i64(&p.log_end_offset) - atomic_load_i64(&p.flushed_offset)
    return unflushed > 0 and unflushed >= p.options.flush_messages

# 0 if the partition serves requests, NEEDS_HANDLER if it is closed, else the error code to answer.
cdef inline int refusal(partition_t *p) noexcept nogil:
    cdef int32_t state = atomic_load_i32(&p.state)
    if state == PARTITION_DELETED:
        return UNKNOWN_TOPIC_OR_PARTITION
    if state == PARTITION_OFFLINE or atomic_load_i32(&p.dir.offline):
        return KAFKA_STORAGE_ERROR
    return 0 if state == PARTITION_OPEN else NEEDS_HANDLER

ctypedef struct need_t:
    # What storage.Log has to do before a call that returned NEEDS_HANDLER is made again.
    int kind                   # NEED_*
    int64_t base_offset        # of the segment; -1 for the log as a whole
    int32_t leader_epoch       # NEED_EPOCH only

# Let storage.Log do it (Log.meet_need). Returns 0 (try again) or the error code to answer.
cdef int meet_need(partition_t *p, const need_t *need) noexcept with gil
# The disk is broken (`failed`: -errno): directory_failed makes the log directory refuse everything from here on and
# tells the server. A caller that must not hold its lock while the server is told calls the two halves instead:
# take_offline under the lock, which returns whether the failure is news, and if it is, tell_offline without the lock.
cdef void directory_failed(partition_t *p, int failed) noexcept nogil
cdef bint take_offline(partition_t *p) noexcept nogil
cdef void tell_offline(partition_t *p, int failed) noexcept with gil
# Handle a write that failed (`failed`: -errno). Returns the error code to answer.
cdef int write_failed(partition_t *p, segment_t *s, int failed) noexcept nogil


# The monotonic time in ms: `now_ms`, unless the directory's clock is set by hand.
cdef inline int64_t replica_clock(partition_t *p, int64_t now_ms) noexcept nogil:
    cdef int64_t set_ms = atomic_load_i64(&p.dir.set_ms)
    return set_ms if set_ms >= 0 else now_ms

# Note that a batch of a client was refused. Any thread may call it; only codes that refused_code can have are noted.
cdef inline void note_refusal(partition_t *p, int code) noexcept nogil:
    if code == KAFKA_STORAGE_ERROR or code == NOT_ENOUGH_REPLICAS:
        atomic_store_i32(&p.refused_code, code)
        atomic_store_i64(&p.refused_ms, replica_clock(p, monotonic_ms()))

cdef inline void wake_fetches(partition_t *p, int64_t size, int64_t committed_size, int64_t end_size) noexcept nogil:
    """Tell waiting fetches of more bytes (`lock` held).

    `size` below the high watermark, `committed_size` of committed records, `end_size` up to the log end.
    """
    cdef fetch_waiter_t *waiter = p.fetch_waiters
    cdef int64_t more
    while waiter != NULL:
        more = size if waiter.until == TO_HIGH_WATERMARK else committed_size if waiter.until == TO_LAST_STABLE \
            else end_size
        if more and atomic_add_i64(waiter.bytes_missing, -more) <= 0:
            post(waiter.mail)
        waiter = waiter.next


cdef inline bint settle_last_stable(partition_t *p) noexcept nogil:
    """Compute the last stable offset anew (`lock` held). Return whether it has moved."""
    cdef int64_t stable = p.first_undecided
    if p.ended_count and p.ended[0].first_offset < stable:
        stable = p.ended[0].first_offset
    if stable < p.log_start_offset:
        stable = p.log_start_offset
    if stable > p.high_watermark:
        stable = p.high_watermark
    if stable == p.last_stable_offset:
        return False
    atomic_store_i64(&p.last_stable_offset, stable)
    return True


# List a segment in partition_t.aborting: it has aborted transactions from now on (both locks held). False: no memory.
cdef bint add_aborting(partition_t *p, segment_t *s) noexcept nogil
# Index of the first of `count` segments whose base offset is at least `base_offset`; `count` without one.
cdef int32_t first_segment_from(segment_t *const *segments, int32_t count, int64_t base_offset) noexcept nogil
# The segment with exactly this base offset, or NULL (`lock` held). Not a reference.
cdef segment_t *find_segment(partition_t *p, int64_t base_offset) noexcept nogil
cdef inline int64_t newest_up_to(const segment_t *s) noexcept nogil:
    """Return the largest timestamp of the segment and all older ones (`lock` held)."""
    return s.max_timestamp if s.max_timestamp > s.max_timestamp_before else s.max_timestamp_before
cdef void segment_close_files(segment_t *s) noexcept nogil
# Map `size` bytes of an index file, which may be smaller and grow to that; segment_close_files unmaps them. NULL: it
# cannot be mapped. Touches no disk, unless `populate` is true: then it reads the file's pages and may block.
cdef uint8_t *map_index_file(int32_t fd, int64_t size, bint populate) noexcept nogil
