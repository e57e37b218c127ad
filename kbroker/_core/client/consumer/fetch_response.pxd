"""Reads a Fetch response, versions 0 to 17, in place."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.client.consumer.chunk cimport aborted_t

ctypedef struct fetch_answer_t:
    # The answer for one partition. The pointers point into the response.
    const uint8_t *topic         # its name; from version 13 on its id
    const uint8_t *records       # NULL, with size 0, when there are none
    const uint8_t *aborted       # the array of aborted transactions, behind its count
    int64_t high_watermark
    int64_t last_stable_offset   # -1 before version 4
    int64_t log_start_offset     # -1 before version 5
    int32_t records_size
    int32_t aborted_count
    int32_t partition
    int32_t preferred_replica    # -1: none
    int32_t leader_id            # -1: the response does not say
    int32_t leader_epoch
    int32_t diverging_epoch      # -1: none
    int64_t diverging_end_offset
    int16_t topic_size
    int16_t error

ctypedef struct fetch_answers_t:
    int32_t throttle_ms
    int16_t error
    int32_t session_id           # 0: no session
    fetch_answer_t *answers      # owned
    int32_t count
    int32_t capacity

cdef void answers_init(fetch_answers_t *answers) noexcept nogil
cdef void answers_free(fetch_answers_t *answers) noexcept nogil
# Reads a response. Returns 0, -1 if memory is out, or -2 if the bytes are not a response of this version.
cdef int parse_answers(fetch_answers_t *answers, int16_t version, const uint8_t *body, int64_t size) noexcept nogil
# Writes the aborted transactions of one answer to `aborted`, which has room for `aborted_count` of them.
cdef void read_aborted(const fetch_answer_t *answer, int16_t version, aborted_t *aborted) noexcept nogil
# Moves all pointers by `distance` bytes, after the response has been moved.
cdef void answers_move(fetch_answers_t *answers, int64_t distance) noexcept nogil
