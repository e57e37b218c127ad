"""A record batch on its way from a producer to a broker: its bytes, its header, and what its Deliveries look at."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._core.wire.varint cimport bytes_size, put_varlong, varlong_size    # for the C text

cdef enum:
    # outgoing_t.state: a Delivery sleeps on it
    OUTGOING_PENDING = 0
    OUTGOING_DELIVERED = 1
    OUTGOING_FAILED = 2
    OUTGOING_SPLIT = 3           # what becomes of its records is known by its parts

    # outgoing_t.watched
    UNWATCHED = 0
    WATCHED = 1                  # it has callbacks
    WATCHED_TOO_LATE = 2         # it is done

    NO_SEQUENCE = -1
    NUMBER_STEP = 1 << 20
    SMALLEST_BUFFER = 16 << 10
    BUFFER_CLASSES = 6           # 16 KiB, 64 KiB ... 16 MiB

ctypedef struct outgoing_t:
    outgoing_t *next             # in the list of its queue that it is in
    outgoing_t *older            # among all that are not done, in the order in which they were made
    outgoing_t *newer
    outgoing_t *next_raw         # among those that wait for the compressor
    void *queue                  # its queue_t; NULL once it is done
    uint8_t *data                # BATCH_HEADER_SIZE bytes of room, then the records
    int64_t capacity
    int64_t size                 # the room for the header included
    int64_t charged              # of the producer's memory
    int64_t number               # of the order in which they were made
    int64_t number_step          # down to the number of the one before: room for those it is split into
    int64_t made_ms              # monotonic
    int64_t retry_ms             # monotonic: when it was last given back to be sent again
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int32_t count
    int32_t base_sequence        # NO_SEQUENCE: it has never been sent
    int32_t attempts
    int32_t codec                # 0..4 of the codec bits; what it is to have
    bint compressing             # it is with the compressor, or has to go there
    bint compressed
    int16_t producer_epoch
    # What the broker said of it at last; `text` belongs to it. Of one that has expired `error` says that, and `refusal` what the broker said.
    int16_t error
    int16_t refusal
    char *text
    int32_t leader
    int32_t leader_epoch
    # What Deliveries look at. Counted: the pipeline has one reference until it is done, each Delivery one.
    int32_t references           # atomic
    int32_t state                # atomic; set last
    int32_t sleepers             # atomic
    int32_t watched              # atomic
    int64_t base_offset          # -1: not known (acks=0, a duplicate)
    int64_t log_append_time      # -1: records have their own timestamps
    int32_t process_id           # whose it is: in a child of that nothing becomes of it
    outgoing_t *parts            # linked by `sibling`; owned
    outgoing_t *sibling
    # With the GIL only, both NULL unless it has failed or is watched.
    PyObject *exception
    PyObject *callbacks

# Buffers that have been used are kept: fresh pages cost more than the bytes that are written to them.
ctypedef struct buffer_pool_t:
    uint8_t *kept[BUFFER_CLASSES]
    int64_t kept_bytes
    int64_t most_kept

# The caller's lock guards the pool. NULL when memory is out.
cdef uint8_t *pool_take(buffer_pool_t *pool, int64_t size, int64_t *capacity) noexcept nogil
cdef void pool_give(buffer_pool_t *pool, uint8_t *buffer, int64_t capacity) noexcept nogil
cdef void pool_free(buffer_pool_t *pool) noexcept nogil

# A new batch without a buffer, with one reference; NULL when memory is out.
cdef outgoing_t *outgoing_new() noexcept nogil
# Any thread; the last one frees it. With the GIL where it may have failed or have callbacks.
cdef void outgoing_unref(outgoing_t *batch) noexcept nogil
# Whether it is of another process, from which this one was forked.
cdef bint outgoing_is_foreign(const outgoing_t *batch) noexcept nogil
# The header, with CRC: the batch is what is sent from then on.
cdef void outgoing_seal(outgoing_t *batch, bint transactional) noexcept nogil
# Sleeps until `state` is no longer PENDING, for `timeout_ms` at most (-1: for ever) or until a signal comes.
cdef void outgoing_await(outgoing_t *batch, int64_t timeout_ms) noexcept nogil
# Sets `state` and wakes who sleeps; true when it has callbacks.
cdef bint outgoing_settle(outgoing_t *batch, int32_t state) noexcept nogil

cdef extern from * nogil:
    """
    #ifndef KBROKER_OUTGOING
    #define KBROKER_OUTGOING
    /* A record as it stands in a batch, without the size in front. `headers`: their count and themselves, encoded. */
    static inline __attribute__((always_inline)) int64_t
    record_body_size(int64_t timestamp_delta, int64_t offset_delta, int64_t key_size, int64_t value_size, int64_t headers_size) {
        return 1 + varlong_size(timestamp_delta) + varlong_size(offset_delta) + bytes_size(key_size) + bytes_size(value_size) + headers_size;
    }
    static inline __attribute__((always_inline)) uint8_t *put_size(uint8_t *p, int64_t value) {
        uint64_t raw = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
        if (__builtin_expect(raw < 0x80, 1)) {
            p[0] = (uint8_t)raw;
            return p + 1;
        }
        if (__builtin_expect(raw < 0x4000, 1)) {
            p[0] = (uint8_t)(raw | 0x80);
            p[1] = (uint8_t)(raw >> 7);
            return p + 2;
        }
        return p + put_varlong(p, value);
    }
    static inline __attribute__((always_inline)) uint8_t *put_field(uint8_t *p, const uint8_t *data, int64_t size) {
        p = put_size(p, size);
        if (size <= 0)
            return p;
        memcpy(p, data, (size_t)size);
        return p + size;
    }
    static inline __attribute__((always_inline)) uint8_t *
    put_record(uint8_t *p, int64_t body, int64_t timestamp_delta, int64_t offset_delta, const uint8_t *key, int64_t key_size,
               const uint8_t *value, int64_t value_size, const uint8_t *headers, int64_t headers_size) {
        p = put_size(p, body);
        *p++ = 0;
        p = put_size(p, timestamp_delta);
        p = put_size(p, offset_delta);
        p = put_field(p, key, key_size);
        p = put_field(p, value, value_size);
        if (__builtin_expect(headers_size == 1, 1)) {
            *p = *headers;
            return p + 1;
        }
        memcpy(p, headers, (size_t)headers_size);
        return p + headers_size;
    }
    #endif
    """
    int64_t record_body_size(int64_t timestamp_delta, int64_t offset_delta, int64_t key_size, int64_t value_size, int64_t headers_size)
    uint8_t *put_record(uint8_t *p, int64_t body, int64_t timestamp_delta, int64_t offset_delta, const uint8_t *key, int64_t key_size,
                        const uint8_t *value, int64_t value_size, const uint8_t *headers, int64_t headers_size)
