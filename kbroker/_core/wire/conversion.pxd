"""Conversion between record formats: the calls for compiled code. The calls for Python are in conversion.pyx."""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t
from kbroker._core.wire.record_batch cimport batch_info_t

# Appends the records of a whole uncompressed batch of magic 2 to `out`, as messages of `magic` (0 or 1), from
# `start_offset` on. Returns BATCH_OK, or else a finding of record_batch.pxd or OUT_OF_MEMORY; then some messages may
# have been written.
cdef int plain_messages(const uint8_t *batch, const batch_info_t *info, int64_t start_offset, int magic,
                        writer_t *out) noexcept nogil

# Appends an uncompressed message of magic 1 to `out`, as a message of magic 0, unless its offset is below
# `start_offset`. Returns BATCH_OK, a finding or OUT_OF_MEMORY.
cdef int older_message(const uint8_t *data, int64_t size, int64_t start_offset, writer_t *out) noexcept nogil
