"""Handing out what has been fetched. One poll at a time; it takes records from `ready` and moves positions.

What is polled `to_read` is handed out by an iterator, record by record. Where its partitions stand is found out when somebody asks, so
that nothing is done for each record. What is left of it (`put_back`) is `begun`.

Records that a poll returns are the caller's once he has looked at them or keeps them. An exception of a signal handler, or a task that is cancelled, may
let go of them before: when nobody has looked at them and nobody has them, positions are those before that poll, and the next one fetches them again.
"""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.client.consumer.batches cimport Chunk
from kbroker._core.client.consumer.partitions cimport FetchPartitions, fetch_partition_t
from kbroker._core.client.consumer.records cimport Handout, Records

cdef class FetchPoll(FetchPartitions):
    cdef object inflate
    cdef list begun              # of a Chunk that a poll has cut: (chunk, key of its partition, generation, next record)
    cdef dict taken              # by key of a partition: generation, position and epoch before the last poll took something of it
    # By key of a partition: a Chunk without records behind the last one of it that the last poll took, and its generation. Only
    # there the position is behind the last record: at a marker, or what compaction has left of a batch.
    cdef dict passed
    cdef Handout handout         # of the last poll, None: it has returned nothing, or what it has returned is not to be taken again
    cdef readonly bint has_given # whether the last poll had records
    # To be raised by the next poll: (error, key of its partition or None, generation, whether by each until somebody seeks).
    cdef list errors
    cdef bint interrupted

    cdef int settle_handout(self) except -1
    cdef bint is_lost(self) noexcept
    cdef bint find_lost(self, tuple key, int64_t *position, int32_t *epoch) except -1
    cdef int begin_reading(self, Records records) except -1
    cdef int32_t unread_part(self, tuple key) except -2
    cdef int take_begun(self, Records records, int64_t most) except -1
    cdef int note_taken(self, tuple key, int64_t generation) except -1
    cdef int take_again(self) except -1
    cdef int take_ready(self, Records records, int64_t most) except -1
    cdef int64_t position_at(self, Chunk chunk, int64_t first, int64_t end) except -1
    cdef int deliver(self, Records records, Chunk chunk, tuple key, int64_t generation, int64_t first, int64_t most) except -1
    cdef int stop_at(self, error, tuple key, int64_t generation) except -1
    cdef int raise_one(self) except -1
    cdef bint waits(self, const fetch_partition_t *p) noexcept nogil
