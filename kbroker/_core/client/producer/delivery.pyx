"""What becomes of sent records; see delivery.pxd.

A Delivery is not touched when its batch is done: it looks at the batch when somebody asks it.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdlib cimport free

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.sync cimport (
    atomic_add_i32, atomic_claim_i32, atomic_load_i32, atomic_store_i32, mutex_lock, mutex_unlock,
)
from kbroker._core.client.producer.accumulator cimport batch_done, next_sleep_ms
from kbroker._core.client.producer.outgoing cimport (
    OUTGOING_DELIVERED,
    OUTGOING_FAILED,
    OUTGOING_PENDING,
    OUTGOING_SPLIT,
    UNWATCHED,
    WATCHED,
    WATCHED_TOO_LATE,
    outgoing_await,
    outgoing_is_foreign,
    outgoing_unref,
)
from kbroker._core.client.producer.outgoing_list cimport list_pop

import logging

from kbroker.errors import ForkedClient, TimedOut, UsageError

log = logging.getLogger("kbroker.client")

cdef object running_loop = None  # asyncio.get_running_loop, set by the first await: asyncio is not imported before


cdef int check_process(const outgoing_t *batch) except -1:
    """Raise ForkedClient if the batch belongs to the parent process: nobody would ever end the wait for it."""
    if outgoing_is_foreign(batch):
        raise ForkedClient(
            f"this record was sent by process {batch.process_id}, before a fork: only there it is known what becomes "
            "of it",
            hint="wait for it in the process that has sent it",
        )
    return 0


cdef int await_batch(outgoing_t *batch, int64_t deadline_ms) except -1:
    """Wait until a batch is done or split. Return 0 if the deadline (monotonic, -1: none) passes first.

    Raises the exception of a signal handler, as KeyboardInterrupt.
    """
    cdef int64_t left
    if atomic_load_i32(&batch.state) == OUTGOING_PENDING:
        check_process(batch)
    while atomic_load_i32(&batch.state) == OUTGOING_PENDING:
        left = next_sleep_ms(deadline_ms)
        if left == 0:
            return 0
        with nogil:
            outgoing_await(batch, left)
        PyErr_CheckSignals()
    return 1


cdef int64_t deadline_after(timeout) except? -2:
    """The deadline (monotonic ms) after `timeout` seconds; -1 for None."""
    return -1 if timeout is None else monotonic_ms() + <int64_t>(max(0.0, float(timeout)) * 1000 + 0.999)


@cython.final
@cython.freelist(4096)
cdef class Delivery:
    """What becomes of one record. Made by `Producer.send`; safe for any thread."""

    def __init__(self):
        raise TypeError("made by Producer.send")

    def __dealloc__(self):
        if self.batch != NULL:
            outgoing_unref(self.batch)

    cdef outgoing_t *part(self, int32_t *index) noexcept nogil:
        """The batch that the record is in now, and its place there (`index`). It moves if its batch is split."""
        cdef outgoing_t *batch = self.batch
        cdef int32_t at = self.index
        while atomic_load_i32(&batch.state) == OUTGOING_SPLIT:
            batch = batch.parts
            while at >= batch.count:
                at -= batch.count
                batch = batch.sibling
        index[0] = at
        return batch

    def done(self) -> bool:
        """Whether the record is delivered or has failed."""
        cdef int32_t index = 0
        return atomic_load_i32(&self.part(&index).state) != OUTGOING_PENDING

    cdef outgoing_t *settled(self, timeout, int32_t *index) except NULL:
        cdef int64_t deadline = deadline_after(timeout)
        cdef outgoing_t *batch
        while True:
            batch = self.part(index)
            if not await_batch(batch, deadline):
                raise TimedOut(f"no answer within {float(timeout):g} s; the record may still be delivered")
            if atomic_load_i32(&batch.state) != OUTGOING_SPLIT:
                return batch

    def exception(self, timeout=None):
        """Wait for the record. Return None if it is delivered, or the exception that says why it failed.

        Raises TimedOut after `timeout` seconds; None: no limit.
        """
        cdef int32_t index = 0
        cdef outgoing_t *batch = self.settled(timeout, &index)
        if atomic_load_i32(&batch.state) != OUTGOING_FAILED:
            return None
        return <object>batch.exception if batch.exception != NULL else UsageError("the producer is gone")

    def result(self, timeout=None):
        """Wait until the record is delivered, and return this Delivery. If the record failed, raise the reason.

        Raises TimedOut after `timeout` seconds; None: no limit.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self

    @property
    def offset(self):
        """The record's offset; None while it is not known, and if the broker does not tell it (acks=0, a duplicate)."""
        cdef int32_t index = 0
        cdef outgoing_t *batch = self.part(&index)
        if atomic_load_i32(&batch.state) != OUTGOING_DELIVERED or batch.base_offset < 0:
            return None
        return batch.base_offset + index

    @property
    def timestamp(self):
        """The record's timestamp in milliseconds; that of the broker if the topic has LogAppendTime, once delivered."""
        cdef int32_t index = 0
        cdef outgoing_t *batch = self.part(&index)
        if atomic_load_i32(&batch.state) == OUTGOING_DELIVERED and batch.log_append_time >= 0:
            return batch.log_append_time
        return self.sent_timestamp

    def add_done_callback(self, callback) -> None:
        """Have `callback(delivery)` called when the record is delivered or has failed.

        It is called on the producer's thread, or at once in this thread if that has happened already.
        """
        self.watch(checked(callback), False)

    cdef int report_to(self, function) except -1:
        return self.watch(function, True)

    cdef int watch(self, callback, bint with_error) except -1:
        cdef int32_t index = 0
        cdef outgoing_t *batch = self.part(&index)
        if batch.watched == WATCHED_TOO_LATE:
            call(callback, self, with_error)
            return 0
        check_process(batch)
        if batch.callbacks == NULL:
            callbacks = []
            Py_INCREF(callbacks)
            batch.callbacks = <PyObject *>callbacks
        (<list>batch.callbacks).append((callback, self, with_error))
        # `run_callbacks` holds the GIL too, so it cannot run in between. But the batch may have been settled meanwhile.
        if not atomic_claim_i32(&batch.watched, UNWATCHED, WATCHED) and batch.watched == WATCHED_TOO_LATE:
            call_all(batch)
        return 0

    def __await__(self):
        """Wait as `result` does, but without blocking the event loop, which may be of any kind.

        Cancelling does not take the record back.
        """
        while not self.done():
            yield from self.waiter()
        return self.result(0)

    cdef waiter(self):
        """Return a future of the running loop that is done when the batch is done or has been split."""
        cdef int32_t index = 0
        cdef outgoing_t *batch = self.part(&index)
        cdef _LoopWaiters waiters = None
        global running_loop
        if running_loop is None:
            import asyncio
            running_loop = asyncio.get_running_loop
        check_process(batch)
        loop = running_loop()
        future = loop.create_future()
        if batch.callbacks != NULL:
            callbacks = <list>batch.callbacks
            last = callbacks[len(callbacks) - 1][0]
            if type(last) is _LoopWaiters and (<_LoopWaiters>last).loop is loop:
                waiters = <_LoopWaiters>last
        if waiters is not None:
            waiters.futures.append(future)
        else:
            waiters = _LoopWaiters.__new__(_LoopWaiters)
            waiters.loop = loop
            waiters.futures = [future]
            self.add_done_callback(waiters)
        return future

    def __copy__(self):
        return self

    def __deepcopy__(self, _):
        return self

    def __reduce__(self):
        raise TypeError("a Delivery belongs to its producer and cannot be pickled; its topic, partition and offset can")

    def __repr__(self):
        state = "pending"
        if self.done():
            state = f"offset {self.offset}" if self.exception() is None else f"failed: {self.exception()!r}"
        return f"<Delivery to {self.topic}-{self.partition}, {state}>"


