"""The batches of one partition from one response: where the records of each batch are, decompressed if necessary."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.client.consumer.chunk cimport batch_place_t, chunk_t
from kbroker._core.client.consumer.record cimport RecordSource
from kbroker._core.wire.record_batch cimport batch_info_t

ctypedef struct payload_t:
    # The header of a batch and the records behind it, decompressed.
    const uint8_t *header
    const uint8_t *records
    const uint8_t *end
    int32_t count            # records in the batch
    int32_t skipped          # records at the beginning of the batch that stand before the position

cdef class Chunk:
    """The records of one partition from one response. Owns the chunk_t."""
    cdef chunk_t *chunk
    cdef RecordSource source
    cdef object inflate            # callable(codec, data, magic) -> bytes
    # A poll may end in the middle of a compressed batch. Its decompressed records are kept until a poll ends elsewhere,
    # so that they are decompressed only once.
    cdef int32_t kept_batch        # index of this batch; -1: none
    cdef RecordSource kept
    cdef payload_t kept_payload
    cdef object failure            # UnreadableRecords if the batch behind the last one cannot be decompressed, or None
    cdef int settle(self) except -1
    cdef int settle_batch(self, int32_t batch) except -1
    cdef int32_t epoch_before(self, int64_t number) noexcept nogil
    cdef int keep(self, int64_t number) except -1
    cdef int32_t batch_of(self, int64_t number) noexcept nogil
    cdef RecordSource open(self, int32_t batch, payload_t *payload)
    cdef RecordSource open_messages(self, const batch_place_t *place, payload_t *payload)
    cdef object inflated(self, int codec, const uint8_t *data, int64_t size, int magic, int64_t offset)
    cdef int64_t offset_of(self, int64_t number) except -1
    cdef object unreadable(self, int finding, int64_t offset)

# Makes a Chunk of a chunk_t, which the callee owns from here on, even if this raises.
cdef Chunk new_chunk(chunk_t *chunk, str topic, int32_t partition, object inflate)

# Reads the header of a batch into `info`.
cdef void header_of(const payload_t *payload, batch_info_t *info) noexcept nogil
