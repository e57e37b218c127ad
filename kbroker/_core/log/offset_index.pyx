"""The sparse indexes of a segment for Python: look up, check, list. The searches are in offset_index.pxd."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.log.offset_index cimport (
    index_find,
    index_position,
    index_relative_offset,
    time_index_find,
    time_index_relative_offset,
    time_index_timestamp,
)
from kbroker._core.wire.layout cimport INDEX_ENTRY_SIZE, TIME_INDEX_ENTRY_SIZE


def find_offset(index, int64_t relative_offset):
    """Return (relative offset, position) of the last entry at or below `relative_offset` in an .index, or None."""
    cdef Py_buffer view
    cdef int64_t slot
    cdef int32_t found = 0, position = 0
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            slot = index_find(<const uint8_t *>view.buf, view.len // INDEX_ENTRY_SIZE, relative_offset)
            if slot >= 0:
                found = index_relative_offset(<const uint8_t *>view.buf, slot)
                position = index_position(<const uint8_t *>view.buf, slot)
    finally:
        PyBuffer_Release(&view)
    return (found, position) if slot >= 0 else None


def find_timestamp(time_index, int64_t timestamp):
    """Return (timestamp, relative offset) of the last entry at or before `timestamp` in a .timeindex, or None."""
    cdef Py_buffer view
    cdef int64_t slot, found = 0
    cdef int32_t relative_offset = 0
    PyObject_GetBuffer(time_index, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            slot = time_index_find(<const uint8_t *>view.buf, view.len // TIME_INDEX_ENTRY_SIZE, timestamp)
            if slot >= 0:
                found = time_index_timestamp(<const uint8_t *>view.buf, slot)
                relative_offset = time_index_relative_offset(<const uint8_t *>view.buf, slot)
    finally:
        PyBuffer_Release(&view)
    return (found, relative_offset) if slot >= 0 else None


cdef int64_t sane_entries(const uint8_t *index, int64_t entries, int64_t last_relative_offset,
                          int64_t log_size) noexcept nogil:
    cdef int64_t slot, offset, position, previous_offset = -1, previous_position = -1
    for slot in range(entries):
        offset = index_relative_offset(index, slot)
        position = index_position(index, slot)
        if offset <= previous_offset or position <= previous_position or offset > last_relative_offset \
                or position >= log_size:
            return slot
        previous_offset = offset
        previous_position = position
    return entries


cdef int64_t sane_time_entries(const uint8_t *index, int64_t entries, int64_t last_relative_offset) noexcept nogil:
    cdef int64_t slot, timestamp, offset, previous_timestamp = -1, previous_offset = -1
    for slot in range(entries):
        timestamp = time_index_timestamp(index, slot)
        offset = time_index_relative_offset(index, slot)
        if timestamp <= previous_timestamp or offset < previous_offset or offset < 0 or offset > last_relative_offset:
            return slot
        previous_timestamp = timestamp
        previous_offset = offset
    return entries


def count_sane_offsets(index, int64_t last_relative_offset, int64_t log_size):
    """Return how many leading entries of an .index are good: offsets and positions grow and are inside the segment.

    An unused, zeroed tail is not counted.
    """
    cdef Py_buffer view
    cdef int64_t count
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            count = sane_entries(<const uint8_t *>view.buf, view.len // INDEX_ENTRY_SIZE, last_relative_offset,
                                 log_size)
    finally:
        PyBuffer_Release(&view)
    return count


def count_sane_timestamps(time_index, int64_t last_relative_offset):
    """Return how many leading .timeindex entries are good.

    In good entries timestamps grow, and offsets do not fall and are inside the segment.
    """
    cdef Py_buffer view
    cdef int64_t count
    PyObject_GetBuffer(time_index, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            count = sane_time_entries(<const uint8_t *>view.buf, view.len // TIME_INDEX_ENTRY_SIZE,
                                      last_relative_offset)
    finally:
        PyBuffer_Release(&view)
    return count


def offset_entries(index):
    """Return all entries of an .index as (relative offset, position); for dumps."""
    return entries_of(index, False)


def timestamp_entries(time_index):
    """Return all entries of a .timeindex as (timestamp, relative offset); for dumps."""
    return entries_of(time_index, True)


cdef list entries_of(index, bint by_time):
    cdef Py_buffer view
    cdef int64_t slot
    cdef const uint8_t *data
    entries = []
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    try:
        data = <const uint8_t *>view.buf
        for slot in range(view.len // (TIME_INDEX_ENTRY_SIZE if by_time else INDEX_ENTRY_SIZE)):
            if by_time:
                entries.append((time_index_timestamp(data, slot), time_index_relative_offset(data, slot)))
            else:
                entries.append((index_relative_offset(data, slot), index_position(data, slot)))
    finally:
        PyBuffer_Release(&view)
    return entries
