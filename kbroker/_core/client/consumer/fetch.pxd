"""The engine of a consumer's fetching: what is asked of which broker, and what becomes of the answers.

Each broker has one Fetch under way at a time, with a fetch session (KIP-227) if the broker offers one. A partition that
is not to be fetched now (paused, blocked by an error, at its stop offset, or read from another broker) is forgotten by
the session until it is wanted again. No Fetch is sent while records of queued_max_bytes wait to be polled. An error of
a partition stops its fetching until Python has decided about it (`take_news`).

partitions.pxd has the partitions and the records that wait to be polled, poll.pxd hands them out.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.sockets cimport iovec
from kbroker._core.client.consumer.chunk cimport chunk_t
from kbroker._core.client.consumer.fetch_request cimport fetch_options_t
from kbroker._core.client.consumer.fetch_response cimport fetch_answer_t, fetch_answers_t
from kbroker._core.client.consumer.partitions cimport fetch_partition_t
from kbroker._core.client.consumer.poll cimport FetchPoll
from kbroker._core.client.socket cimport client_socket_t, exchange_t
from kbroker._core.wire.cursor cimport writer_t

ctypedef struct fetch_node_t:
    fetch_node_t *next
    int32_t node_id
    bint under_way
    int32_t session_id
    int32_t session_epoch    # of the next request; 0: a full request
    int64_t not_before_ms    # monotonic; no request before this time: the broker throttles us, or a whole Fetch failed
    int64_t unreached_ms     # monotonic; since when we wait for a connection to it; 0: we do not

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
    int32_t asked_count      # entries of `asked`

cdef class FetchEngine(FetchPoll):
    cdef fetch_options_t options
    cdef bytes client_id
    cdef bytes rack
    cdef bint check_crcs
    cdef int64_t request_timeout_ms
    cdef int64_t queued_max_bytes
    cdef int32_t first           # index of the partition that the next request begins with
    cdef fetch_node_t *nodes
    cdef readonly int64_t dropped    # answers that were dropped, as the partition's position had been changed meanwhile

    cdef fetch_node_t *node_of(self, int32_t node_id) noexcept nogil
    cdef void be_due(self, int64_t at_ms) noexcept nogil
    cdef void wait_for(self, fetch_node_t *node, int64_t now_ms) noexcept nogil
    cdef void prefer_no_longer(self, int32_t node_id) noexcept nogil
    cdef bint has_work(self, fetch_node_t *node, int64_t now_ms) noexcept nogil
    cdef void send(self, fetch_node_t *node, client_socket_t *socket, int64_t now_ms) noexcept nogil
    cdef fetch_request_t *new_request(self, fetch_node_t *node, int16_t version, int64_t now_ms) noexcept nogil
    cdef void forget_session(self, fetch_node_t *node) noexcept nogil
    cdef bint take_answer(self, fetch_request_t *request, client_socket_t *socket, const uint8_t *body,
                          int64_t size) noexcept nogil
    cdef bint make_chunks(self, fetch_request_t *request, client_socket_t *socket, const uint8_t *body,
                          fetch_answers_t *answers, int32_t *places, chunk_t **chunks) noexcept nogil
    cdef void settle_session(self, fetch_request_t *request, const fetch_answers_t *answers,
                             int64_t now_ms) noexcept nogil
    cdef void settle_empty(self, const fetch_request_t *request, int64_t now_ms) noexcept nogil
    cdef void settle(self, asked_t *asked, const fetch_answer_t *answer, chunk_t *chunk, int64_t now_ms) noexcept nogil
