"""Sends a producer's batches, in the pump's thread and without the GIL.

Natural batching: the open batch of a partition is sent as soon as no batch of that partition is under way and linger.ms
has passed. While one is under way, only full batches are sent, with at most max.in.flight requests to a broker. One
request takes a batch of every partition that is ready, up to max.request.size.

A batch that a broker refuses, or that a lost connection leaves unanswered, goes to its queue's `held`, and no more
batches of the partition are sent. Once all its batches under way have come back, Python is told (`troubles`) and
decides for the queue.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.client.producer.accumulator cimport Accumulator, accumulator_t, queue_t
from kbroker._core.client.producer.exchange cimport broker_t, produce_exchange_t
from kbroker._core.client.producer.frame cimport produce_options_t
from kbroker._core.client.producer.outgoing cimport outgoing_t
from kbroker._core.client.pump cimport Engine

cdef enum:
    # Values of outgoing_t.error that no broker has sent
    EXPIRED = -2                 # delivery.timeout.ms has passed
    LOST = 13                    # NETWORK_EXCEPTION: no answer came
    TOO_OLD = 35                 # UNSUPPORTED_VERSION: the broker serves no version that can carry the batch

cdef class ProduceEngine(Engine):
    cdef readonly Accumulator accumulator
    cdef accumulator_t *a
    cdef broker_t *brokers
    cdef produce_exchange_t *free_exchanges
    cdef produce_exchange_t *ready           # requests to be sent in this turn
    cdef produce_exchange_t **ready_tail
    cdef outgoing_t *watched                 # done batches with callbacks; guarded by the accumulator's lock
    cdef produce_options_t options
    cdef object older_form                   # callable(batch, magic): the batch as a message set, for Kafka before 0.11
    # callable([(topic, partition, records, size, attempt)]), called before each request, a row for each batch; or None.
    cdef public object on_leaving
    cdef bytes client_id
    cdef bytes transactional_id
    cdef int32_t max_in_flight
    cdef int64_t max_request_size
    cdef int64_t request_timeout_ms
    cdef int64_t delivery_timeout_ms
    cdef bint news                           # there is something to tell Python
    cdef uint8_t *nodes                      # nodes that the last answer named, owned; NULL: none, or Python has them
    cdef size_t nodes_size
    cdef bint told_when_empty
    cdef bint admits_itself                  # Produce requests add partitions to the transaction (KIP-890)
    cdef readonly bint began                 # the transaction has begun: a batch was sent, or a partition admitted
    cdef readonly int64_t requests
    cdef readonly int64_t batches_sent

    cdef void consider(self, queue_t *queue, int64_t now_ms) noexcept nogil
    cdef bint gather(self, int64_t now_ms) noexcept nogil
    cdef bint sendable(self, queue_t *queue, int64_t now_ms) noexcept nogil
    cdef bint expire(self, queue_t *queue, int64_t now_ms) noexcept nogil
    cdef bint add_to_request(self, queue_t *queue, broker_t *broker) noexcept nogil
    cdef bint send(self, produce_exchange_t *exchange, int64_t now_ms) noexcept nogil
    cdef int leave(self, produce_exchange_t *exchange) except *
    cdef int make_older(self, produce_exchange_t *exchange, int magic) except *
    cdef broker_t *broker_of(self, int32_t node_id) noexcept nogil
    cdef produce_exchange_t *new_exchange(self, broker_t *broker) noexcept nogil
    cdef void keep_nodes(self, const uint8_t *data, size_t size) noexcept nogil
    cdef void be_due(self, int64_t at_ms) noexcept nogil
    cdef void done(self, outgoing_t *batch, int64_t base_offset, int64_t log_append_time) noexcept nogil
    cdef void come_back(self, outgoing_t *batch, int16_t error, const char *text, int32_t text_size) noexcept nogil

cdef void wake_engine(ProduceEngine engine) noexcept nogil
