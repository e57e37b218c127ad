"""A Produce request under way: the batches it takes along, and the frame around them."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from kbroker._core.base.sockets cimport iovec
from kbroker._core.client.producer.frame cimport produce_entry_t
from kbroker._core.client.producer.outgoing cimport outgoing_t
from kbroker._core.client.socket cimport client_socket_t, exchange_t
from kbroker._core.wire.cursor cimport writer_t

ctypedef struct produce_exchange_t:
    exchange_t exchange          # first
    produce_exchange_t *next     # free, or gathered
    broker_t *broker
    outgoing_t **batches         # count of them, as entries
    produce_entry_t *entries
    iovec *pieces
    PyObject *older              # a list of bytes: its batches as message sets, NULL if they go as they are
    writer_t out
    int32_t count
    int32_t capacity
    int64_t size

ctypedef struct broker_t:
    broker_t *next
    int32_t node_id
    int32_t in_flight            # requests
    client_socket_t *socket      # of this turn
    produce_exchange_t *gathered # the request of this turn that is being put together
    bint asked                   # for its socket, in this turn

# NULL when memory is out. Empty, as it is after exchange_reset.
cdef produce_exchange_t *exchange_new() noexcept nogil
cdef void exchange_free(produce_exchange_t *exchange) noexcept nogil
# Without batches; memory for a few of them stays with it.
cdef void exchange_reset(produce_exchange_t *exchange) noexcept nogil
# Room for one more batch; false when memory is out.
cdef bint exchange_room(produce_exchange_t *exchange) noexcept nogil
cdef void exchange_add(produce_exchange_t *exchange, outgoing_t *batch) noexcept nogil
# One of them goes no more.
cdef void exchange_remove(produce_exchange_t *exchange, int32_t i) noexcept nogil
# Its batches by topic and partition, and an entry of the frame for each.
cdef void exchange_sort(produce_exchange_t *exchange) noexcept nogil
