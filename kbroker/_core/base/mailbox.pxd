"""How another thread tells a processor that something of its own is ready.

Everything of a connection (its slots, its parked fetches) is touched by its processor's thread only. Another thread
(an append on another processor, a flusher, a request handler) never touches it: it posts the intrusive `mail_t` at the
head of that object to the processor's `mailbox_t`, at most once until the processor has taken it out again.
"""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.base.sync cimport mutex_t

cdef enum:
    MAIL_NONE = 0
    MAIL_SLOT = 1          # a slot_t that a handler has answered or prepared
    MAIL_FETCH = 2         # a fetch_t whose partitions have (perhaps) enough bytes now
    MAIL_CONNECTION = 3    # a newly accepted connection to adopt
    MAIL_ACKS = 4          # slot_t.acks_mail: the last acknowledgement that a slot waits for has come
    MAIL_WARM = 5          # a warm_t: bytes of a file that a connection has to send are in memory now

ctypedef struct mail_t:
    mail_t *next
    mailbox_t *box
    int32_t kind
    int32_t posted         # atomic: 1 from post() until the owner takes it out

ctypedef struct mailbox_t:
    mutex_t lock           # guards head and tail; innermost of all locks
    mail_t *head
    mail_t *tail
    int32_t wake_fd        # eventfd in the owner's epoll set, edge-triggered: it is never read
    int32_t asleep         # atomic: 1 while the owner may be blocked; only then does post() write wake_fd

cdef int mailbox_open(mailbox_t *box) noexcept nogil           # 0, or -errno
cdef void mailbox_close(mailbox_t *box) noexcept nogil
# Any thread. No-op when it is posted already; `mail` is not touched any more once the owner can have it.
cdef void post(mail_t *mail) noexcept nogil
# Any thread: the owner's next wait returns at once.
cdef void mailbox_wake(mailbox_t *box) noexcept nogil
cdef bint mailbox_is_empty(mailbox_t *box) noexcept nogil
# Owner only, before it blocks; false when there is mail and it must not. Ends with mailbox_awake.
cdef bint mailbox_may_sleep(mailbox_t *box) noexcept nogil
cdef void mailbox_awake(mailbox_t *box) noexcept nogil
# Owner only: a list linked by `next`, oldest first. Go through it with take_next: until a mail is taken from the list
# its `posted` stays 1, so nobody relinks it meanwhile.
cdef mail_t *take_all(mailbox_t *box) noexcept nogil
cdef mail_t *take_next(mail_t **mails) noexcept nogil
