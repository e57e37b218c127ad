"""Writes a Fetch request of a consumer or a follower, versions 0 to 17.

server/fetch/fetch.pyx says what each version brought.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t

cdef enum:
    LAST_VERSION_WITH_NAMES = 12 # from version 13 on, topics are named by their ids
    LAST_FETCH_VERSION = 17
    TOPIC_ID_SIZE = 16

ctypedef struct fetch_options_t:
    const char *client_id
    int16_t client_id_size
    const char *rack
    int16_t rack_size
    int8_t isolation_level
    int32_t replica_id           # of the follower that asks; -1: a consumer
    int64_t replica_epoch        # of that follower's broker; -1: not known
    int32_t min_bytes
    int32_t max_wait_ms
    int32_t max_bytes
    int32_t max_partition_bytes

ctypedef struct fetch_ask_t:
    # A partition of a request. The partitions of one topic stand side by side.
    const uint8_t *topic
    int16_t topic_size
    int32_t partition
    int32_t leader_epoch         # -1: not known
    int64_t offset
    # What only a follower tells.
    const uint8_t *topic_id      # TOPIC_ID_SIZE bytes; versions from 13 on
    int32_t last_epoch           # leader epoch of the record before `offset`; -1: none, or a consumer
    int64_t log_start_offset     # of its own log; -1: a consumer

# Writes the frame, size field and header included, with correlation id 0. Sets `w.failed` if memory is out.
cdef void write_fetch(writer_t *w, int16_t version, const fetch_options_t *options, int32_t session_id,
                      int32_t session_epoch, const fetch_ask_t *asks, int32_t ask_count, const fetch_ask_t *forgotten,
                      int32_t forgotten_count) noexcept nogil
