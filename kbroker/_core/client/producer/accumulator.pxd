"""What a producer has not delivered yet: batches in queues, one queue for each partition, bounded in bytes and records.

A batch goes through its queue: open (records are added) -> sealed -> flying (sent, no answer yet) -> done. A batch that
was refused, or whose connection was lost, goes from flying to held, and from there back to the head of sealed, or it
fails. A batch that has waited for too long goes from open or sealed to held.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.sync cimport mutex_t
from kbroker._core.client.producer.outgoing cimport buffer_pool_t, outgoing_t
from kbroker._core.client.producer.outgoing_list cimport outgoing_list_t
from kbroker._core.client.producer.partitioner cimport partitioner_t, spread_t

cdef enum:
    # What accumulator_add returns. Unless it is ADDED, nothing was added.
    ADDED = 0
    NO_ROOM = 1                  # the bounds are reached: see await_room
    MEMORY_IS_OUT = 2
    TOO_LARGE = 3                # above max_record_size
    NO_SUCH_PARTITION = 4
    IS_CLOSED = 5
    IS_SHUT = 6                  # nothing can be added now: no transaction is open

    LONGEST_SLEEP_MS = 250       # a caller that waits: a signal that comes just before a sleep is handled after it

ctypedef struct queue_t:
    queue_t *next_active
    queue_t *next_found          # in the list of queues that a call from Python collects
    topic_t *topic
    int32_t partition_id
    int32_t leader               # node id; -1: not known
    int32_t leader_epoch
    bint active                  # in accumulator_t.active: it has open, sealed or held batches
    bint muted                   # a batch was refused, lost or expired: nothing is sent until Python has decided
    bint told                    # Python knows that the queue waits for a decision, a leader or its admission
    bint begun                   # a batch with this producer id and epoch has been acknowledged
    bint admitted                # the partition belongs to the open transaction
    int32_t in_flight            # number of batches in `flying`
    outgoing_t *open
    outgoing_list_t sealed
    outgoing_list_t flying
    outgoing_list_t held         # in the order in which they were made
    int64_t producer_id          # the producer id that the sequences belong to
    int32_t next_sequence
    int16_t producer_epoch
    int64_t last_size            # bytes of the last sealed batch: the next batch's buffer is at least as large

ctypedef struct window_t:
    int64_t start                # ms since 1970; not set while `records` is 0
    int64_t records
    int64_t size                 # bytes of the keys and values

ctypedef struct topic_t:
    topic_t *next
    char *name
    int32_t name_size
    queue_t **queues             # spread.count of them
    int32_t *available
    spread_t spread
    window_t *windows            # a hash table by `start`; each window is accumulator_t.window_ms long
    int64_t window_room          # places in the table: a power of 2, or 0
    int64_t window_count

ctypedef struct incoming_t:
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers       # the count and the headers, encoded as in a record
    int64_t key_size             # -1: null
    int64_t value_size
    int64_t headers_size
    int64_t timestamp

ctypedef struct accumulator_t:
    mutex_t lock                 # guards all fields below that are not atomic; never held while waiting for anything
    buffer_pool_t pool
    partitioner_t partitioner
    topic_t *topics
    queue_t *active
    outgoing_t *split_watched    # batches that were split and have callbacks, which have to go to the parts
    outgoing_t *oldest           # of the batches that are not done, linked by `newer` and `older`
    outgoing_t *newest
    int64_t next_number          # the number of the newest batch that was made
    int64_t used                 # bytes of batches that are not done
    int64_t records              # records of batches that are not done
    int64_t most_used            # upper bound of `used`
    int64_t most_records         # upper bound of `records`; 0: only `most_used` bounds them
    int64_t max_record_size      # upper bound of the size of a batch that holds one record alone
    int64_t batch_size           # bytes; a batch is sealed before a record would make it larger
    int32_t batch_records        # upper bound of the records of a batch
    int64_t linger_ms
    int64_t window_ms            # records are counted by windows of their timestamps of this length; 0: not counted
    int32_t codec
    bint transactional
    bint idempotent
    bint closed
    int refusal                  # ADDED, or why nothing can be added
    int64_t producer_id
    int16_t producer_epoch
    outgoing_t *raw_head         # batches to be compressed, linked by next_raw; the list has a reference to each
    outgoing_t *raw_tail
    int32_t raw_came             # futex of the thread that compresses: counts batches that came into this list
    int32_t waiting              # atomic: threads that wait for room
    int32_t room                 # futex: counts events that make room
    int32_t flushing             # atomic: threads in flush
    int32_t progress             # futex: counts changes of `oldest`
    int32_t listening            # atomic: Python wants to be told when `room` is no longer `heard`
    int32_t heard
    # Called when there is something to send, on any thread and without the lock. NULL: nobody sends.
    void (*wake)(void *waker) noexcept nogil
    void *waker

cdef class Accumulator:
    """Owns the accumulator_t, its topics and their batches."""
    cdef accumulator_t a
    cdef readonly dict topics                     # name -> Topic, for the topics that records can be sent to
    cdef int wake(self) except -1
    cdef int64_t seal(self) except -1
    cdef int refuse(self, int refusal) except -1
    # Waits until room was made since `room` had the value `seen`. Returns 0 if `deadline_ms` (monotonic, -1: none)
    # passes before.
    cdef int await_room(self, int32_t seen, int64_t deadline_ms) except -1

cdef class Topic:
    cdef topic_t *t
    cdef readonly str name

# Return how many ms a caller may sleep at most before a deadline (monotonic ms, -1: none); 0 when it has passed.
cdef inline int64_t next_sleep_ms(int64_t deadline_ms) noexcept nogil:
    if deadline_ms < 0:
        return LONGEST_SLEEP_MS
    return max(<int64_t>0, min(deadline_ms - monotonic_ms(), <int64_t>LONGEST_SLEEP_MS))

# For all functions below the caller holds the lock.

# Adds one record to the open batch of partition[0]; if that is -1, the partitioner chooses the partition and it is
# written there. Returns ADDED and the batch, where the record is the last one, or another constant of the enum above.
# Sets `wake` if accumulator_t.wake has to be called once the lock is released.
cdef int accumulator_add(accumulator_t *a, topic_t *topic, int32_t *partition, const incoming_t *record,
                         outgoing_t **batch, bint *wake) noexcept nogil
# Counts records and their bytes in the window of `timestamp`. Only called while windows are counted.
cdef void count_records(accumulator_t *a, topic_t *topic, int64_t timestamp, int64_t records,
                        int64_t size) noexcept nogil
# Moves the open batch of a queue, if there is one, to `sealed`.
cdef void seal_open(accumulator_t *a, queue_t *queue) noexcept nogil
# Gives a batch to the compressor; it is sent after that.
cdef void compress_later(accumulator_t *a, outgoing_t *batch) noexcept nogil
# Puts a queue into accumulator_t.active, if it is not there.
cdef void make_active(accumulator_t *a, queue_t *queue) noexcept nogil
# Ends a batch that is in no list of its queue any more: gives its memory back and sets its state for its Deliveries.
# Returns True if the batch has callbacks; only then the pipeline's reference to it passes to the caller.
cdef bint batch_done(accumulator_t *a, outgoing_t *batch, int32_t state) noexcept nogil
