"""Handles mail and timers that have come; see mail.pxd."""

from kbroker._core.base.sync cimport atomic_add_i32
from kbroker._core.server.connection cimport slot_done
from kbroker._core.server.fetch.fetch cimport TO_HANDLER, fetch_came, fetch_resume
from kbroker._core.server.handover cimport hand_over_fetch
from kbroker._core.server.produce.response cimport slot_is_answered


cdef void slot_came(Serving serving, slot_t *slot, bint from_handler) noexcept nogil:
    cdef int outcome
    if slot.fetch == NULL:
        slot_is_answered(serving, slot, from_handler)
        return
    atomic_add_i32(&slot.outstanding, -1)
    outcome = fetch_came(serving, slot)
    if outcome == TO_HANDLER:
        hand_over_fetch(serving, slot)
    elif outcome:
        slot_done(serving.p, slot)


cdef void fetch_is_due(Serving serving, parked_t *parked, bint timed_out) noexcept nogil:
    cdef slot_t *slot = parked.slot
    if fetch_resume(serving, parked, timed_out) == TO_HANDLER:
        hand_over_fetch(serving, slot)
