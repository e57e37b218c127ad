"""The records of one poll: views of the memory that they were received in."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.client.consumer.batches cimport Chunk
from kbroker._core.client.consumer.record cimport RecordSource
from kbroker._core.wire.columns cimport RecordColumns
from kbroker._core.wire.record cimport record_t

ctypedef struct part_t:
    # Records `first` to `end` - 1 of a chunk.
    int64_t first
    int64_t end
    int64_t before           # records of the parts before this one

cdef class Handout:
    """Tells whether somebody got the records of a poll.

    It is shared by the FetchPoll and the Records that the poll returned. Nobody else refers to it. As long as the
    Records do, they exist, so somebody may have them.
    """
    cdef bint is_seen            # somebody has looked at the records

cdef class Records:
    cdef Handout handout         # None if no poll has to know whether somebody looks at these records
    cdef list chunks
    cdef part_t *parts
    cdef int32_t part_count
    cdef int32_t part_capacity
    cdef int64_t count
    # The batch of the last record that was got by index.
    cdef int32_t near_part
    cdef int32_t near_batch
    cdef RecordSource near_source
    cdef const uint8_t *near_header
    cdef record_t *near_records
    cdef void note_seen(self) noexcept
    cdef int add(self, Chunk chunk, int64_t first, int64_t end) except -1
    cdef int load(self, int32_t part, int32_t batch) except -1
    cdef int32_t part_of(self, int64_t number) noexcept nogil
    cdef int collect(self, RecordColumns columns, Chunk chunk, part_t *part) except -1
    cdef Records cut(self, int64_t start, int64_t stop)

cdef class RecordIterator:
    """Iterates over records once.

    After a batch that cannot be read it goes on with the next batch; if `stays` is set, it tries the same batch again.
    """
    cdef Records records         # None: the iterator has ended
    cdef bint stays              # set by FetchPoll, for `reading`
    cdef int32_t part
    cdef int32_t batch
    cdef int64_t part_left       # records of the part that are in batches behind this one
    cdef int32_t left            # records of this batch that have not been given
    cdef int32_t last_delta      # offset delta of the record that was given last; -1: none of this batch was given
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
