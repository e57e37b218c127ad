"""The mail and the timers of a processor: what they stand in, and what is done when they come.

The distance of a member is that of a struct laid over it, of which nothing is read: measured from NULL it would be
undefined behaviour.
"""

from kbroker._core.base.mailbox cimport mail_t
from kbroker._core.base.timer_wheel cimport timer_node_t
from kbroker._core.server.connection cimport conn_t, parked_t, slot_t
from kbroker._core.server.serving cimport Serving

# One of the slot's mails, from the handler that had the request or from a flush. Processor's thread.
cdef void slot_came(Serving serving, slot_t *slot, bint from_handler) noexcept nogil
# Mail or the timer of a parked fetch. Processor's thread.
cdef void fetch_is_due(Serving serving, parked_t *parked, bint timed_out) noexcept nogil


cdef inline slot_t *slot_of_acks(mail_t *mail) noexcept nogil:
    cdef slot_t *laid = <slot_t *>mail
    return <slot_t *>(<char *>mail - (<char *>&laid.acks_mail - <char *>laid))


cdef inline parked_t *parked_of_timer(timer_node_t *timer) noexcept nogil:
    cdef parked_t *laid = <parked_t *>timer
    return <parked_t *>(<char *>timer - (<char *>&laid.timer - <char *>laid))


cdef inline conn_t *conn_of_timer(timer_node_t *timer) noexcept nogil:
    cdef conn_t *laid = <conn_t *>timer
    return <conn_t *>(<char *>timer - (<char *>&laid.idle - <char *>laid))