@cython.final
cdef class _LoopWaiters:
    """A callback of a batch.

    It ends all futures that await the batch in one event loop, with one message to the loop.
    """
    cdef object loop
    cdef list futures

    def __call__(self, delivery):
        try:
            self.loop.call_soon_threadsafe(_end_all, self.futures)
        except RuntimeError:
            pass                     # the loop is closed: nobody awaits there


def _end_all(list futures):
    for future in futures:
        if not future.done():        # it may have been cancelled
            future.set_result(None)


cdef object checked(callback):
    if not callable(callback):
        raise TypeError(f"{callback!r} is not callable")
    return callback


cdef void call(callback, delivery, bint with_error) noexcept:
    """Call a callback with a Delivery or Deliveries that are done. Log an exception that it raises."""
    try:
        if with_error:
            callback(delivery.exception(0), delivery)
        else:
            callback(delivery)
    except Exception:
        log.exception("A delivery callback failed")


cdef void call_all(outgoing_t *batch) noexcept:
    cdef PyObject *owned = batch.callbacks
    cdef list callbacks
    batch.callbacks = NULL
    if owned == NULL:
        return
    callbacks = <list>owned
    Py_XDECREF(owned)
    for callback, delivery, with_error in callbacks:
        call(callback, delivery, with_error)


