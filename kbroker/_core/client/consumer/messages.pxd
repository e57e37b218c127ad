"""Messages of magic 0 and 1 as a batch of magic 2, for a consumer: every record keeps its offset and its time."""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t
from kbroker._core.wire.message_set cimport message_t

# Writes one batch without codec into `out`, which is empty: of a flat set, or of what `wrapper` holds, inflated. Messages of magic 0
# have the timestamp -1. Those of a flat set are of one kind (messages_alike), and were checked before. There is no leader epoch, and
# no CRC: the batch is for reading only. BATCH_OK, a finding of wire/record_batch.pxd or OUT_OF_MEMORY.
cdef int batch_of_set(const uint8_t *data, int64_t size, const message_t *wrapper, writer_t *out) noexcept nogil

# Whether a message without codec can stand in one batch with the one at `first`: their times mean the same.
cdef bint messages_alike(const uint8_t *first, const message_t *message) noexcept nogil
