"""Transactions that a coordinator is being asked about; see verifications.pxd."""

from libc.stdint cimport int16_t, int32_t, int64_t
from libc.string cimport memmove

from kbroker._core.base.arrays cimport with_room


cdef int32_t place_of(const verifications_t *v, int64_t producer_id) noexcept nogil:
    cdef int32_t low = 0
    cdef int32_t high = v.count
    cdef int32_t middle
    while low < high:
        middle = (low + high) >> 1
        if v.entries[middle].producer_id < producer_id:
            low = middle + 1
        else:
            high = middle
    return low


cdef verification_t *verifications_find(verifications_t *v, int64_t producer_id) noexcept nogil:
    cdef int32_t at
    if v.count == 0:
        return NULL
    at = place_of(v, producer_id)
    return &v.entries[at] if at < v.count and v.entries[at].producer_id == producer_id else NULL


cdef void take_out(verifications_t *v, int32_t at) noexcept nogil:
    v.count -= 1
    memmove(&v.entries[at], &v.entries[at + 1], <size_t>(v.count - at) * sizeof(verification_t))


cdef void drop_oldest(verifications_t *v) noexcept nogil:
    cdef int32_t oldest = 0
    cdef int32_t at
    for at in range(1, v.count):
        if v.entries[at].guard < v.entries[oldest].guard:
            oldest = at
    take_out(v, oldest)


cdef int64_t verifications_begin(verifications_t *v, int64_t producer_id, int16_t producer_epoch,
                                 int32_t sequence, bint adds) noexcept nogil:
    cdef verification_t *known = verifications_find(v, producer_id)
    cdef verification_t *grown
    cdef int32_t at
    if known != NULL:
        if known.producer_epoch < producer_epoch or (
            known.producer_epoch == producer_epoch and sequence < known.lowest_sequence
        ):
            known.producer_epoch = producer_epoch
            known.lowest_sequence = sequence
            known.adds = adds
        return known.guard
    if v.count == MOST_VERIFICATIONS:
        drop_oldest(v)
    grown = <verification_t *>with_room(v.entries, v.count, &v.capacity, sizeof(verification_t))
    if grown == NULL:
        return NO_GUARD
    v.entries = grown
    at = place_of(v, producer_id)
    memmove(&v.entries[at + 1], &v.entries[at], <size_t>(v.count - at) * sizeof(verification_t))
    v.count += 1
    v.last_guard += 1
    v.entries[at].producer_id = producer_id
    v.entries[at].producer_epoch = producer_epoch
    v.entries[at].lowest_sequence = sequence
    v.entries[at].adds = adds
    v.entries[at].guard = v.last_guard
    return v.last_guard


cdef void verifications_end(verifications_t *v, int64_t producer_id) noexcept nogil:
    cdef verification_t *known = verifications_find(v, producer_id)
    if known != NULL:
        take_out(v, <int32_t>(known - v.entries))


cdef void verifications_end_by_marker(verifications_t *v, int64_t producer_id, int16_t producer_epoch) noexcept nogil:
    cdef verification_t *known = verifications_find(v, producer_id)
    if known != NULL and not (known.adds and known.producer_epoch == producer_epoch):
        take_out(v, <int32_t>(known - v.entries))
