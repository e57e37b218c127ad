"""A consumer's fetching: what is asked of which broker, and the records that wait to be polled.

A partition's `position` is what the user has come to, its `fetch_offset` what is asked for next; what lies between is in chunks that
wait (`ready_t`), bounded together by queued_max_bytes. `generation` changes whenever the position is set from outside: what was
asked for under another one is dropped when it comes.

Each broker has one Fetch under way at a time, with a session (KIP-227) where it offers one: partitions that have no place for more
are forgotten by it until they have. Errors of a partition stop its fetching until Python has decided (`take_news`).

`FetchEngine.lock` guards partitions, nodes and what is ready. It is never held over a parse, a checksum or a socket; the GIL is
not asked for under it.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.client_pump cimport Engine
from kbroker._core.client_socket cimport client_socket_t, exchange_t, iovec
from kbroker._core.consumer_chunk cimport chunk_t
from kbroker._core.consumer_fetch_request cimport fetch_options_t
from kbroker._core.consumer_fetch_response cimport fetch_answer_t, fetch_answers_t
from kbroker._core.consumer_records cimport Chunk, Records
from kbroker._core.cursor cimport writer_t
from kbroker._core.sync cimport mutex_t

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
    int64_t position
    int64_t generation       # of FetchEngine.generations: none is given twice, not even to the same partition assigned again
    int64_t high_watermark   # -1 not known, as the next two
    int64_t last_stable_offset
    int64_t log_start_offset
    # What the session of that node (-1 none) knows.
    int32_t session_node_id
    int32_t session_leader_epoch
    int64_t session_offset

ctypedef struct fetch_node_t:
    fetch_node_t *next
    int32_t node_id
    bint under_way
    int32_t session_id
    int32_t session_epoch    # of the next request; 0: a full one
    int64_t not_before_ms    # throttled

ctypedef struct asked_t:
    fetch_partition_t *partition     # a reference
    int64_t generation
    int64_t offset

ctypedef struct fetch_request_t:
    exchange_t exchange      # first
    iovec piece
    writer_t out
    fetch_node_t *node
    bint full
    asked_t *asked
    int32_t asked_count

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

cdef class FetchEngine(Engine):
    cdef mutex_t lock
    cdef fetch_options_t options
    cdef bytes client_id
    cdef bytes rack
    cdef object inflate
    cdef bint check_crcs
    cdef int64_t request_timeout_ms
    cdef int64_t queued_max_bytes
    cdef fetch_partition_t **partitions
    cdef int32_t partition_count
    cdef int32_t partition_capacity
    cdef int64_t generations     # the last one that was given
    cdef int32_t first           # where the next request begins
    cdef fetch_node_t *nodes
    cdef ready_t *ready          # oldest first
    cdef ready_t **ready_end
    cdef news_t *news            # newest first
    cdef int64_t ready_bytes     # atomic to read
    cdef int32_t signal          # changes when poll has something to look at
    cdef int32_t waiting         # polls that sleep
    cdef dict by_name            # (topic, partition) -> address of its fetch_partition_t; with the GIL
    cdef list begun              # of a Chunk that a poll has cut: (chunk, key of its partition, generation, next record)
    cdef list errors             # to be raised by the next poll: (error, key of its partition or None, generation)
    cdef readonly int64_t dropped    # answers that came for a position that was left

    cdef bint interrupted

    cdef fetch_partition_t *find(self, topic, partition) except NULL
    cdef fetch_partition_t *revive(self, bytes name, int32_t partition, int64_t offset) noexcept
    cdef void move(self, fetch_partition_t *p, int64_t offset) noexcept nogil
    cdef void awaken(self) noexcept nogil
    cdef fetch_node_t *node_of(self, int32_t node_id) noexcept nogil
    cdef void purge(self) noexcept nogil
    cdef bint has_work(self, fetch_node_t *node, int64_t now_ms) noexcept nogil
    cdef void send(self, fetch_node_t *node, client_socket_t *socket, int64_t now_ms) noexcept nogil
    cdef fetch_request_t *prepare(self, fetch_node_t *node, int16_t version, int64_t now_ms) noexcept nogil
    cdef void forget_session(self, fetch_node_t *node) noexcept nogil
    cdef bint take_answer(self, fetch_request_t *request, client_socket_t *socket, const uint8_t *body, int64_t size) noexcept nogil
    cdef bint make_chunks(self, fetch_request_t *request, client_socket_t *socket, const uint8_t *body, fetch_answers_t *answers,
                          int32_t *places, chunk_t **chunks) noexcept nogil
    cdef void settle_session(self, fetch_request_t *request, const fetch_answers_t *answers, int64_t now_ms) noexcept nogil
    cdef void settle(self, asked_t *asked, const fetch_answer_t *answer, chunk_t *chunk, int64_t now_ms) noexcept nogil
    cdef void say(self, fetch_partition_t *p, const fetch_answer_t *answer, int16_t error) noexcept nogil
    cdef int take_begun(self, Records records, int64_t most) except -1
    cdef int take_ready(self, Records records, int64_t most) except -1
    cdef int deliver(self, Records records, Chunk chunk, tuple key, int64_t generation, int64_t first, int64_t most) except -1
    cdef int stop_at(self, error, tuple key, int64_t generation) except -1
    cdef int raise_one(self) except -1
