"""Messages of magic 0 and 1: checking them in place, walking over a set, encoding.

Findings are those of record_batch.pxd.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t
from kbroker._core.wire.record_batch cimport batch_info_t

ctypedef struct message_t:
    # Filled by message_header; all values in host order.
    int64_t offset
    int64_t timestamp            # -1 in magic 0
    int32_t size                 # whole message in bytes, LOG_OVERHEAD included
    int32_t magic
    int32_t attributes
    # Filled by message_check and message_read. Positions are from the message's first byte; size -1 is null.
    int32_t key_position
    int32_t key_size
    int32_t value_position
    int32_t value_size

ctypedef struct set_info_t:
    # Filled by set_walk. With a wrapper, offsets are absolute.
    int64_t size                 # bytes of the messages; if there is a finding, where the bad one starts
    int64_t count
    int64_t base_offset          # to be added to the offsets that the messages have in the set
    int64_t first_offset
    int64_t last_offset
    int32_t magic                # of every message; -1 in an empty set
    int32_t codec                # of the last compressed message; 0: no message is compressed
    bint ascends                 # each offset is above the one before

# Each of the following functions returns BATCH_OK or a finding.

# Reads and checks a message's header: lengths and magic. The `size` bytes at `data` must hold the whole message and may
# hold more; only the header is read.
cdef int message_header(const uint8_t *data, int64_t size, message_t *message) noexcept nogil

# Checks what message_header does, and the CRC.
cdef int message_verify(const uint8_t *data, int64_t size, message_t *message) noexcept nogil

# Sets `info` for a message as for a batch of one record, the last one of a compressed message. Checks what
# message_header does or, with `verify`, message_verify.
cdef int message_as_batch(const uint8_t *data, int64_t size, bint verify, batch_info_t *info) noexcept nogil

# Checks what message_verify does, and that the format has the codec. Finds key and value.
cdef int message_check(const uint8_t *data, int64_t size, message_t *message) noexcept nogil

# Reads a message that message_check has checked before: CRC and codec are not checked again. Lengths and sizes are,
# because the memory may have changed since; nothing outside of the `size` bytes is pointed at.
cdef int message_read(const uint8_t *data, int64_t size, message_t *message) noexcept nogil

# Checks a whole set: every message is checked, all have the same magic, and no bytes are left over. With a `wrapper`,
# the set has the decompressed inner messages of this message: there must be at least one, none compressed, all of the
# wrapper's magic.
cdef int set_walk(const uint8_t *data, int64_t size, const message_t *wrapper, set_info_t *info) noexcept nogil

# Appends a message to `out`. Returns BATCH_OK, BATCH_TOO_LARGE if `out` would become larger than `limit`, or
# OUT_OF_MEMORY.
cdef int message_put(writer_t *out, int64_t limit, int magic, int attributes, int64_t offset, int64_t timestamp,
                     const uint8_t *key, int64_t key_size, const uint8_t *value, int64_t value_size) noexcept nogil

cdef class Message:
    """The fields of one message, for Python."""
    cdef message_t message
    cdef readonly int64_t position

cdef class SetInfo:
    """The result of a walk over a set, for Python."""
    cdef set_info_t info

cdef class MessageSetBuilder:
    """Encodes messages one behind the other, and owns their bytes."""
    cdef writer_t out
    cdef int64_t limit
    cdef readonly int magic
    cdef readonly bint compressed
    cdef readonly bint log_append_time
    cdef readonly int64_t count
    cdef readonly int64_t first_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t max_timestamp
    cdef int add(self, int64_t offset, int64_t timestamp, const uint8_t *key, int64_t key_size, const uint8_t *value,
                 int64_t value_size) noexcept nogil
