"""Lists of batches, linked by `next`: the sealed, flying and held batches of a queue."""

from kbroker._core.client.producer.outgoing cimport outgoing_t

ctypedef struct outgoing_list_t:
    outgoing_t *head             # NULL, as is `tail`: the list is empty
    outgoing_t *tail

cdef void list_push(outgoing_list_t *items, outgoing_t *batch) noexcept nogil
cdef void list_push_front(outgoing_list_t *items, outgoing_t *batch) noexcept nogil
cdef outgoing_t *list_pop(outgoing_list_t *items) noexcept nogil
# Takes a batch out of the list that it is in.
cdef void list_remove(outgoing_list_t *items, outgoing_t *batch) noexcept nogil
# Inserts the batch in the order of outgoing_t.number.
cdef void list_insert(outgoing_list_t *items, outgoing_t *batch) noexcept nogil
# Moves the batches that were never sent to the end of the list `unsent`.
cdef void list_take_unsent(outgoing_list_t *items, outgoing_list_t *unsent) noexcept nogil
