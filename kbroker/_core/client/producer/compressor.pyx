"""The link between a producer's queues and its codec; see compressor.pxd."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from kbroker._core.base.futex cimport futex_wait
from kbroker._core.base.sync cimport atomic_load_i32, mutex_lock, mutex_unlock
from kbroker._core.client.producer.accumulator cimport accumulator_t
from kbroker._core.client.producer.outgoing cimport outgoing_unref
from kbroker._core.wire.layout cimport BATCH_HEADER_SIZE

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char *data, Py_ssize_t size, int flags)
    int PyBUF_READ


cdef class Compressor:
    def __init__(self, Accumulator accumulator not None):
        self.accumulator = accumulator

    def __dealloc__(self):
        if self.batch != NULL:
            outgoing_unref(self.batch)

    def next_batch(self, int timeout_ms):
        """Return the next batch's records, a memoryview that is valid until `finish_batch`; None if none came in time.

        Raises RuntimeError if a batch is taken already.
        """
        cdef accumulator_t *a = &self.accumulator.a
        cdef int32_t seen = 0
        if self.batch != NULL:
            raise RuntimeError("a batch is taken already")
        for attempt in range(2):
            mutex_lock(&a.lock)
            seen = atomic_load_i32(&a.raw_came)
            self.batch = a.raw_head
            if self.batch != NULL:
                a.raw_head = self.batch.next_raw
            mutex_unlock(&a.lock)
            if self.batch != NULL:
                return PyMemoryView_FromMemory(<char *>self.batch.data + BATCH_HEADER_SIZE,
                                               self.batch.size - BATCH_HEADER_SIZE, PyBUF_READ)
            if attempt == 0:
                with nogil:
                    futex_wait(&a.raw_came, seen, timeout_ms)
        return None

    def finish_batch(self, compressed) -> None:
        """Let the batch that was taken be sent, with the bytes `compressed` in place of its records.

        The batch is sent uncompressed if `compressed` is None or not smaller. Raises RuntimeError if no batch is taken.
        """
        cdef accumulator_t *a = &self.accumulator.a
        cdef Py_buffer view
        cdef outgoing_t *batch = self.batch
        cdef int64_t size = -1
        if batch == NULL:
            raise RuntimeError("no batch is taken")
        if compressed is not None:
            PyObject_GetBuffer(compressed, &view, PyBUF_SIMPLE)
            size = view.len
        mutex_lock(&a.lock)
        if 0 <= size < batch.size - BATCH_HEADER_SIZE:
            memcpy(batch.data + BATCH_HEADER_SIZE, view.buf, <size_t>size)
            batch.size = BATCH_HEADER_SIZE + size
            batch.compressed = True
        batch.compressing = False
        mutex_unlock(&a.lock)
        if compressed is not None:
            PyBuffer_Release(&view)
        self.batch = NULL
        outgoing_unref(batch)
        self.accumulator.wake()
