"""Waits of Python for replicas and flushes; see commit_waits.pxd."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int16_t, int64_t

from kbroker._core.base.mailbox cimport (
    mail_t, mailbox_close, mailbox_open, mailbox_wait, mailbox_wake, post, take_all, take_next,
)
from kbroker._core.base.sync cimport atomic_add_i32
from kbroker._core.log.acks cimport acks_await, acks_forget, acks_give_up
from kbroker._core.log.partition_state cimport PartitionState
from kbroker._core.log.replicas cimport low_await, low_give_up


cdef class CommitWaits:
    """Where waits end: one thread waits for them and takes them. Any thread begins one."""

    def __cinit__(self):
        if mailbox_open(&self.box) < 0:
            raise MemoryError("no descriptor for a mailbox")

    def __dealloc__(self):
        mailbox_close(&self.box)

    def await_commit(self, PartitionState state not None, appended, token):
        """Wait until a batch is replicated and flushed, as far as its AppendResult says that it must be.

        Return the CommitWait, which `take` will return too.
        """
        cdef CommitWait wait = CommitWait.__new__(CommitWait)
        wait.waiter.offset = appended.last_offset
        wait.waiter.led_since = appended.led_since
        wait.waiter.for_flush = appended.must_flush
        wait.waiter.for_replicas = appended.must_replicate
        return begin(self, wait, state, token, False)

    def await_low_watermark(self, PartitionState state not None, int64_t offset, token):
        """Wait until the logs of all live replicas begin at `offset` or later. Return the CommitWait."""
        cdef CommitWait wait = CommitWait.__new__(CommitWait)
        wait.waiter.offset = offset
        return begin(self, wait, state, token, True)

    def wait(self, int timeout_ms=-1):
        """Block until a wait is over, until `wake` is called, or until `timeout_ms` (-1: no limit) passes."""
        with nogil:
            mailbox_wait(&self.box, timeout_ms)

    def wake(self):
        """Let `wait` return."""
        with nogil:
            mailbox_wake(&self.box)

    def take(self):
        """Return the waits that are over, each once, in the order in which they have ended."""
        cdef mail_t *mails = take_all(&self.box)
        cdef CommitWait wait
        cdef list taken = []
        while mails != NULL:
            wait = <CommitWait>(<wait_mail_t *>take_next(&mails)).wait
            acks_forget(&wait.waiter)
            taken.append(wait)
            Py_DECREF(wait)
        return taken


cdef CommitWait begin(CommitWaits waits, CommitWait wait, PartitionState state, object token, bint is_low):
    cdef bint linked
    wait.waits = waits
    wait.token = token
    wait.wait_mail.mail.box = &waits.box
    wait.wait_mail.wait = <PyObject *>wait
    wait.pending = 2             # the waiter, and this call
    wait.waiter.pending = &wait.pending
    wait.waiter.error = &wait.code
    wait.waiter.mail = &wait.wait_mail.mail
    Py_INCREF(wait)
    with nogil:
        linked = low_await(state.p, &wait.waiter) if is_low else acks_await(state.p, &wait.waiter)
        if not linked:
            atomic_add_i32(&wait.pending, -1)
        if atomic_add_i32(&wait.pending, -1) == 0:
            post(&wait.wait_mail.mail)
    return wait


cdef class CommitWait:
    """A wait for replicas or a flush."""

    @property
    def error(self):
        """The error code with which the wait has ended; 0: it was successful. Valid after `take`."""
        return self.code

    def give_up(self, int16_t code):
        """End the wait with an error code. `take` returns it then. No-op if it is over."""
        cdef bint is_low = not (self.waiter.for_flush or self.waiter.for_replicas)
        if self.waiter.partition == NULL:
            return
        with nogil:
            if is_low:
                low_give_up(&self.waiter, code)
            else:
                acks_give_up(&self.waiter, code)
