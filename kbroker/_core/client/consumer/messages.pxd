"""Converts messages of magic 0 and 1 to a batch of magic 2, for a consumer. Every record keeps offset and timestamp."""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t
from kbroker._core.wire.message_set cimport message_t

# Writes one uncompressed batch into `out`, which is empty. `data` is a flat message set, with `wrapper` NULL, or the
# decompressed inner messages of `wrapper`. Messages of magic 0 get the timestamp -1. The messages of a flat set must be
# alike (messages_alike) and checked before. The batch has no leader epoch and no CRC: it is for reading only. Returns
# BATCH_OK, a finding of wire/record_batch.pxd or OUT_OF_MEMORY.
cdef int batch_of_set(const uint8_t *data, int64_t size, const message_t *wrapper, writer_t *out) noexcept nogil

# Whether an uncompressed message can stand in one batch with the message at `first`: both have the same magic and the
# same type of timestamp, and under LogAppendTime the same timestamp.
cdef bint messages_alike(const uint8_t *first, const message_t *message) noexcept nogil
