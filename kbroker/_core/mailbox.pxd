"""How another thread tells a processor that something of its own is ready.

Everything of a connection (its slots, its parked fetches) is touched by its processor's thread only. Another thread
(an append on another processor, a flusher, a request handler) never touches it: it posts the intrusive `mail_t` at the
head of that object to the processor's `mailbox_t`, at most once until the processor has taken it out again.
"""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.sync cimport mutex_t

cdef enum:
    MAIL_NONE = 0
    MAIL_SLOT = 1          # a slot_t whose last waited-for acknowledgement has come, or that a handler has answered
    MAIL_FETCH = 2         # a fetch_t whose partitions have (perhaps) enough bytes now
    MAIL_CONNECTION = 3    # a newly accepted connection to adopt
    MAIL_CALL = 4          # a Python callable to run on the processor's thread

ctypedef struct mail_t:
    mail_t *next
    mailbox_t *box
    int32_t kind
    int32_t posted         # atomic: 1 from post() until the processor takes it out

ctypedef struct mailbox_t:
    mutex_t lock           # guards head and tail; innermost of all locks
    mail_t *head
    mail_t *tail
    int32_t wake_fd        # eventfd in the processor's epoll set
    int32_t asleep         # atomic: 1 while the processor may be in epoll_wait; only then does post() write wake_fd

cdef int mailbox_open(mailbox_t *box) noexcept nogil           # 0, or -errno
cdef void mailbox_close(mailbox_t *box) noexcept nogil
cdef void post(mail_t *mail) noexcept nogil                    # any thread; no-op when already posted
cdef mail_t *take_all(mailbox_t *box) noexcept nogil           # owner only; a list linked by `next`, oldest first
