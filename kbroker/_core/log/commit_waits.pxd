"""Waits of Python for what is appended: until it is replicated and flushed, or until replicas have deleted records."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t

from kbroker._core.base.mailbox cimport mail_t, mailbox_t
from kbroker._core.log.partition cimport ack_waiter_t

ctypedef struct wait_mail_t:
    mail_t mail                # first
    PyObject *wait             # the CommitWait that this is a field of

cdef class CommitWaits:
    """A mailbox for the waits that are over."""
    cdef mailbox_t box

cdef class CommitWait:
    """One wait. While it is under way it keeps itself alive by a reference, which `take` drops."""
    cdef wait_mail_t wait_mail
    cdef ack_waiter_t waiter
    cdef int32_t pending       # atomic; the waiter's
    cdef int16_t code
    cdef readonly object token
    cdef CommitWaits waits
