"""Hands out the records that were fetched. One poll at a time takes records from `ready` and moves positions.

Records that are polled with `to_read` are handed out one by one, by an iterator. The positions of their partitions are
computed when somebody asks for them, so that no work is done for each record. The records that iteration has left over
go to `begun` (`put_back`).

Records that a poll returns belong to the caller once the caller has looked at them, or as long as it keeps them. An
exception of a signal handler, or the cancelling of a task, may drop them before that. If nobody has looked at them and
nobody keeps them, positions are those before that poll, and the next poll fetches the records again.
"""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.client.consumer.batches cimport Chunk
from kbroker._core.client.consumer.partitions cimport FetchPartitions, fetch_partition_t
from kbroker._core.client.consumer.records cimport Handout, Records

cdef class FetchPoll(FetchPartitions):
    cdef object inflate
    # Chunks of which only a part has been handed out: (chunk, key of its partition, generation, next record). A key is
    # (topic, partition).
    cdef list begun
    # key of a partition -> (generation, position, epoch) before the last poll took something of the partition.
    cdef dict taken
    # key of a partition -> (chunk, generation). The chunk has no records, only a transaction marker or what compaction
    # has left of a batch; the last poll took it behind the last records of the partition. The position is behind this
    # chunk.
    cdef dict passed
    # Belongs to the records that the last poll has returned. None if it has returned none, or if they are not to be
    # taken back.
    cdef Handout handout
    cdef readonly bint has_given # whether the last poll had records
    # What the next poll is to raise: (error, key of its partition or None, generation, whether every poll raises it
    # until somebody seeks).
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
    cdef int deliver(self, Records records, Chunk chunk, tuple key, int64_t generation, int64_t first,
                     int64_t most) except -1
    cdef int stop_at(self, error, tuple key, int64_t generation) except -1
    cdef int raise_one(self) except -1
    cdef bint waits(self, const fetch_partition_t *p) noexcept nogil
