"""The engine of a follower's fetching: what is asked of a leader, and how the answers come into the logs.

The leader has one Fetch under way at a time, in a fetch session (KIP-227) if it offers one. An answer is
appended on the pump's thread, straight from the memory into which it was received, without the GIL and one write per
partition; then the next Fetch goes out, which tells the leader of the new log ends. If the flush policy of a partition
asks for a flush before records are acknowledged, the next Fetch waits until the flushers have synced the partitions of
the answer, side by side. It does not wait for a partition that still lacks committed records.

followed.pxd has the partitions, and what of it Python decides about.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.mailbox cimport mail_t, mailbox_t
from kbroker._core.base.sockets cimport iovec
from kbroker._core.base.throttle cimport Throttle
from kbroker._core.client.consumer.fetch_request cimport fetch_options_t
from kbroker._core.client.consumer.fetch_response cimport fetch_answer_t, fetch_answers_t
from kbroker._core.client.socket cimport client_socket_t, exchange_t
from kbroker._core.log.partition cimport ack_waiter_t
from kbroker._core.replica.followed cimport FollowedPartitions, followed_partition_t
from kbroker._core.wire.cursor cimport writer_t

ctypedef struct asked_t:
    followed_partition_t *partition  # a reference
    int64_t generation
    int64_t offset

ctypedef struct replica_request_t:
    exchange_t exchange      # first
    iovec piece
    writer_t out
    bint full
    asked_t *asked           # owned
    int32_t asked_count
    # After the answer, while the flushers sync what was appended: then it is in ReplicaFetcher.flushing.
    replica_request_t *next
    replica_request_t *previous
    mail_t synced            # posted when nothing is pending any more
    ack_waiter_t *waiters    # owned; one for each partition of `flushing`
    int32_t *flushing        # owned; indexes into `asked`
    int16_t *errors          # owned; of the flushes
    int32_t flushing_count
    int32_t pending          # atomic; flushes that are not done, and one more while they are being begun

cdef class ReplicaFetcher(FollowedPartitions):
    cdef fetch_options_t options
    cdef bytes client_id
    cdef int64_t request_timeout_ms
    cdef int64_t backoff_ms      # replica.fetch.backoff.ms
    cdef Throttle throttle       # or None
    cdef bint holds              # some partition has held_until_ms
    cdef int64_t kept_bytes      # that the process keeps of freed memory for the next answers
    cdef int32_t first           # index of the partition that the next request begins with
    # For the pump's thread.
    cdef int32_t leader_id
    cdef bint under_way          # a Fetch, or the flush of its answer
    cdef int32_t session_id
    cdef int32_t session_epoch   # of the next request; 0: a full request
    cdef bint by_name            # the session names topics by their names: the version of the requests is at most 12
    cdef int64_t not_before_ms   # monotonic; no request before this time
    cdef replica_request_t *flushing
    cdef mailbox_t box           # its descriptor is a duplicate of the pump's
    cdef readonly int64_t bytes_in       # bytes of records that were appended
    cdef readonly int64_t requests       # Fetches sent
    cdef readonly int64_t failed         # Fetches without an answer, or with an error of the whole
    cdef readonly int64_t damaged        # answers for a partition with a batch that is damaged or misplaced

    cdef void hold_back(self, int64_t now_ms) noexcept nogil
    cdef bint has_work(self, int64_t now_ms) noexcept nogil
    cdef void be_due(self, int64_t at_ms) noexcept nogil
    cdef void send(self, client_socket_t *socket, int64_t now_ms) noexcept nogil
    cdef replica_request_t *new_request(self, int16_t version, int64_t now_ms) noexcept nogil
    cdef bint lacks_id(self, int64_t now_ms) noexcept nogil
    cdef void forget_session(self) noexcept nogil
    cdef bint take_answer(self, replica_request_t *request, const uint8_t *body, int64_t size,
                          int64_t now_ms) noexcept nogil
    cdef void settle_session(self, replica_request_t *request, const fetch_answers_t *answers,
                             int64_t now_ms) noexcept nogil
    cdef void take_in(self, replica_request_t *request, int32_t place, const fetch_answer_t *answer) noexcept nogil
    cdef bint begin_flushes(self, replica_request_t *request) noexcept nogil
    cdef void end_request(self, replica_request_t *request) noexcept nogil
    cdef void collect_mail(self) noexcept nogil
