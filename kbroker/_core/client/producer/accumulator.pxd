"""What a producer has not delivered yet: batches in queues, one queue for each partition, within bounds of bytes and records.

A batch goes through its queue's lists: open (records are added) -> sealed -> flying (sent, no answer yet) -> done, or from
flying to held (refused, or its connection lost), and from there back to the head of sealed, or it fails.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.sync cimport mutex_t
from kbroker._core.client.producer.outgoing cimport buffer_pool_t, outgoing_t
from kbroker._core.client.producer.outgoing_list cimport outgoing_list_t
from kbroker._core.client.producer.partitioner cimport partitioner_t, spread_t

cdef enum:
    # What accumulator_add finds
    ADDED = 0
    NO_ROOM = 1                  # nothing was added; await_room
    OUT_OF_MEMORY = 2
    TOO_LARGE = 3                # above max_record_size
    NO_SUCH_PARTITION = 4
    IS_CLOSED = 5
    IS_SHUT = 6                  # for now: no transaction is open

ctypedef struct queue_t:
    queue_t *next_active
    queue_t *next_found          # of those that Python asks for
    topic_t *topic
    int32_t partition_id
    int32_t leader               # node id; -1: not known
    int32_t leader_epoch
    bint active                  # in accumulator_t.active: it has something open, sealed or held
    bint muted                   # something of it failed: nothing is sent until Python has decided
    bint told                    # Python knows
    bint begun                   # a batch of its producer id and epoch has been acknowledged
    bint admitted                # in a transaction: the partition belongs to it
    int32_t in_flight            # flying's length
    outgoing_t *open
    outgoing_list_t sealed
    outgoing_list_t flying
    outgoing_list_t held         # in the order of their making
    int64_t producer_id          # whose sequences it is in
    int32_t next_sequence
    int16_t producer_epoch
    int64_t last_size            # of its last sealed batch: so large is the next one's buffer

ctypedef struct window_t:
    int64_t start                # ms since 1970; of no meaning while there are no records
    int64_t records
    int64_t size                 # bytes of their keys and values

ctypedef struct topic_t:
    topic_t *next
    char *name
    int32_t name_size
    queue_t **queues             # spread.count of them
    int32_t *available
    spread_t spread
    window_t *windows            # a hash table; of accumulator_t.window_ms each
    int64_t window_room          # a power of 2, or 0
    int64_t window_count

ctypedef struct incoming_t:
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers       # count and headers as they stand in a record
    int64_t key_size             # -1: null
    int64_t value_size
    int64_t headers_size
    int64_t timestamp

ctypedef struct accumulator_t:
    mutex_t lock                 # all below but what is atomic; never held while waiting for anything
    buffer_pool_t pool
    partitioner_t partitioner
    topic_t *topics
    queue_t *active
    outgoing_t *split_watched    # split, with callbacks that have to go to the parts
    outgoing_t *oldest
    outgoing_t *newest
    int64_t next_number
    int64_t used                 # bytes of batches that are not done
    int64_t records              # in them
    int64_t most_used
    int64_t most_records         # 0: as many as there is memory for
    int64_t max_record_size      # as it would stand alone in a batch
    int64_t batch_size
    int32_t batch_records        # of a batch at most
    int64_t linger_ms
    int64_t window_ms            # records are counted by windows of their timestamps; 0: they are not
    int32_t codec
    bint transactional
    bint idempotent
    bint closed
    int refusal                  # ADDED, or why nothing can be added
    int64_t producer_id
    int16_t producer_epoch
    outgoing_t *raw_head         # what has to be compressed, by next_raw; each has a reference of this list
    outgoing_t *raw_tail
    int32_t raw_came             # futex of who compresses: counts what came
    int32_t waiting              # atomic: threads that wait for room
    int32_t room                 # futex: counts what makes room
    int32_t flushing             # atomic: threads in flush
    int32_t progress             # futex: counts changes of `oldest`
    int32_t listening            # atomic: Python wants to be told when `room` is no longer `heard`
    int32_t heard
    void (*wake)(void *waker) noexcept nogil      # any thread, without the lock: there is something to send. NULL: nobody sends
    void *waker

cdef class Accumulator:
    """Owns the struct, its topics and all that is in them."""
    cdef accumulator_t a
    cdef readonly dict topics                     # name -> Topic, for those that can be sent to
    cdef int wake(self) except -1
    cdef int64_t seal(self) except -1
    cdef int refuse(self, int refusal) except -1
    # Waits until something of the memory has come back since `room` was `seen`; 0 when `deadline` (monotonic, -1: none) has passed.
    cdef int await_room(self, int32_t seen, int64_t deadline_ms) except -1

cdef class Topic:
    cdef topic_t *t
    cdef readonly str name

# All below: the caller holds the lock.

# Adds one record to the open batch of a partition, -1 for one that the partitioner chooses (and tells in `partition`). `batch` and
# the count of records before it in there are told too. Sets `wake` where a sender has to be woken once the lock is given up.
cdef int accumulator_add(accumulator_t *a, topic_t *topic, int32_t *partition, const incoming_t *record, outgoing_t **batch,
                         bint *wake) noexcept nogil
# Counts them in the window of their timestamp, where windows are counted.
cdef void count_records(accumulator_t *a, topic_t *topic, int64_t timestamp, int64_t records, int64_t size) noexcept nogil
cdef void seal_open(accumulator_t *a, queue_t *queue) noexcept nogil
# It goes to the compressor before it can be sent.
cdef void compress_later(accumulator_t *a, outgoing_t *batch) noexcept nogil
cdef void make_active(accumulator_t *a, queue_t *queue) noexcept nogil
# The batch is in no list any more: its memory comes back, its Deliveries are told. True when it has callbacks; then, and only
# then, the pipeline's reference to it is left to the caller.
cdef bint batch_done(accumulator_t *a, outgoing_t *batch, int32_t state) noexcept nogil
