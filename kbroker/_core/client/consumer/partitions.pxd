"""What a consumer fetches, and the records that wait to be polled.

A partition's `position` is what the user has come to, its `fetch_offset` what is asked for next; what lies between is in chunks that
wait (`ready_t`). `generation` changes whenever the position is set from outside: what was asked for under another one is dropped
when it comes.

The lock guards partitions, what is ready and the engine's nodes (fetch.pxd). It is never held over a parse, a checksum or a
socket; the GIL is not asked for under it.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.sync cimport mutex_t
from kbroker._core.client.consumer.chunk cimport chunk_t
from kbroker._core.client.consumer.fetch_response cimport fetch_answer_t
from kbroker._core.client.consumer.records cimport RecordIterator
from kbroker._core.client.pump cimport Engine

ctypedef struct fetch_partition_t:
    int32_t refs             # under the lock: the engine's list, asks under way, what is ready
    uint8_t *topic           # owned
    int16_t topic_size
    int32_t partition
    int8_t assigned          # False: to be taken out of the list once no session has it
    int8_t paused            # by the user, or held because it is about to go
    int8_t blocked           # after an error, until Python has decided
    int8_t begun             # a poll has cut a chunk of it: that one goes first
    int32_t node_id          # the leader, -1 not known
    int32_t leader_epoch
    int32_t read_node_id     # the replica that the leader prefers for us, -1 none
    int64_t read_until_ms
    int64_t fetch_offset     # -1: not known yet
    int64_t stop_offset      # nothing is asked for from here on
    int64_t position
    int32_t fetch_epoch      # leader epoch of the record before fetch_offset, -1 not known (KIP-320)
    int32_t position_epoch   # of that before position
    int64_t generation       # of FetchEngine.generations: none is given twice, not even to the same partition assigned again
    int64_t high_watermark   # -1 not known, as the next two
    int64_t last_stable_offset
    int64_t log_start_offset
    # What the session of that node (-1 none) knows.
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

cdef void partition_release(fetch_partition_t *p) noexcept nogil      # with the lock
cdef void ready_free(ready_t *ready) noexcept nogil                  # with the lock

cdef class FetchPartitions(Engine):
    cdef mutex_t lock
    cdef fetch_partition_t **partitions
    cdef int32_t partition_count
    cdef int32_t partition_capacity
    cdef int64_t generations     # the last one that was given
    cdef ready_t *ready          # oldest first
    cdef ready_t **ready_end
    cdef news_t *news            # newest first
    cdef int64_t ready_bytes     # atomic to read
    cdef int32_t signal          # changes when poll has something to look at
    cdef int32_t waiting         # polls that sleep
    cdef int32_t listening       # atomic: Python wants to be told when `signal` is no longer `heard`
    cdef int32_t heard
    cdef dict by_name            # (topic, partition) -> address of its fetch_partition_t; with the GIL
    # What iteration has not come to of a poll, None: nothing. The partition's position is behind it: `put_back` sets it back.
    cdef RecordIterator iterator
    cdef list delivered          # of each part of the last poll: (key of its partition, generation, position before it, its epoch)
    cdef dict unread             # of each partition: the numbers of its parts

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
