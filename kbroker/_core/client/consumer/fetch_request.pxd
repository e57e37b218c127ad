"""Writing a Fetch request, versions 0 to 12; what each version brought is told in server/fetch/fetch.pyx."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t

cdef enum:
    LAST_FETCH_VERSION = 12      # from 13 on topics are named by id

ctypedef struct fetch_options_t:
    const char *client_id
    int16_t client_id_size
    const char *rack
    int16_t rack_size
    int8_t isolation_level
    int32_t min_bytes
    int32_t max_wait_ms
    int32_t max_bytes
    int32_t max_partition_bytes

ctypedef struct fetch_ask_t:
    # A partition of a request; those of one topic stand together.
    const uint8_t *topic
    int16_t topic_size
    int32_t partition
    int32_t leader_epoch         # -1: not known
    int64_t offset

# The frame, its size and header included, correlation id 0. `w.failed` when memory is out.
cdef void write_fetch(writer_t *w, int16_t version, const fetch_options_t *options, int32_t session_id, int32_t session_epoch,
                      const fetch_ask_t *asks, int32_t ask_count, const fetch_ask_t *forgotten, int32_t forgotten_count) noexcept nogil
