"""The mail and the timers of a processor: which object each one is embedded in, and what is done when it comes.

The offset of a member is computed from a struct pointer laid over the member, through which nothing is read. Computed
from NULL it would be undefined behaviour.
"""

from kbroker._core.base.mailbox cimport mail_t
from kbroker._core.base.timer_wheel cimport timer_node_t
from kbroker._core.server.connection cimport conn_t, parked_t, slot_t
from kbroker._core.server.serving cimport Serving

# One of the slot's mails has come: from the handler that had the request, or from a flush. Processor's thread.
cdef void slot_came(Serving serving, slot_t *slot, bint from_handler) noexcept nogil
# The mail of a parked fetch has come, or its timer (`timed_out`). Processor's thread.
cdef void fetch_is_due(Serving serving, parked_t *parked, bint timed_out) noexcept nogil


cdef inline slot_t *slot_of_acks(mail_t *mail) noexcept nogil:
    cdef slot_t *laid = <slot_t *>mail
    return <slot_t *>(<char *>mail - (<char *>&laid.acks_mail - <char *>laid))


cdef inline slot_t *slot_of_timer(timer_node_t *timer) noexcept nogil:
    cdef slot_t *laid = <slot_t *>timer
    return <slot_t *>(<char *>timer - (<char *>&laid.timer - <char *>laid))


cdef inline parked_t *parked_of_timer(timer_node_t *timer) noexcept nogil:
    cdef parked_t *laid = <parked_t *>timer
    return <parked_t *>(<char *>timer - (<char *>&laid.timer - <char *>laid))


cdef inline conn_t *conn_of_timer(timer_node_t *timer) noexcept nogil:
    cdef conn_t *laid = <conn_t *>timer
    return <conn_t *>(<char *>timer - (<char *>&laid.idle - <char *>laid))
