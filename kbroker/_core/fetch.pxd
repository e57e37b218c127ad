"""Fetch (key 1), versions 4 to 17, whole: sessions (KIP-227), limits (KIP-74), long polls, file regions."""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.mailbox cimport mail_t
from kbroker._core.partition cimport fetch_waiter_t
from kbroker._core.processor cimport Processor, conn_t, request_t, slot_t
from kbroker._core.timer_wheel cimport timer_node_t

ctypedef struct fetch_t:
    # A fetch in progress; parked in the purgatory when there is too little to send yet.
    mail_t mail                   # first; MAIL_FETCH
    timer_node_t timer            # max_wait_ms
    slot_t *slot
    int64_t bytes_missing         # atomic
    int32_t dead                  # answered or orphaned; freed when no post is under way
    fetch_waiter_t *waiters
    int32_t waiter_count

# 0: answered or parked. NEEDS_PYTHON / NEEDS_HANDLER / -1 as in produce.pxd.
cdef int fetch(Processor processor, conn_t *conn, request_t *request) noexcept nogil
# Mail or timer of a parked fetch; answers it, or parks it again.
cdef void fetch_resume(Processor processor, fetch_t *parked, bint timed_out) noexcept nogil
# The connection is gone.
cdef void fetch_abandon(Processor processor, fetch_t *parked) noexcept nogil
