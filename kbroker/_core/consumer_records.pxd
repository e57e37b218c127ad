"""Records as a consumer gets them: those of one poll, over the memory that they came in."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.columns cimport RecordColumns
from kbroker._core.consumer_chunk cimport batch_place_t, chunk_t
from kbroker._core.consumer_record cimport RecordSource
from kbroker._core.record cimport record_t

ctypedef struct payload_t:
    # What stands behind the header of a batch, inflated.
    const uint8_t *header
    const uint8_t *records
    const uint8_t *end
    int32_t count
    int32_t skipped

ctypedef struct part_t:
    # Records `first` to `end` - 1 of a chunk.
    int64_t first
    int64_t end
    int64_t before           # records of the parts before this one

cdef class Chunk:
    """The records of one partition from one response. Owns the chunk_t."""
    cdef chunk_t *chunk
    cdef RecordSource source
    cdef object inflate            # callable(codec, data, magic) -> bytes
    # A batch that a poll has cut is inflated once: what it has become is kept until the next one is begun.
    cdef int32_t kept_batch        # -1: none
    cdef RecordSource kept
    cdef payload_t kept_payload
    cdef object failure            # UnreadableRecords: what follows could not be inflated
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

# The chunk_t becomes the Chunk's, whatever happens.
cdef Chunk new_chunk(chunk_t *chunk, str topic, int32_t partition, object inflate)

cdef class Records:
    cdef list chunks
    cdef part_t *parts
    cdef int32_t part_count
    cdef int32_t part_capacity
    cdef int64_t count
    # The batch that was last looked into by index.
    cdef int32_t near_part
    cdef int32_t near_batch
    cdef RecordSource near_source
    cdef const uint8_t *near_header
    cdef record_t *near_records
    cdef int add(self, Chunk chunk, int64_t first, int64_t end) except -1
    cdef int load(self, int32_t part, int32_t batch) except -1
    cdef int32_t part_of(self, int64_t number) noexcept nogil
    cdef int collect(self, RecordColumns columns, Chunk chunk, part_t *part) except -1
    cdef Records cut(self, int64_t start, int64_t stop)

cdef class RecordIterator:
    """Goes over records once. After an error it goes on with the next batch; one of `read` stays where it is."""
    cdef Records records         # None: it has ended
    cdef bint stays
    cdef int32_t part
    cdef int32_t batch
    cdef int64_t part_left       # records of the part that are in batches behind this one
    cdef int32_t left            # records of this batch
    cdef int32_t last_delta      # offset delta of the record before, -1: it is not of this batch
    cdef RecordSource source
    cdef const uint8_t *header
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef object unreadable(self)
    cdef bint next_batch(self) except -1
    cdef int skip(self, int32_t count) except -1
    cdef void fail(self) noexcept
    cdef void stop(self) noexcept
    cdef int64_t next_of(self, int32_t part) noexcept
    cdef int64_t position(self) noexcept

cdef Records new_records()
