"""What the mail and the timers of a processor stand in.

The distance is that of a struct laid over it, of which nothing is read: measured from NULL it would be undefined behaviour.
"""

from kbroker._core.server.connection cimport conn_t, slot_t
from kbroker._core.server.fetch.fetch cimport fetch_t
from kbroker._core.base.mailbox cimport mail_t
from kbroker._core.base.timer_wheel cimport timer_node_t


cdef inline slot_t *slot_of_acks(mail_t *mail) noexcept nogil:
    cdef slot_t *laid = <slot_t *>mail
    return <slot_t *>(<char *>mail - (<char *>&laid.acks_mail - <char *>laid))


cdef inline fetch_t *fetch_of_timer(timer_node_t *timer) noexcept nogil:
    cdef fetch_t *laid = <fetch_t *>timer
    return <fetch_t *>(<char *>timer - (<char *>&laid.timer - <char *>laid))


cdef inline conn_t *conn_of_timer(timer_node_t *timer) noexcept nogil:
    cdef conn_t *laid = <conn_t *>timer
    return <conn_t *>(<char *>timer - (<char *>&laid.idle - <char *>laid))
