"""Compaction of messages of magic 0 and 1; they stay in their magic (Apache Kafka 3.9: Cleaner, MemoryRecords.filterTo).

A message stays when the map has no newer offset of its key; one without a key goes. Tombstones have no delete horizon here:
who calls says whether they stay. A compressed message of which something goes is written anew with what is left: offset of
the last one, and the inner offsets as the magic has them. One of which nothing goes is copied as it lies.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbroker._core.cursor cimport write_raw, writer_t
from kbroker._core.dedupe_map cimport dedupe_get, dedupe_map_t, dedupe_put
from kbroker._core.layout cimport *
from kbroker._core.message_set cimport (
    OUT_OF_MEMORY, MessageSetBuilder, message_check, message_t, set_info_t, set_walk,
)
from kbroker._core.record_batch cimport BATCH_BAD_COUNT, BATCH_OK

cdef enum:
    PY_READ = 0x100


cdef int feed_key(message_pass_t *run, const uint8_t *data, const message_t *message, int64_t offset) noexcept nogil:
    run.records_read += 1
    if message.key_size >= 0 and offset >= run.start_offset:
        if not dedupe_put(run.map, data + message.key_position, message.key_size, offset):
            pass_offset(run, offset - 1)
            return DEDUPE_MAP_FULL
    return BATCH_OK


cdef inline void pass_offset(message_pass_t *run, int64_t offset) noexcept nogil:
    if offset >= run.start_offset and offset > run.map.latest_offset:
        run.map.latest_offset = offset


cdef inline bint stays(const message_pass_t *run, const uint8_t *data, const message_t *message, int64_t offset) noexcept nogil:
    if offset > run.map.latest_offset:
        return True
    if message.key_size < 0 or offset < dedupe_get(run.map, data + message.key_position, message.key_size):
        return False
    return message.value_size >= 0 or run.retain_tombstones


cdef int feed_message(message_pass_t *run, const uint8_t *data, int64_t size, object inflate) except -1 nogil:
    cdef message_t message
    cdef int finding = message_check(data, size, &message)
    if finding != BATCH_OK:
        return finding
    run.size = message.size
    if message.offset < 0:
        return BATCH_BAD_COUNT
    if message.attributes & ATTRIBUTE_CODEC_MASK:
        return feed_set(run, data, &message, inflate)
    finding = feed_key(run, data, &message, message.offset)
    if finding == BATCH_OK:
        pass_offset(run, message.offset)
    return finding


cdef int feed_set(message_pass_t *run, const uint8_t *data, const message_t *wrapper, object inflate) except -1 with gil:
    cdef Py_buffer view
    cdef message_t message
    cdef set_info_t info
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef int finding
    PyObject_GetBuffer(inflate_set(data, wrapper, inflate), &view, PyBUF_SIMPLE)
    try:
        with nogil:
            finding = open_set(<const uint8_t *>view.buf, view.len, wrapper, &info)
            p = <const uint8_t *>view.buf
            end = p + view.len
            while finding == BATCH_OK and p < end:
                finding = message_check(p, end - p, &message)
                if finding == BATCH_OK:
                    finding = feed_key(run, p, &message, offset_in(&info, &message))
                    p += message.size
            if finding == BATCH_OK:
                pass_offset(run, info.last_offset)
        return finding
    finally:
        PyBuffer_Release(&view)


cdef object inflate_set(const uint8_t *data, const message_t *wrapper, object inflate):
    view = PyMemoryView_FromMemory(<char *>data + wrapper.value_position, wrapper.value_size, PY_READ)
    return inflate(wrapper.attributes & ATTRIBUTE_CODEC_MASK, view, wrapper.magic)


cdef int open_set(const uint8_t *data, int64_t size, const message_t *wrapper, set_info_t *info) noexcept nogil:
    """The checks of set_walk; besides, no offset that is not in order: the map would not know which of two is the newer."""
    cdef message_t message
    cdef const uint8_t *end = data + size
    cdef int64_t before = -1
    cdef int64_t offset
    cdef int finding = set_walk(data, size, wrapper, info)
    while finding == BATCH_OK and data < end:
        finding = message_check(data, end - data, &message)
        offset = offset_in(info, &message)
        if finding == BATCH_OK and (offset <= before or offset > info.last_offset):
            finding = BATCH_BAD_COUNT
        before = offset
        data += message.size
    return finding


cdef inline int64_t offset_in(const set_info_t *info, const message_t *message) noexcept nogil:
    return <int64_t>(<uint64_t>message.offset + <uint64_t>info.base_offset)


cdef int copy_message(message_pass_t *run, const uint8_t *data, int64_t size, writer_t *out, object inflate,
                      object deflate) except -1 nogil:
    cdef message_t message
    cdef int finding = message_check(data, size, &message)
    if finding != BATCH_OK:
        return finding
    run.size = message.size
    if message.offset < 0:
        return BATCH_BAD_COUNT
    if message.attributes & ATTRIBUTE_CODEC_MASK:
        return copy_set(run, data, &message, out, inflate, deflate)
    run.records_read += 1
    if stays(run, data, &message, message.offset):
        write_raw(out, data, <size_t>message.size)
        run.messages_kept += 1
        run.records_kept += 1
    return BATCH_OK


cdef int copy_set(message_pass_t *run, const uint8_t *data, const message_t *wrapper, writer_t *out, object inflate,
                  object deflate) except -1 with gil:
    cdef Py_buffer view
    cdef message_t message
    cdef set_info_t info
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef int64_t offset
    cdef int finding
    cdef int codec = wrapper.attributes & ATTRIBUTE_CODEC_MASK
    cdef bint is_stamped = wrapper.magic == 1 and wrapper.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0
    cdef MessageSetBuilder kept = MessageSetBuilder(wrapper.magic, compressed=True, log_append_time=is_stamped)
    cdef bytes made
    PyObject_GetBuffer(inflate_set(data, wrapper, inflate), &view, PyBUF_SIMPLE)
    try:
        with nogil:
            finding = open_set(<const uint8_t *>view.buf, view.len, wrapper, &info)
            p = <const uint8_t *>view.buf
            end = p + view.len
            while finding == BATCH_OK and p < end:
                finding = message_check(p, end - p, &message)
                offset = offset_in(&info, &message)
                if finding == BATCH_OK and stays(run, p, &message, offset):
                    finding = kept.put(offset, wrapper.timestamp if is_stamped else message.timestamp, p + message.key_position,
                                       message.key_size, p + message.value_position, message.value_size)
                p += message.size
    finally:
        PyBuffer_Release(&view)
    if finding == OUT_OF_MEMORY:
        raise MemoryError
    if finding != BATCH_OK:
        return finding
    run.records_read += info.count
    run.records_kept += kept.count
    if kept.count == info.count:
        write_raw(out, data, <size_t>wrapper.size)
    elif kept.count:
        made = kept.wrap(codec, deflate(codec, kept.messages(), wrapper.magic))
        write_raw(out, <const uint8_t *>made, <size_t>len(made))
    run.messages_kept += kept.count > 0
    return BATCH_OK
