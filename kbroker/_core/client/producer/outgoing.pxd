"""A record batch on its way from a producer to a broker: its bytes, its header, and what its Deliveries read."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._core.wire.varint cimport bytes_size, put_varlong, varlong_size    # for the C text

cdef enum:
    # Values of outgoing_t.state, a futex that Deliveries sleep on
    OUTGOING_PENDING = 0
    OUTGOING_DELIVERED = 1
    OUTGOING_FAILED = 2
    OUTGOING_SPLIT = 3           # the batch was split: its parts have the states of the records

    # Values of outgoing_t.watched
    UNWATCHED = 0
    WATCHED = 1                  # the batch has callbacks
    WATCHED_TOO_LATE = 2         # the batch is done: callbacks are called at once

    NO_SEQUENCE = -1
    NUMBER_STEP = 1 << 20
    SMALLEST_BUFFER = 16 << 10
    BUFFER_CLASSES = 6           # 16 KiB, 64 KiB ... 16 MiB

ctypedef struct outgoing_t:
    outgoing_t *next             # in the list of its queue that holds it
    outgoing_t *older            # in the list of all batches that are not done, in the order in which they were made
    outgoing_t *newer
    outgoing_t *next_raw         # in the list of batches that wait for the compressor
    void *queue                  # its queue_t; NULL once it is done
    uint8_t *data                # BATCH_HEADER_SIZE bytes of room, then the records
    int64_t capacity
    int64_t size                 # bytes, the room for the header included
    int64_t charged              # bytes of it that accumulator_t.used counts
    int64_t number               # rises in the order in which batches were made
    int64_t number_step          # distance to the number before: the numbers between are for parts it may be split into
    int64_t made_ms              # monotonic
    int64_t retry_ms             # monotonic: the batch is not sent again before this time
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int32_t count
    int32_t base_sequence        # NO_SEQUENCE: it has none (yet)
    int32_t attempts
    int32_t codec                # the codec bits (0..4) that the batch is to have
    bint compressing             # it waits for the compressor, or the compressor has it
    bint compressed
    int16_t producer_epoch
    # The broker's last answer for the batch: the error code, its message (owned), and the leader that it named. If the
    # batch has expired, `error` is EXPIRED, and `refusal` is the broker's last error code.
    int16_t error
    int16_t refusal
    char *text
    int32_t leader
    int32_t leader_epoch
    # The fields that Deliveries read. The batch is reference-counted: the pipeline has one reference until the batch is
    # done, and each Delivery has one.
    int32_t references           # atomic
    int32_t state                # atomic; set last
    int32_t sleepers             # atomic
    int32_t watched              # atomic
    int64_t base_offset          # -1: not known (acks=0, a duplicate)
    int64_t log_append_time      # -1: records have their own timestamps
    int32_t process_id           # the process that made it; in a child process after a fork it stays as it is
    outgoing_t *parts            # linked by `sibling`; owned
    outgoing_t *sibling
    # To be read and written with the GIL only. `exception` is NULL unless the batch failed, `callbacks` unless it is
    # watched.
    PyObject *exception
    PyObject *callbacks

# Free buffers, kept to be used again: touching fresh pages costs more than writing the bytes.
ctypedef struct buffer_pool_t:
    uint8_t *kept[BUFFER_CLASSES]
    int64_t kept_bytes
    int64_t most_kept

# A lock of the caller guards the pool. pool_take gives a buffer of `size` bytes at least, and its capacity, or NULL if
# memory is out; pool_give takes it back.
cdef uint8_t *pool_take(buffer_pool_t *pool, int64_t size, int64_t *capacity) noexcept nogil
cdef void pool_give(buffer_pool_t *pool, uint8_t *buffer, int64_t capacity) noexcept nogil
cdef void pool_free(buffer_pool_t *pool) noexcept nogil

# Makes a batch without a buffer, with one reference. Returns NULL if memory is out.
cdef outgoing_t *outgoing_new() noexcept nogil
# Gives up one reference, on any thread; the last one frees the batch. Acquires the GIL if the batch failed or has
# callbacks.
cdef void outgoing_unref(outgoing_t *batch) noexcept nogil
# Whether the batch was made by another process, from which this one was forked.
cdef bint outgoing_is_foreign(const outgoing_t *batch) noexcept nogil
# Writes the header with its CRC. From then on the batch is as it is sent.
cdef void outgoing_seal(outgoing_t *batch, bint transactional) noexcept nogil
# Sleeps until `state` is no longer PENDING, for `timeout_ms` at most (-1: for ever) or until a signal comes.
cdef void outgoing_await(outgoing_t *batch, int64_t timeout_ms) noexcept nogil
# Sets `state` and wakes the threads that sleep on it. Returns True if the batch has callbacks.
cdef bint outgoing_settle(outgoing_t *batch, int32_t state) noexcept nogil

cdef extern from * nogil:
    """
    #ifndef KBROKER_OUTGOING
    #define KBROKER_OUTGOING
    /* A record as it stands in a batch, without the size in front. `headers`: their count and themselves, encoded. */
    static inline __attribute__((always_inline)) int64_t
    record_body_size(int64_t timestamp_delta, int64_t offset_delta, int64_t key_size, int64_t value_size,
                     int64_t headers_size) {
        return 1 + varlong_size(timestamp_delta) + varlong_size(offset_delta) + bytes_size(key_size)
            + bytes_size(value_size) + headers_size;
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
    put_record(uint8_t *p, int64_t body, int64_t timestamp_delta, int64_t offset_delta, const uint8_t *key,
               int64_t key_size, const uint8_t *value, int64_t value_size, const uint8_t *headers,
               int64_t headers_size) {
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
    int64_t record_body_size(int64_t timestamp_delta, int64_t offset_delta, int64_t key_size, int64_t value_size,
                             int64_t headers_size)
    uint8_t *put_record(uint8_t *p, int64_t body, int64_t timestamp_delta, int64_t offset_delta, const uint8_t *key,
                        int64_t key_size, const uint8_t *value, int64_t value_size, const uint8_t *headers,
                        int64_t headers_size)
