"""A Produce in progress: its partitions, and what is known of each."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.log.partition cimport append_result_t, partition_t
from kbroker._core.wire.layout cimport ATTRIBUTE_TRANSACTIONAL
from kbroker._core.wire.record_batch cimport batch_info_t

ctypedef struct entry_t:
    # One partition of the request. Places are counted from the start of the frame, which may move.
    partition_t *partition       # a reference; NULL: unknown
    int64_t topic_at
    int32_t topic_size
    int32_t topic_partitions     # of the first entry of a topic: how many entries the topic has; else 0
    int32_t partition_id
    int16_t error
    int8_t unchecked             # its records are compressed and not looked at yet
    int8_t unconverted           # messages of magic 0 or 1
    int8_t done                  # appended, or refused
    int8_t before_append         # refused where Kafka does not know the log's start offset
    int8_t unverified            # refused because of what the coordinator of its transaction says
    int64_t guard                # under which that was asked
    int64_t batch_at             # -1: null
    int64_t batch_size
    uint8_t *made                # owned: the batch to append instead of the producer's
    int32_t *bad_records         # owned: the places of the first records for which the batch is refused, if they are known
    int32_t bad_count
    batch_info_t info
    append_result_t result

ctypedef struct produce_t:
    # A request in progress.
    int16_t version
    int16_t acks
    bint flexible
    bint internal_allowed        # Kafka's own tools may write internal topics
    bint only_verifies           # what is left of it: to ask the coordinator of its transaction, and to append
    bint prepared                # by produce_prepare
    int64_t transactional_id_at  # -1: it names none
    int32_t transactional_id_size
    int32_t count
    int32_t capacity
    entry_t *entries


cdef inline void refuse(entry_t *e, int16_t error, bint before_append) noexcept nogil:
    e.error = error
    e.done = True
    e.before_append = before_append


cdef inline bint is_transactional(const entry_t *e) noexcept nogil:
    return e.error == 0 and not e.unconverted and e.info.producer_id >= 0 and e.info.attributes & ATTRIBUTE_TRANSACTIONAL != 0
