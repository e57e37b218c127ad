"""Produce requests as a client writes them, and what it reads of the responses. Versions 0 to 12; the layout is in server/produce/produce.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.sockets cimport iovec
from kbroker._core.wire.cursor cimport reader_t, writer_t

cdef enum:
    FIRST_BATCH_VERSION = 3      # before it there are message sets: magic 0, of version 2 magic 1
    LAST_PRODUCE_VERSION = 12

ctypedef struct produce_entry_t:
    # One batch of a request, in the order of topics, and what was answered.
    const char *topic
    int32_t topic_size
    int32_t partition_id
    const uint8_t *data
    int64_t size
    int64_t split_at             # where its bytes belong among those of the writer
    bint answered
    int16_t error
    int64_t base_offset
    int64_t log_append_time
    int64_t log_start_offset
    const uint8_t *text          # the broker's words, in the response; NULL: none
    int32_t text_size
    int32_t leader               # whom the broker knows as the leader; -1: it does not say
    int32_t leader_epoch

ctypedef struct produce_options_t:
    const char *client_id
    const char *transactional_id # NULL: none
    int32_t client_id_size       # -1: null
    int32_t transactional_id_size
    int32_t timeout_ms
    int16_t acks

# The frame without the batches goes into `out`; false when memory is out or it is 2 GiB.
cdef bint write_produce(writer_t *out, int16_t version, const produce_options_t *options, produce_entry_t *entries,
                        int32_t count) noexcept nogil
# The frame as 2 * count + 1 pieces.
cdef void cut_produce(writer_t *out, produce_entry_t *entries, int32_t count, iovec *pieces) noexcept nogil
# False: this is no response to a request of these entries, each answered once. `nodes`: where the leaders are that the broker
# names (a compact array of NodeEndpoint, KIP-951), in the response; empty when it does not say.
cdef bint read_produce(const uint8_t *body, int64_t size, int16_t version, produce_entry_t *entries, int32_t count,
                       reader_t *nodes) noexcept nogil
