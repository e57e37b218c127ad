"""Messages of magic 0 and 1: check in place, walk a set, encode. Findings are record_batch.pxd's."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t

cdef enum:
    # What `message_put` and the conversions answer besides findings.
    OUT_OF_MEMORY = -1

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
    int64_t size                 # bytes of the whole messages; where the bad one starts when there is a finding
    int64_t count
    int64_t base_offset          # to be added to the offsets as they stand there
    int64_t first_offset
    int64_t last_offset
    int32_t magic                # of every message; -1 in an empty set
    int32_t codec                # of the last compressed message
    bint ascends                 # each offset is above the one before

# The header alone: what is there, lengths and magic. `size` may go beyond the message; all of it must be there, but only the
# header is read.
cdef int message_header(const uint8_t *data, int64_t size, message_t *message) noexcept nogil

# message_header and the CRC.
cdef int message_verify(const uint8_t *data, int64_t size, message_t *message) noexcept nogil

# message_verify, a codec that the format has, and where key and value are.
cdef int message_check(const uint8_t *data, int64_t size, message_t *message) noexcept nogil

# The same for one that was checked before, at the same place: no CRC and no codec. Lengths and sizes are looked at again, for
# memory that may have changed since: nothing outside of `size` bytes is pointed at.
cdef int message_read(const uint8_t *data, int64_t size, message_t *message) noexcept nogil

# The walk over a set: every message checked, one magic, nothing left over.
# With a `wrapper`, the set is what it holds, inflated: at least one message, none compressed, all of its magic.
cdef int set_walk(const uint8_t *data, int64_t size, const message_t *wrapper, set_info_t *info) noexcept nogil

# One message behind the others. BATCH_OK, BATCH_TOO_LARGE when `out` would be larger than `limit`, or OUT_OF_MEMORY.
cdef int message_put(writer_t *out, int64_t limit, int magic, int attributes, int64_t offset, int64_t timestamp,
                     const uint8_t *key, int64_t key_size, const uint8_t *value, int64_t value_size) noexcept nogil

cdef class Message:
    """One message's fields for Python."""
    cdef message_t message
    cdef readonly int64_t position

cdef class SetInfo:
    """What a walk found, for Python."""
    cdef set_info_t info

cdef class MessageSetBuilder:
    """Encodes messages one behind the other. Owns their bytes."""
    cdef writer_t out
    cdef int64_t limit
    cdef readonly int magic
    cdef readonly bint compressed
    cdef readonly bint log_append_time
    cdef readonly int64_t count
    cdef readonly int64_t first_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t max_timestamp
    cdef int put(self, int64_t offset, int64_t timestamp, const uint8_t *key, int64_t key_size, const uint8_t *value,
                 int64_t value_size) noexcept nogil
