"""The partitions that a consumer fetches, and the records that wait to be polled.

A partition's `position` is the offset that the user has come to; its `fetch_offset` is the one that is asked for next.
The records between them are in chunks that wait to be polled (`ready_t`). `generation` changes whenever the position is
set from outside: an answer to a request of an earlier generation is dropped when it comes.

The lock guards the partitions, the `ready` list and the engine's nodes (fetch.pxd). It is never held while a response
is parsed, a checksum computed or a socket used, and the GIL is never acquired under it.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.sync cimport mutex_t
from kbroker._core.client.consumer.chunk cimport chunk_t
from kbroker._core.client.consumer.fetch_response cimport fetch_answer_t
from kbroker._core.client.consumer.records cimport RecordIterator
from kbroker._core.client.pump cimport Engine

ctypedef struct fetch_partition_t:
    int32_t refs             # under the lock: of the engine's list, of requests under way, of `ready` and of `news`
    uint8_t *topic           # owned
    int16_t topic_size
    int32_t partition
    int8_t assigned          # False: it is taken out of the list once it is in no fetch session
    int8_t paused            # bits: paused by the user; held, as it is about to be removed
    int8_t blocked           # not fetched after an error, until Python has decided
    int8_t begun             # a poll has handed out only part of one of its chunks: the rest is handed out first
    int32_t node_id          # the leader; -1: not known
    int32_t leader_epoch
    int32_t read_node_id     # the replica that the leader prefers for us; -1: none
    int64_t read_until_ms    # monotonic; until when `read_node_id` counts
    int64_t fetch_offset     # -1: not known yet
    int64_t stop_offset      # no Fetch asks for this offset or a later one
    int64_t position
    int32_t fetch_epoch      # leader epoch of the record before fetch_offset; -1: not known (KIP-320)
    int32_t position_epoch   # leader epoch of the record before `position`; -1: not known
    int64_t generation       # from FetchPartitions.generations, never given twice, not even if it is assigned again
    int64_t high_watermark   # -1: not known, as in the next two
    int64_t last_stable_offset
    int64_t log_start_offset
    # The node whose fetch session has the partition (-1: none), and the leader epoch and offset it was last asked for
    # there.
    int32_t session_node_id
    int32_t session_leader_epoch
    int64_t session_offset

ctypedef struct ready_t:
    # Records that wait to be polled.
    ready_t *next
    chunk_t *chunk
    fetch_partition_t *partition     # a reference
    int64_t generation

ctypedef struct news_t:
    # An error that Python decides about.
    news_t *next
    fetch_partition_t *partition     # a reference
    int64_t generation
    int64_t offset
    int32_t leader_id
    int32_t leader_epoch
    int16_t error

# Gives up one reference. The caller holds the lock.
cdef void partition_release(fetch_partition_t *p) noexcept nogil
# Frees an entry of `ready`, its reference and its chunk if it still has one. The caller holds the lock.
cdef void ready_free(ready_t *ready) noexcept nogil

cdef class FetchPartitions(Engine):
    cdef mutex_t lock
    cdef fetch_partition_t **partitions
    cdef int32_t partition_count
    cdef int32_t partition_capacity
    cdef int64_t generations     # the last generation that was given
    cdef ready_t *ready          # oldest first
    cdef ready_t **ready_end
    cdef news_t *news            # newest first
    cdef int64_t ready_bytes     # atomic; bytes of the chunks in `ready`
    cdef int32_t signal          # atomic; a futex: changes when poll has something to look at
    cdef int32_t waiting         # atomic; the number of polls that sleep on `signal`
    cdef int32_t listening       # atomic: Python wants to be told when `signal` is no longer `heard`
    cdef int32_t heard
    cdef dict by_name            # (topic, partition) -> address of its fetch_partition_t; with the GIL
    # Iterates over the records of the last poll that was made to be read record by record; None: there is none.
    # Positions are behind all its records; `put_back` sets them back to the first record that was not read.
    cdef RecordIterator iterator
    # For each part of the last poll: (key of its partition, generation, position before the part, leader epoch before
    # it).
    cdef list delivered
    cdef dict unread             # key of a partition -> the numbers of its parts in the last poll

    cdef fetch_partition_t *find(self, topic, partition) except NULL
    cdef bint find_unread(self, topic, partition, int64_t *position, int32_t *epoch) except -1
    cdef int put_back(self) except -1
    cdef int leave_unread(self, topic, partition) except -1
    cdef fetch_partition_t *revive(self, bytes name, int32_t partition, int64_t offset, int32_t epoch) noexcept
    cdef void move(self, fetch_partition_t *p, int64_t offset, int32_t epoch) noexcept nogil
    cdef void awaken(self) noexcept nogil
    cdef bint is_through(self) noexcept nogil
    cdef void purge(self) noexcept nogil
    cdef void say(self, fetch_partition_t *p, const fetch_answer_t *answer, int16_t error) noexcept nogil
