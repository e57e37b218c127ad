"""A Produce request under way: its batches, and the frame around them."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from kbroker._core.base.sockets cimport iovec
from kbroker._core.client.producer.frame cimport produce_entry_t
from kbroker._core.client.producer.outgoing cimport outgoing_t
from kbroker._core.client.socket cimport client_socket_t, exchange_t
from kbroker._core.wire.cursor cimport writer_t

ctypedef struct produce_exchange_t:
    exchange_t exchange          # first
    produce_exchange_t *next     # in the list of free exchanges, or of those to be sent in this turn
    broker_t *broker
    outgoing_t **batches         # `count` of them
    produce_entry_t *entries     # one for each batch
    iovec *pieces
    PyObject *older              # list of bytes: the batches as message sets; NULL if they are sent as they are
    writer_t out
    int32_t count
    int32_t capacity
    int64_t size                 # bytes of the batches

ctypedef struct broker_t:
    broker_t *next
    int32_t node_id
    int32_t in_flight            # requests under way
    client_socket_t *socket      # its socket in this turn, NULL: none is open
    produce_exchange_t *gathered # the request that is put together in this turn
    bint asked                   # the pump was asked for its socket in this turn

# Makes an exchange without batches. Returns NULL if memory is out.
cdef produce_exchange_t *exchange_new() noexcept nogil
cdef void exchange_free(produce_exchange_t *exchange) noexcept nogil
# Takes all batches out. The arrays stay, and the frame's buffer unless it is large.
cdef void exchange_reset(produce_exchange_t *exchange) noexcept nogil
# Makes room for one more batch. Returns False if memory is out.
cdef bint exchange_room(produce_exchange_t *exchange) noexcept nogil
cdef void exchange_add(produce_exchange_t *exchange, outgoing_t *batch) noexcept nogil
# Takes out the batch at index `i` and its entry.
cdef void exchange_remove(produce_exchange_t *exchange, int32_t i) noexcept nogil
# Sorts the batches by topic and partition, and fills in the frame's entry of each.
cdef void exchange_sort(produce_exchange_t *exchange) noexcept nogil
