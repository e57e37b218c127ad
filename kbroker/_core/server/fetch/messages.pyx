"""Converts batches of the log to messages in a response; see messages.pxd."""

from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc

from kbroker._core.log.io cimport io_read
from kbroker._core.log.partition cimport directory_failed
from kbroker._core.server.fetch.fetch cimport fetch_entry_t, fetch_t
from kbroker._core.server.serving cimport Serving, report
from kbroker._core.wire.conversion cimport older_message, plain_messages
from kbroker._core.wire.cursor cimport load_u32, write_raw, writer_reserve, writer_t
from kbroker._core.wire.error_codes cimport (
    UNKNOWN_SERVER_ERROR, CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, UNSUPPORTED_COMPRESSION_TYPE,
)
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.record_batch cimport (
    BATCH_OK, BATCH_OLD_MAGIC, OUT_OF_MEMORY, batch_error_code, batch_header, batch_info_t,
)

from kbroker.errors import KbrokerError

cdef enum:
    WINDOW = 262144              # bytes of the log that are read at a time; they stay in the processor's cache


cdef int write_messages(Serving serving, const fetch_t *f, const fetch_entry_t *e, writer_t *w) noexcept nogil:
    cdef int magic = 0 if f.version < 2 else 1
    cdef size_t start = w.size
    cdef int64_t position = e.read.position
    cdef int64_t end = position + e.read.size
    cdef int64_t capacity = min(e.read.size, <int64_t>WINDOW)
    cdef int64_t got, used = 0
    cdef int64_t wanted
    cdef uint8_t *grown
    cdef uint8_t *window = <uint8_t *>malloc(<size_t>capacity)
    cdef int code = 0 if window != NULL else UNKNOWN_SERVER_ERROR
    # Reserve about the size of the records, which is the size that the messages will have.
    if writer_reserve(w, <size_t>(e.read.size + (e.read.size >> 3))) != NULL:
        w.size = start
    while code == 0 and position < end:
        wanted = min(capacity, end - position)
        got = io_read(e.read.segment.fd, window, wanted, position, True)
        if got < 0:
            directory_failed(e.partition, <int>got)
            code = KAFKA_STORAGE_ERROR
            break
        code = convert_window(serving, window, got, e.offset, magic, w, &used)
        position += used
        if code == UNSUPPORTED_COMPRESSION_TYPE and w.size > start:
            code = 0             # batches before one with zstd can be sent; the error comes with a later fetch
            break
        if got < wanted or (used == 0 and position + got >= end):
            break                # the last batch is cut
        if code == 0 and used == 0:
            capacity = min(max(2 * capacity, LOG_OVERHEAD + <int64_t><int32_t>load_u32(window + BATCH_LENGTH)),
                           end - position)
            grown = <uint8_t *>realloc(window, <size_t>capacity)
            if grown == NULL:
                code = UNKNOWN_SERVER_ERROR
            else:
                window = grown
    free(window)
    if code:
        w.size = start
    return code


cdef int convert_window(Serving serving, const uint8_t *data, int64_t size, int64_t start_offset, int magic,
                        writer_t *w, int64_t *used) noexcept nogil:
    """Convert the whole batches in `data`; `used` becomes their size in bytes. Return 0 or an error code."""
    cdef batch_info_t info
    cdef int64_t at = 0
    cdef int64_t length
    cdef int finding
    used[0] = 0
    while size - at > BATCH_MAGIC:
        length = LOG_OVERHEAD + <int64_t><int32_t>load_u32(data + at + BATCH_LENGTH)
        if length <= BATCH_MAGIC:
            return CORRUPT_MESSAGE
        if length > size - at:
            break
        if data[at + BATCH_MAGIC] <= magic:
            write_raw(w, data + at, <size_t>length)
        else:
            finding = batch_header(data + at, length, &info)
            if finding == BATCH_OLD_MAGIC:
                info.attributes = data[at + MESSAGE_ATTRIBUTES]
            if (finding == BATCH_OK or finding == BATCH_OLD_MAGIC) and info.attributes & ATTRIBUTE_CODEC_MASK:
                finding = convert_elsewhere(serving, data + at, length, start_offset, magic, w)
                if finding:
                    return finding
            elif finding == BATCH_OLD_MAGIC:
                finding = older_message(data + at, length, start_offset, w)
            elif finding == BATCH_OK:
                finding = plain_messages(data + at, &info, start_offset, magic, w)
            if finding == OUT_OF_MEMORY:
                return UNKNOWN_SERVER_ERROR
            if finding != BATCH_OK:
                return batch_error_code(finding)
        at += length
        used[0] = at
    return 0


cdef int convert_elsewhere(Serving serving, const uint8_t *batch, int64_t size, int64_t start_offset, int magic,
                           writer_t *w) noexcept with gil:
    """Convert a compressed batch with the interpreter. Return 0 or an error code."""
    cdef const uint8_t[::1] messages
    try:
        batch_view = PyMemoryView_FromMemory(<char *>batch, size, PyBUF_READ)
        messages = serving.down_convert(batch_view, start_offset, magic, serving.max_inflated_size)
        if messages.shape[0]:
            write_raw(w, &messages[0], <size_t>messages.shape[0])
        return 0
    except KbrokerError as error:
        return error.code
    except BaseException as error:
        report(serving, "converting batches to messages", error)
        return UNKNOWN_SERVER_ERROR