cdef void run_callbacks(outgoing_t *batch) noexcept:
    cdef PyObject *owned = batch.callbacks
    atomic_store_i32(&batch.watched, WATCHED_TOO_LATE)
    if batch.state == OUTGOING_SPLIT and owned != NULL:
        # The callbacks wait for the parts instead.
        batch.callbacks = NULL
        callbacks = <list>owned
        Py_XDECREF(owned)
        for callback, watching, with_error in callbacks:
            (<Delivery>watching).watch(callback, with_error)
    else:
        call_all(batch)
    outgoing_unref(batch)


cdef int fail_list(accumulator_t *a, outgoing_list_t *failed, error) except -1:
    cdef outgoing_t *batch
    while failed.head != NULL:
        batch = list_pop(failed)
        Py_INCREF(error)
        batch.exception = <PyObject *>error
        mutex_lock(&a.lock)
        watched = batch_done(a, batch, OUTGOING_FAILED)
        mutex_unlock(&a.lock)
        if watched:
            run_callbacks(batch)
    return 0


@cython.final
cdef class Deliveries:
    """What becomes of the records of one `send_many`: `len()` is their number."""

    def __init__(self):
        raise TypeError("made by Producer.send_many")

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.stretch_count):
            outgoing_unref(self.stretches[i].batch)
        free(self.stretches)

    def __len__(self):
        return self.count

    def __copy__(self):
        return self

    def __deepcopy__(self, _):
        return self

    def __reduce__(self):
        raise TypeError("Deliveries belong to their producer and cannot be pickled; what result() returns can")

    @staticmethod
    def of(deliveries, on_delivery=None) -> Deliveries:
        """Make Deliveries of several Delivery objects. `on_delivery` is as in send_many."""
        cdef Deliveries made = Deliveries.__new__(Deliveries)
        cdef Delivery each
        for each in deliveries:
            if made.add(each.batch, each.index) == NULL:
                raise MemoryError()
            made.count += 1
        if on_delivery is not None:
            made.report_to(checked(on_delivery))
        return made

    cdef stretch_t *add(self, outgoing_t *batch, int32_t index) noexcept nogil:
        cdef stretch_t *stretch
        cdef int32_t i
        # The records of one call go to few batches at a time, so only the last 64 stretches are searched. A batch that
        # is not found there gets a second stretch, which only costs a second reference.
        for i in range(self.stretch_count - 1, max(-1, self.stretch_count - 64), -1):
            if self.stretches[i].batch == batch:
                self.stretches[i].last = max(self.stretches[i].last, index)
                return &self.stretches[i]
        stretch = <stretch_t *>with_room(self.stretches, self.stretch_count, &self.capacity, sizeof(stretch_t))
        if stretch == NULL:
            return NULL
        self.stretches = stretch
        stretch = &self.stretches[self.stretch_count]
        self.stretch_count += 1
        atomic_add_i32(&batch.references, 1)
        stretch.batch = batch
        stretch.first = stretch.last = index
        return stretch

    def done(self) -> bool:
        """Whether every record is delivered or has failed."""
        cdef int32_t i
        for i in range(self.stretch_count):
            if not stretch_settled(self.stretches[i].batch, self.stretches[i].first, self.stretches[i].last):
                return False
        return True

    def exception(self, timeout=None):
        """Wait for all records. Return None if all are delivered, or the exception of the first record that failed.

        Raises TimedOut after `timeout` seconds; None: no limit.
        """
        cdef int64_t deadline = deadline_after(timeout)
        cdef int32_t i
        for i in range(self.stretch_count):
            error = failure_of(self.stretches[i].batch, self.stretches[i].first, self.stretches[i].last, deadline)
            if error is not None:
                return error
        return None

    def result(self, timeout=None) -> int:
        """Wait until all records are delivered, and return their number. If a record failed, raise the reason.

        Raises TimedOut after `timeout` seconds; None: no limit.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.count

    def add_done_callback(self, callback) -> None:
        """Have `callback(deliveries)` called when every record is delivered or has failed.

        It is called on the producer's thread, or at once in this thread if that has happened already.
        """
        watch_all(self, checked(callback), False)

    cdef int report_to(self, function) except -1:
        watch_all(self, function, True)
        return 0

    def __await__(self):
        """Wait as `result` does, but without blocking the event loop, which may be of any kind."""
        cdef Delivery record
        while (record := first_pending(self)) is not None:
            yield from record.waiter()
        return self.result(0)


cdef Delivery first_pending(Deliveries deliveries):
    """The Delivery of a record that is pending; None if no record is."""
    cdef Delivery record
    cdef stretch_t *stretch
    cdef int32_t i
    for i in range(deliveries.stretch_count):
        stretch = &deliveries.stretches[i]
        if stretch_settled(stretch.batch, stretch.first, stretch.last):
            continue
        record = Delivery.__new__(Delivery)
        atomic_add_i32(&stretch.batch.references, 1)
        record.batch = stretch.batch
        record.index = stretch.first
        while record.done():                 # this part of a split batch is done: look at the next record
            if record.index == stretch.last:
                break                        # all records of the stretch have been done meanwhile
            record.index += 1
        return record
    return None


cdef int watch_all(Deliveries deliveries, callback, bint with_error) except -1:
    cdef _UntilAllDone watcher = _UntilAllDone.__new__(_UntilAllDone)
    watcher.deliveries = deliveries
    watcher.callback = callback
    watcher.with_error = with_error
    watcher(None)
    return 0


@cython.final
cdef class _UntilAllDone:
    """A callback that watches one pending record after the other; when none is pending it calls the user's."""
    cdef Deliveries deliveries
    cdef object callback
    cdef bint with_error

    def __call__(self, _):
        cdef Delivery record = first_pending(self.deliveries)
        if record is None:
            call(self.callback, self.deliveries, self.with_error)
        else:
            record.watch(self, False)


