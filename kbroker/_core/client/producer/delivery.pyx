"""Deliveries; see delivery.pxd. Nothing happens to one when its batch completes: it looks at the batch when it is asked."""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdlib cimport free

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.sync cimport atomic_add_i32, atomic_claim_i32, atomic_load_i32, atomic_store_i32, mutex_lock, mutex_unlock
from kbroker._core.client.producer.accumulator cimport batch_done
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

cdef enum:
    LONGEST_SLEEP_MS = 250       # a signal that comes just before the sleep is seen after it

log = logging.getLogger("kbroker.client")

cdef object running_loop = None  # asyncio.get_running_loop: asyncio is there when somebody awaits


cdef int check_process(const outgoing_t *batch) except -1:
    """Before one that is pending is waited for."""
    if outgoing_is_foreign(batch):
        raise ForkedClient(
            f"this record was sent by process {batch.process_id}, before a fork: only there it is known what becomes of it",
            hint="wait for it in the process that has sent it",
        )
    return 0


cdef int await_batch(outgoing_t *batch, int64_t deadline_ms) except -1:
    """0 when the deadline (monotonic, -1: none) has passed. Ctrl-C is an exception here."""
    cdef int64_t left = LONGEST_SLEEP_MS
    if atomic_load_i32(&batch.state) == OUTGOING_PENDING:
        check_process(batch)
    while atomic_load_i32(&batch.state) == OUTGOING_PENDING:
        if deadline_ms >= 0:
            left = deadline_ms - monotonic_ms()
            if left <= 0:
                return 0
            if left > LONGEST_SLEEP_MS:
                left = LONGEST_SLEEP_MS
        with nogil:
            outgoing_await(batch, left)
        PyErr_CheckSignals()
    return 1


cdef int64_t deadline_after(timeout) except? -2:
    """Of seconds or None, as -1."""
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
        """The batch that the record is in now, and its place there: a batch that was too large has been split."""
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
        """Whether it is known what became of it."""
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
        """Why it failed, or None when it was delivered. Waits; TimedOut after `timeout` seconds."""
        cdef int32_t index = 0
        cdef outgoing_t *batch = self.settled(timeout, &index)
        if atomic_load_i32(&batch.state) != OUTGOING_FAILED:
            return None
        return <object>batch.exception if batch.exception != NULL else UsageError("the producer is gone")

    def result(self, timeout=None):
        """This Delivery, once the record is delivered. Raises why it failed; TimedOut after `timeout` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self

    @property
    def offset(self):
        """The record's offset; None while it is not known, or not told (acks=0)."""
        cdef int32_t index = 0
        cdef outgoing_t *batch = self.part(&index)
        if atomic_load_i32(&batch.state) != OUTGOING_DELIVERED or batch.base_offset < 0:
            return None
        return batch.base_offset + index

    @property
    def timestamp(self):
        """Milliseconds: that of the record, or when the broker appended it, where the topic says so (LogAppendTime)."""
        cdef int32_t index = 0
        cdef outgoing_t *batch = self.part(&index)
        if atomic_load_i32(&batch.state) == OUTGOING_DELIVERED and batch.log_append_time >= 0:
            return batch.log_append_time
        return self.sent_timestamp

    def add_done_callback(self, callback) -> None:
        """`callback(delivery)` is called once it is done: on the producer's thread, or at once when it is done already."""
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
        # Between here and `run_callbacks` both hold the GIL; only that the batch completes can come in between.
        if not atomic_claim_i32(&batch.watched, UNWATCHED, WATCHED) and batch.watched == WATCHED_TOO_LATE:
            call_all(batch)
        return 0

    def __await__(self):
        """In any event loop: as `result`, without blocking it. Cancelling does not take the record back."""
        while not self.done():
            yield from self.waiter()
        return self.result(0)

    cdef waiter(self):
        """A future of the running loop that is done when the batch is, or when it has been split."""
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
    """A callback of a batch: those who await its Deliveries in one event loop are told with one message."""
    cdef object loop
    cdef list futures

    def __call__(self, delivery):
        try:
            self.loop.call_soon_threadsafe(_end_all, self.futures)
        except RuntimeError:
            pass                     # the loop is closed: nobody awaits there


def _end_all(list futures):
    for future in futures:
        if not future.done():        # cancelled
            future.set_result(None)


cdef object checked(callback):
    if not callable(callback):
        raise TypeError(f"{callback!r} is not callable")
    return callback


cdef void call(callback, delivery, bint with_error) noexcept:
    """Of a Delivery or of Deliveries that are done."""
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
        # They wait for the parts instead.
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
        """Of records that were sent one by one; on_delivery: as of send_many."""
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
        # Records of one call go to few batches at a time; which were there long ago costs no more than a second reference.
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
        """Whether it is known what became of every record."""
        cdef int32_t i
        for i in range(self.stretch_count):
            if not stretch_settled(self.stretches[i].batch, self.stretches[i].first, self.stretches[i].last):
                return False
        return True

    def exception(self, timeout=None):
        """Why the first that failed did, or None when all were delivered. Waits; TimedOut after `timeout` seconds."""
        cdef int64_t deadline = deadline_after(timeout)
        cdef int32_t i
        for i in range(self.stretch_count):
            error = failure_of(self.stretches[i].batch, self.stretches[i].first, self.stretches[i].last, deadline)
            if error is not None:
                return error
        return None

    def result(self, timeout=None) -> int:
        """The number of records, once all are delivered. Raises why one failed; TimedOut after `timeout` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.count

    def add_done_callback(self, callback) -> None:
        """`callback(deliveries)` is called once all are done: on the producer's thread, or at once when they are already."""
        watch_all(self, checked(callback), False)

    cdef int report_to(self, function) except -1:
        watch_all(self, function, True)
        return 0

    def __await__(self):
        """In any event loop: as `result`, without blocking it."""
        cdef Delivery record
        while (record := first_pending(self)) is not None:
            yield from record.waiter()
        return self.result(0)


cdef Delivery first_pending(Deliveries deliveries):
    """Of a record of which it is not known what became of it; None when there is none."""
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
        while record.done():                 # of a batch that was split
            if record.index == stretch.last:
                break                        # they are done by now
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
    """A callback of one record after the other, as long as one is pending."""
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
    """Of the records from `first` to `last`."""
    if not await_batch(batch, deadline):
        raise TimedOut("no answer in time; the records may still be delivered")
    if batch.state == OUTGOING_FAILED:
        return <object>batch.exception if batch.exception != NULL else UsageError("the producer is gone")
    if batch.state == OUTGOING_SPLIT:
        batch = batch.parts
        while batch != NULL and last >= 0:
            error = failure_of(batch, max(first, 0), min(last, batch.count - 1), deadline) if first < batch.count else None
            if error is not None:
                return error
            first -= batch.count
            last -= batch.count
            batch = batch.sibling
    return None
