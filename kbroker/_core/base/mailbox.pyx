"""Mailboxes of the processors; see mailbox.pxd.

No wake-up is lost. The owner stores `asleep` before it looks at the list under the lock; a poster links its mail under
the lock before it looks at `asleep`. Whichever of the two takes the lock second sees what the other has done.
"""

from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from kbroker._core.base.links cimport queue_push
from kbroker._core.base.sync cimport (
    atomic_claim_i32,
    atomic_load_i32,
    atomic_store_i32,
    mutex_destroy,
    mutex_init,
    mutex_lock,
    mutex_unlock,
)

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int value, int flags)
    int EFD_CLOEXEC
    int EFD_NONBLOCK

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    ssize_t read(int fd, void *data, size_t size)
    ssize_t write(int fd, const void *data, size_t size)

cdef extern from "<poll.h>" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout_ms)
    short POLLIN


cdef int mailbox_open(mailbox_t *box) noexcept nogil:
    box.head = NULL
    box.tail = NULL
    box.asleep = 0
    box.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    if box.wake_fd < 0:
        return -errno
    mutex_init(&box.lock, NULL)
    return 0


cdef void mailbox_close(mailbox_t *box) noexcept nogil:
    if box.wake_fd >= 0:
        close(box.wake_fd)
        box.wake_fd = -1
        mutex_destroy(&box.lock)


cdef void mailbox_wake(mailbox_t *box) noexcept nogil:
    cdef uint64_t one = 1
    # EAGAIN means that the counter is full. Nothing is lost: the descriptor is readable then.
    write(box.wake_fd, &one, sizeof(one))


cdef void post(mail_t *mail) noexcept nogil:
    cdef mailbox_t *box = mail.box
    if not atomic_claim_i32(&mail.posted, 0, 1):
        return
    mutex_lock(&box.lock)
    queue_push(box.head, box.tail, mail, mail.next)
    mutex_unlock(&box.lock)
    # From here on the owner may have taken the mail out and freed the object that it is embedded in.
    if atomic_claim_i32(&box.asleep, 1, 0):
        mailbox_wake(box)


cdef bint mailbox_is_empty(mailbox_t *box) noexcept nogil:
    cdef bint empty
    mutex_lock(&box.lock)
    empty = box.head == NULL
    mutex_unlock(&box.lock)
    return empty


cdef bint mailbox_may_sleep(mailbox_t *box) noexcept nogil:
    cdef bint empty
    atomic_store_i32(&box.asleep, 1)
    empty = mailbox_is_empty(box)
    if not empty:
        atomic_store_i32(&box.asleep, 0)
    return empty


cdef void mailbox_awake(mailbox_t *box) noexcept nogil:
    atomic_store_i32(&box.asleep, 0)


cdef mail_t *take_all(mailbox_t *box) noexcept nogil:
    cdef mail_t *mails
    mutex_lock(&box.lock)
    mails = box.head
    box.head = NULL
    mutex_unlock(&box.lock)
    return mails


cdef mail_t *take_next(mail_t **mails) noexcept nogil:
    cdef mail_t *mail = mails[0]
    if mail != NULL:
        mails[0] = mail.next
        mail.next = NULL
        atomic_store_i32(&mail.posted, 0)
    return mail


cdef bint mailbox_wait(mailbox_t *box, int timeout_ms) noexcept nogil:
    cdef pollfd waiting
    cdef uint64_t ignored = 0
    if mailbox_may_sleep(box):
        waiting.fd = box.wake_fd
        waiting.events = POLLIN
        if poll(&waiting, 1, timeout_ms) > 0:
            read(box.wake_fd, &ignored, sizeof(ignored))
        mailbox_awake(box)
    return not mailbox_is_empty(box)


cdef class Mailbox:
    """A mailbox with `count` mails, numbered from 0. Any thread posts them, one thread takes them out. For tests."""

    cdef mailbox_t box
    cdef mail_t *mails
    cdef readonly int count

    def __cinit__(self, int count):
        cdef int i
        self.box.wake_fd = -1
        self.mails = <mail_t *>calloc(count, sizeof(mail_t))
        if self.mails == NULL or mailbox_open(&self.box) < 0:
            raise MemoryError("no memory or no descriptor for a mailbox")
        self.count = count
        for i in range(count):
            self.mails[i].box = &self.box

    def __dealloc__(self):
        mailbox_close(&self.box)
        free(self.mails)

    def post(self, int first, int step, int times) -> None:
        """Post mails `first`, `first + step`, ... (modulo count) `times` times, without the GIL."""
        cdef int i
        if first < 0 or step < 0:
            raise ValueError(f"first={first}, step={step}")
        with nogil:
            for i in range(times):
                post(&self.mails[(first + <long>step * i) % self.count])

    cdef mail_t *wait(self, int timeout_ms) noexcept nogil:
        """Return a list of mail, or NULL when `timeout_ms` passed. A late wake-up for mail taken already is ignored."""
        cdef pollfd waiting
        cdef uint64_t ignored = 0
        while mailbox_may_sleep(&self.box):
            waiting.fd = self.box.wake_fd
            waiting.events = POLLIN
            if poll(&waiting, 1, timeout_ms) == 0:
                mailbox_awake(&self.box)
                return NULL
            read(self.box.wake_fd, &ignored, sizeof(ignored))
            mailbox_awake(&self.box)
        return take_all(&self.box)

    def take(self, int timeout_ms) -> list[int]:
        """Block until there is mail and return its numbers, oldest first; an empty list when `timeout_ms` passed."""
        cdef mail_t *mails
        cdef mail_t *mail
        with nogil:
            mails = self.wait(timeout_ms)
        taken = []
        mail = take_next(&mails)
        while mail != NULL:
            taken.append(<int>(mail - self.mails))
            mail = take_next(&mails)
        return taken

    def answer(self, Mailbox other, int times, int timeout_ms) -> int:
        """Wait for mail and answer it with mail 0 of `other`, `times` times, without the GIL.

        Return how often mail came.
        """
        cdef int came = 0
        cdef mail_t *mails
        with nogil:
            while came < times:
                mails = self.wait(timeout_ms)
                if take_next(&mails) == NULL:
                    break
                post(&other.mails[0])
                came += 1
        return came

    def is_posted(self, int number) -> bool:
        if not 0 <= number < self.count:
            raise IndexError(number)
        return atomic_load_i32(&self.mails[number].posted) != 0