cdef bint stretch_settled(outgoing_t *batch, int32_t first, int32_t last) noexcept nogil:
    cdef int32_t state = atomic_load_i32(&batch.state)
    if state != OUTGOING_SPLIT:
        return state != OUTGOING_PENDING
    batch = batch.parts
    while batch != NULL and last >= 0:
        if first < batch.count and not stretch_settled(batch, max(first, 0), min(last, batch.count - 1)):
            return False
        first -= batch.count
        last -= batch.count
        batch = batch.sibling
    return True


cdef object failure_of(outgoing_t *batch, int32_t first, int32_t last, int64_t deadline):
    """Wait for records `first` to `last` of a batch. Return the exception of the first that failed, or None.

    Raises TimedOut when the deadline passes.
    """
    if not await_batch(batch, deadline):
        raise TimedOut("no answer in time; the records may still be delivered")
    if batch.state == OUTGOING_FAILED:
        return <object>batch.exception if batch.exception != NULL else UsageError("the producer is gone")
    if batch.state == OUTGOING_SPLIT:
        batch = batch.parts
        while batch != NULL and last >= 0:
            error = failure_of(batch, max(first, 0), min(last, batch.count - 1), deadline) if first < batch.count \
                else None
            if error is not None:
                return error
            first -= batch.count
            last -= batch.count
            batch = batch.sibling
    return None
