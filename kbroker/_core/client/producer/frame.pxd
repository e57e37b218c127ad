"""Produce requests as a client writes them, and responses as it reads them.

Versions 0 to 12; server/produce/produce.pyx describes the layout.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.sockets cimport iovec
from kbroker._core.wire.cursor cimport reader_t, writer_t

cdef enum:
    LAST_PRODUCE_VERSION = 12

ctypedef struct produce_entry_t:
    # One batch of a request, and the broker's answer for it. The entries of one topic stand side by side.
    const char *topic
    int32_t topic_size
    int32_t partition_id
    const uint8_t *data
    int64_t size
    int64_t split_at             # position in the writer's bytes where the batch belongs
    bint answered
    int16_t error
    int64_t base_offset
    int64_t log_append_time
    int64_t log_start_offset
    const uint8_t *text          # the broker's error message, in the response; NULL: none
    int32_t text_size
    int32_t leader               # node id of the leader that the broker knows; -1: it does not say
    int32_t leader_epoch

ctypedef struct produce_options_t:
    const char *client_id
    const char *transactional_id # NULL: none
    int32_t client_id_size       # -1: null
    int32_t transactional_id_size
    int32_t timeout_ms
    int16_t acks

# Writes the frame without the batches into `out`. Returns False if memory is out, or if the whole frame would not fit
# into a signed 32-bit size.
cdef bint write_produce(writer_t *out, int16_t version, const produce_options_t *options, produce_entry_t *entries,
                        int32_t count) noexcept nogil
# Makes the pieces of the frame, 2 * count + 1 of them, with the batches in between.
cdef void cut_produce(writer_t *out, produce_entry_t *entries, int32_t count, iovec *pieces) noexcept nogil
# Reads a response into `entries`. Returns False if it is malformed, or if it does not answer each entry of the request
# exactly once. `nodes` is set to the addresses of the leaders that the broker names (a compact array of NodeEndpoint,
# KIP-951), in the response; it is empty if the broker names none.
cdef bint read_produce(const uint8_t *body, int64_t size, int16_t version, produce_entry_t *entries, int32_t count,
                       reader_t *nodes) noexcept nogil
