"""Batches one behind the other, through their `next`: what waits, what is under way, what is held back."""

from kbroker._core.client.producer.outgoing cimport outgoing_t

ctypedef struct outgoing_list_t:
    outgoing_t *head
    outgoing_t *tail

cdef void list_push(outgoing_list_t *items, outgoing_t *batch) noexcept nogil
cdef void list_push_front(outgoing_list_t *items, outgoing_t *batch) noexcept nogil
cdef outgoing_t *list_pop(outgoing_list_t *items) noexcept nogil
cdef bint list_remove(outgoing_list_t *items, outgoing_t *batch) noexcept nogil
cdef void list_insert(outgoing_list_t *items, outgoing_t *batch) noexcept nogil      # by number
# Those that were never sent go over into the other list.
cdef void list_take_unsent(outgoing_list_t *items, outgoing_list_t *unsent) noexcept nogil
