"""Recovery of a segment: walk its bytes batch by batch, find where they stop being a log, and make its indexes anew.

What is made is what the log would have written while it grew (Kafka's LogSegment.recover): an .index entry (last offset of a
batch, its position) for each batch that starts more than `index_interval_bytes` behind the last one with an entry, and at the
same batches a .timeindex entry (largest timestamp so far, last offset of the batch that has it).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memset

from kbroker._core.cursor cimport write_i32, write_i64, write_raw, writer_free, writer_init, writer_t
from kbroker._core.record_batch cimport (
    BATCH_BAD_OFFSET,
    BATCH_OK,
    BATCH_TOO_SHORT,
    batch_header,
    batch_info_t,
    batch_verify,
    new_batch_info,
)

from kbroker._core.record_batch import FINDINGS as _FINDINGS

ctypedef struct place_t:
    batch_info_t info
    int64_t position


@cython.final
cdef class SegmentScan:
    """What is known of a segment after its first `valid_size` bytes. Not safe for several threads.

    `step` goes on from there until the bytes or the batches end; `finding` tells which (BATCH_OK: nothing is left).
    Messages of magic 0 and 1 end the scan too (BATCH_OLD_MAGIC): that is no damage, and nothing to cut off.
    """

    cdef readonly int64_t base_offset
    cdef readonly int64_t index_interval_bytes
    cdef readonly bint verify
    cdef readonly int64_t valid_size
    cdef readonly int finding
    cdef readonly bint done
    cdef readonly int64_t next_offset
    cdef readonly int64_t batch_count
    cdef readonly int64_t record_count
    cdef readonly int64_t first_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t max_timestamp_offset
    cdef readonly int64_t bytes_since_index
    cdef int64_t indexed_timestamp
    cdef int32_t epoch
    cdef writer_t index_out
    cdef writer_t time_index_out
    cdef writer_t epochs_out
    cdef writer_t idempotent

    def __cinit__(self, int64_t base_offset, int64_t index_interval_bytes=4096, bint verify=True):
        writer_init(&self.index_out)
        writer_init(&self.time_index_out)
        writer_init(&self.epochs_out)
        writer_init(&self.idempotent)
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.verify = verify
        self.next_offset = base_offset
        self.first_timestamp = -1
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.indexed_timestamp = -1
        self.epoch = -1

    def __dealloc__(self):
        writer_free(&self.index_out)
        writer_free(&self.time_index_out)
        writer_free(&self.epochs_out)
        writer_free(&self.idempotent)

    @property
    def why(self):
        """Why the scan ended before the bytes did, for people; None while it has not."""
        return None if self.finding == BATCH_OK else _FINDINGS[self.finding][2]

    @property
    def index(self):
        """The .index of the bytes so far."""
        return PyBytes_FromStringAndSize(<const char *>self.index_out.data, <Py_ssize_t>self.index_out.size)

    @property
    def time_index(self):
        """The .timeindex of the bytes so far, with the entry that a segment gets when it is closed."""
        cdef bytes entries = PyBytes_FromStringAndSize(<const char *>self.time_index_out.data, <Py_ssize_t>self.time_index_out.size)
        if self.max_timestamp > self.indexed_timestamp:
            entries += self.max_timestamp.to_bytes(8, "big") + (self.max_timestamp_offset - self.base_offset).to_bytes(4, "big")
        return entries

    @property
    def epochs(self):
        """(leader epoch, its first offset) wherever the epoch grew."""
        cdef const int64_t *pairs = <const int64_t *>self.epochs_out.data
        cdef size_t i, count = self.epochs_out.size // 16
        found = []
        for i in range(count):
            found.append((pairs[2 * i], pairs[2 * i + 1]))
        return found

    def step(self, buffer, int64_t max_bytes=1 << 24):
        """Scan on in `buffer`, the whole segment, for some `max_bytes`. Returns the headers of idempotent producers' batches."""
        cdef Py_buffer view
        cdef const place_t *places
        cdef size_t i, count
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                self.walk(<const uint8_t *>view.buf, view.len, max_bytes)
        finally:
            PyBuffer_Release(&view)
        if self.index_out.failed or self.time_index_out.failed or self.epochs_out.failed or self.idempotent.failed:
            raise MemoryError()
        places = <const place_t *>self.idempotent.data
        count = self.idempotent.size // sizeof(place_t)
        found = []
        for i in range(count):
            found.append(new_batch_info(&places[i].info, places[i].position))
        self.idempotent.size = 0
        return found

    cdef void walk(self, const uint8_t *data, int64_t size, int64_t max_bytes) noexcept nogil:
        cdef place_t place
        cdef int64_t last_offset, stop
        memset(&place, 0, sizeof(place))
        stop = size if size - self.valid_size < max_bytes else self.valid_size + max_bytes
        while self.finding == BATCH_OK and self.valid_size < stop:
            place.position = self.valid_size
            if self.verify:
                self.finding = batch_verify(data + place.position, size - place.position, &place.info)
            else:
                self.finding = batch_header(data + place.position, size - place.position, &place.info)
            if self.finding != BATCH_OK:
                break
            last_offset = place.info.base_offset + place.info.last_offset_delta
            if (place.info.base_offset < self.next_offset or place.info.last_offset_delta < 0
                    or last_offset - self.base_offset > INT32_MAX or last_offset < place.info.base_offset):
                self.finding = BATCH_BAD_OFFSET
                break
            self.take(&place, last_offset)
        self.done = self.finding != BATCH_OK or self.valid_size >= size

    cdef void take(self, place_t *place, int64_t last_offset) noexcept nogil:
        cdef int64_t pair[2]
        if self.batch_count == 0:
            self.first_timestamp = place.info.max_timestamp
        if place.info.max_timestamp > self.max_timestamp:
            self.max_timestamp = place.info.max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > self.index_interval_bytes and place.position <= INT32_MAX:
            write_i32(&self.index_out, <int32_t>(last_offset - self.base_offset))
            write_i32(&self.index_out, <int32_t>place.position)
            if self.max_timestamp > self.indexed_timestamp:
                write_i64(&self.time_index_out, self.max_timestamp)
                write_i32(&self.time_index_out, <int32_t>(self.max_timestamp_offset - self.base_offset))
                self.indexed_timestamp = self.max_timestamp
            self.bytes_since_index = 0
        if place.info.leader_epoch > self.epoch:
            self.epoch = place.info.leader_epoch
            pair[0] = self.epoch
            pair[1] = place.info.base_offset
            write_raw(&self.epochs_out, pair, sizeof(pair))
        if place.info.producer_id >= 0:
            write_raw(&self.idempotent, place, sizeof(place_t))
        self.bytes_since_index += place.info.size
        self.batch_count += 1
        self.record_count += place.info.record_count
        self.next_offset = last_offset + 1
        self.valid_size += place.info.size
