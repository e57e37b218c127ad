"""How another thread tells a processor that one of the processor's objects is ready.

The slots and parked fetches of a connection are touched by the thread of its processor only. Another thread (an append
on another processor, a flusher, a request handler) posts the `mail_t` that is embedded in the object to the processor's
`mailbox_t`. A mail that is posted already is not posted again before the processor has taken it out.
"""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.base.sync cimport mutex_t

cdef enum:
    MAIL_NONE = 0
    MAIL_SLOT = 1          # a slot_t that a handler has answered or prepared
    MAIL_FETCH = 2         # a fetch_t whose partitions may have enough bytes now
    MAIL_CONNECTION = 3    # a newly accepted connection to adopt
    MAIL_ACKS = 4          # slot_t.acks_mail: the last acknowledgement that the slot waits for has come
    MAIL_WARM = 5          # a warm_t: the bytes of a file that a connection has to send are in memory now

ctypedef struct mail_t:
    mail_t *next
    mailbox_t *box
    int32_t kind
    int32_t posted         # atomic: 1 from post() until the owner takes it out

ctypedef struct mailbox_t:
    mutex_t lock           # guards head and tail; innermost of all locks
    mail_t *head
    mail_t *tail
    int32_t wake_fd        # eventfd in the owner's epoll set; edge-triggered, so a processor never reads it
    int32_t asleep         # atomic: 1 while the owner may be blocked; post() writes to wake_fd only then

cdef int mailbox_open(mailbox_t *box) noexcept nogil           # 0, or -errno
cdef void mailbox_close(mailbox_t *box) noexcept nogil
# Post a mail, from any thread; a no-op when it is posted already. The function does not touch `mail` once the owner can
# have taken it.
cdef void post(mail_t *mail) noexcept nogil
# Wake the owner, from any thread: its next wait returns at once.
cdef void mailbox_wake(mailbox_t *box) noexcept nogil
cdef bint mailbox_is_empty(mailbox_t *box) noexcept nogil
# Owner only, before it blocks: false when there is mail, so that it must not block. After true the owner calls
# mailbox_awake when it has woken up.
cdef bint mailbox_may_sleep(mailbox_t *box) noexcept nogil
cdef void mailbox_awake(mailbox_t *box) noexcept nogil
# Owner only: take all mail as a list linked by `next`, oldest first; NULL when there is none. Walk it with take_next:
# `posted` of a mail stays 1 until it is taken from the list, so no other thread links it again meanwhile.
cdef mail_t *take_all(mailbox_t *box) noexcept nogil
cdef mail_t *take_next(mail_t **mails) noexcept nogil
# Owner only, for owners without an epoll set: block until there is mail, until mailbox_wake, or until `timeout_ms` (-1:
# no limit) passes. Returns whether there is mail.
cdef bint mailbox_wait(mailbox_t *box, int timeout_ms) noexcept nogil
