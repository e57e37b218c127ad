"""A Produce in progress: its partitions and the state of each."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.log.append cimport append_result_t
from kbroker._core.log.partition cimport partition_t
from kbroker._core.wire.layout cimport ATTRIBUTE_TRANSACTIONAL
from kbroker._core.wire.record_batch cimport batch_info_t

ctypedef struct entry_t:
    # One partition of the request. `*_at` fields are bytes from the start of the frame, because the frame may move.
    partition_t *partition       # a reference; NULL: no such partition
    int64_t topic_at
    int32_t topic_size
    int32_t topic_partitions     # in the first entry of a topic: how many entries the topic has; in the others 0
    int32_t partition_id
    int16_t error                # 0, or the error code of the partition
    int8_t unchecked             # its records are compressed or to be converted, and not checked yet
    int8_t unconverted           # it has messages of magic 0 or 1
    int8_t done                  # appended, or refused
    int8_t before_append         # refused at a point where Kafka answers no log start offset
    int32_t leader_id            # the current leader, for an answer that names it; -1: not known
    int32_t leader_epoch
    int8_t unverified            # refused because of the answer of the transaction's coordinator
    int64_t guard                # of partition_verify, for the question to the coordinator; NO_GUARD: not asked
    int64_t batch_at             # -1: the records are null
    int64_t batch_size
    uint8_t *made                # owned: the batch to append instead of the one in the frame; NULL: none
    int32_t *bad_records         # owned: indexes of the first records that are wrong, `bad_count` of them; or NULL
    int32_t bad_count
    batch_info_t info            # of the batch to append, once it was read
    append_result_t result       # once it was appended

ctypedef struct produce_t:
    # A Produce request in progress.
    int16_t version
    int16_t acks
    int32_t timeout_ms           # how long the acks may take that wait for replicas
    bint flexible
    bint internal_allowed        # the client is one of Kafka's own tools, which may write to internal topics
    bint only_verifies           # left to do: ask the coordinator of the transaction, then append
    bint checked                 # produce_check_blocking was called
    int64_t transactional_id_at  # -1: the request names none
    int32_t transactional_id_size
    int32_t count
    int32_t capacity
    entry_t *entries


cdef inline void refuse(entry_t *e, int16_t error, bint before_append) noexcept nogil:
    e.error = error
    e.done = True
    e.before_append = before_append


cdef inline bint is_transactional(const entry_t *e) noexcept nogil:
    return e.error == 0 and not e.unconverted and e.info.producer_id >= 0 \
        and e.info.attributes & ATTRIBUTE_TRANSACTIONAL != 0


cdef inline bint must_wait(const entry_t *e) noexcept nogil:
    """Return whether the ack of a batch has to wait: for a flush, or for replicas."""
    return e.error == 0 and (e.result.must_flush or e.result.must_replicate)
