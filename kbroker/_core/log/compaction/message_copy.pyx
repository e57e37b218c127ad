"""Compaction of messages of magic 0 and 1, which keep their magic (Kafka 3.9: Cleaner, MemoryRecords.filterTo).

A message stays when the map has no newer offset of its key; a message without a key is removed. Tombstones have no
delete horizon in these formats: the caller says whether they stay. A compressed message that loses inner messages is
written anew with the others: its offset is that of the last one, and the inner offsets are as the magic has them. A
compressed message that loses none is copied unchanged.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t, uint64_t

from kbroker._core.log.compaction.copied_bytes cimport copied_keep, copied_t, copied_writer
from kbroker._core.log.compaction.dedupe_map cimport dedupe_get, dedupe_hash, dedupe_hash_t, dedupe_enter
from kbroker._core.wire.cursor cimport write_raw
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.message_set cimport (
    MessageSetBuilder, message_check, message_read, message_t, set_info_t, set_walk,
)
from kbroker._core.wire.record_batch cimport BATCH_BAD_COUNT, BATCH_BAD_RECORD, BATCH_OK, BATCH_TOO_SHORT, OUT_OF_MEMORY


cdef int feed_key(message_pass_t *run, const uint8_t *data, const message_t *message, int64_t offset) noexcept nogil:
    cdef dedupe_hash_t hash
    run.records_read += 1
    if message.key_size >= 0 and offset >= run.start_offset:
        hash = dedupe_hash(run.map, data + message.key_position, message.key_size)
        if not dedupe_enter(run.map, &hash, offset):
            pass_offset(run, offset - 1)
            return DEDUPE_MAP_FULL
    return BATCH_OK


cdef inline void pass_offset(message_pass_t *run, int64_t offset) noexcept nogil:
    if offset >= run.start_offset and offset > run.map.latest_offset:
        run.map.latest_offset = offset


cdef inline bint stays(const message_pass_t *run, const uint8_t *data, const message_t *message,
                       int64_t offset) noexcept nogil:
    cdef dedupe_hash_t hash
    if offset > run.map.latest_offset:
        return True
    if message.key_size < 0:
        return False
    hash = dedupe_hash(run.map, data + message.key_position, message.key_size)
    if offset < dedupe_get(run.map, &hash):
        return False
    return message.value_size >= 0 or run.retain_tombstones


cdef int open_message(message_pass_t *run, const uint8_t *data, int64_t size, message_t *message) noexcept nogil:
    cdef int finding = message_check(data, size, message)
    if finding != BATCH_OK:
        return finding
    run.size = message.size
    return BATCH_OK if message.offset >= 0 else BATCH_BAD_COUNT


cdef int walk_inside(message_pass_t *run, const uint8_t *data, const message_t *wrapper, set_info_t *info,
                     object inflate, MessageSetBuilder kept) except -1 with gil:
    """Walk the messages inside a compressed one: feed their keys or, with `kept`, put those that stay into it."""
    cdef Py_buffer view
    cdef message_t message
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef int64_t offset
    cdef int finding
    payload = PyMemoryView_FromMemory(<char *>data + wrapper.value_position, wrapper.value_size, PyBUF_READ)
    PyObject_GetBuffer(inflate(wrapper.attributes & ATTRIBUTE_CODEC_MASK, payload, wrapper.magic), &view, PyBUF_SIMPLE)
    try:
        with nogil:
            p = <const uint8_t *>view.buf
            end = p + view.len
            finding = set_walk(p, view.len, wrapper, info)
            if finding == BATCH_OK and (info.first_offset < 0 or not info.ascends):
                finding = BATCH_BAD_COUNT    # two messages of one offset: the map could not tell the newer one
            while finding == BATCH_OK and p < end:
                finding = message_read(p, end - p, &message)
                if finding != BATCH_OK:
                    break
                offset = <int64_t>(<uint64_t>message.offset + <uint64_t>info.base_offset)
                if kept is None:
                    finding = feed_key(run, p, &message, offset)
                elif stays(run, p, &message, offset):
                    finding = kept.add(offset, wrapper.timestamp if kept.log_append_time else message.timestamp,
                                       p + message.key_position, message.key_size, p + message.value_position,
                                       message.value_size)
                p += message.size
        if finding == OUT_OF_MEMORY:
            raise MemoryError
        # BATCH_TOO_SHORT would say that the compressed message itself is cut off.
        return finding if finding != BATCH_TOO_SHORT else BATCH_BAD_RECORD
    finally:
        PyBuffer_Release(&view)


cdef int feed_message(message_pass_t *run, const uint8_t *data, int64_t size, object inflate) except -1 nogil:
    cdef message_t message
    cdef set_info_t info
    cdef int finding = open_message(run, data, size, &message)
    if finding != BATCH_OK:
        return finding
    if message.attributes & ATTRIBUTE_CODEC_MASK:
        finding = walk_inside(run, data, &message, &info, inflate, None)
    else:
        info.last_offset = message.offset
        finding = feed_key(run, data, &message, message.offset)
    if finding == BATCH_OK:
        pass_offset(run, info.last_offset)
    return finding


cdef int copy_message(message_pass_t *run, const uint8_t *data, int64_t size, copied_t *copied, object inflate,
                      object deflate) except -1 nogil:
    cdef message_t message
    cdef int finding = open_message(run, data, size, &message)
    if finding != BATCH_OK:
        return finding
    if message.attributes & ATTRIBUTE_CODEC_MASK:
        return copy_set(run, data, &message, copied, inflate, deflate)
    run.records_read += 1
    if stays(run, data, &message, message.offset):
        copied_keep(copied, data, message.size)
        run.messages_kept += 1
        run.records_kept += 1
    return BATCH_OK


cdef int copy_set(message_pass_t *run, const uint8_t *data, const message_t *wrapper, copied_t *copied, object inflate,
                  object deflate) except -1 with gil:
    cdef set_info_t info
    cdef int codec = wrapper.attributes & ATTRIBUTE_CODEC_MASK
    cdef MessageSetBuilder kept = MessageSetBuilder(
        wrapper.magic, compressed=True, log_append_time=wrapper.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0)
    cdef int finding = walk_inside(run, data, wrapper, &info, inflate, kept)
    cdef bytes made
    if finding != BATCH_OK:
        return finding
    run.records_read += info.count
    run.records_kept += kept.count
    if kept.count == info.count:
        copied_keep(copied, data, wrapper.size)
    elif kept.count:
        made = kept.wrap(codec, deflate(codec, kept.messages(), wrapper.magic))
        write_raw(copied_writer(copied), <const uint8_t *>made, <size_t>len(made))
    run.messages_kept += kept.count > 0
    return BATCH_OK
