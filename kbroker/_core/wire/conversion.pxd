"""Records of one format in another, for those who have the bytes at hand; Python's calls are in conversion.pyx."""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t
from kbroker._core.wire.record_batch cimport batch_info_t

# The records of a whole batch of magic 2 without codec as messages of `magic`, from `start_offset` on, behind what is in `out`.
# BATCH_OK, a finding of record_batch.pxd or OUT_OF_MEMORY; then a part of them may have been written.
cdef int plain_messages(const uint8_t *batch, const batch_info_t *info, int64_t start_offset, int magic, writer_t *out) noexcept nogil

# A message of magic 1 without codec as one of magic 0, unless it stands before `start_offset`. The same answers.
cdef int older_message(const uint8_t *data, int64_t size, int64_t start_offset, writer_t *out) noexcept nogil
