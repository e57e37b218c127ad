"""Lists of batches, linked by `next`; see outgoing_list.pxd."""

from kbroker._core.base.links cimport queue_push, queue_remove


cdef void list_push(outgoing_list_t *items, outgoing_t *batch) noexcept nogil:
    queue_push(items.head, items.tail, batch, batch.next)


cdef void list_push_front(outgoing_list_t *items, outgoing_t *batch) noexcept nogil:
    batch.next = items.head
    items.head = batch
    if items.tail == NULL:
        items.tail = batch


cdef outgoing_t *list_pop(outgoing_list_t *items) noexcept nogil:
    cdef outgoing_t *batch = items.head
    if batch != NULL:
        items.head = batch.next
        if items.head == NULL:
            items.tail = NULL
        batch.next = NULL
    return batch


cdef void list_remove(outgoing_list_t *items, outgoing_t *batch) noexcept nogil:
    queue_remove(items.head, items.tail, batch, batch.next)
    batch.next = NULL


cdef void list_insert(outgoing_list_t *items, outgoing_t *batch) noexcept nogil:
    cdef outgoing_t *before = NULL
    cdef outgoing_t *at = items.head
    while at != NULL and at.number < batch.number:
        before = at
        at = at.next
    if before == NULL:
        list_push_front(items, batch)
        return
    batch.next = at
    before.next = batch
    if at == NULL:
        items.tail = batch


cdef void list_take_unsent(outgoing_list_t *items, outgoing_list_t *unsent) noexcept nogil:
    cdef outgoing_t *batch = items.head
    cdef outgoing_t *following
    while batch != NULL:
        following = batch.next
        if batch.attempts == 0:
            list_remove(items, batch)
            list_push(unsent, batch)
        batch = following
