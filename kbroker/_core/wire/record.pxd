"""Reading one record of a batch of magic 2, on bare pointers. record_batch.pyx has the grammar, varint.pxd the varints.

Each `take_` function reads a record that must not go beyond `end`, fills in the fields that its comment below names,
and returns where the next record starts, or NULL if the bytes are not a record. Nothing behind the record's own size is
read. The pointers point into the batch's memory.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.wire.cursor cimport load_u16
from kbroker._core.wire.varint cimport take_bytes, take_varint, take_varlong    # for the C text

cdef enum:
    MIN_RECORD_SIZE = 7          # size, attributes, two deltas, key, value and header count, of a byte each
    MIN_HEADER_SIZE = 2          # key and value, of a byte each

cdef extern from * nogil:
    """
    #ifndef KBROKER_RECORD
    #define KBROKER_RECORD
    typedef struct {
        const uint8_t *stop;
        const uint8_t *rest;
        const uint8_t *headers;
        const uint8_t *key;
        const uint8_t *value;
        int64_t timestamp_delta;
        int32_t offset_delta;
        int32_t key_size;
        int32_t value_size;
        int32_t header_count;
        uint8_t attributes;
    } record_t;
    static inline __attribute__((always_inline)) const uint8_t *
    take_deltas(const uint8_t *p, const uint8_t *end, record_t *record) {
        int32_t size;
        p = take_varint(p, end, &size);
        if (__builtin_expect(size < 1 || size > end - p, 0))
            return NULL;
        record->stop = p + size;
        record->attributes = p[0];
        p = take_varlong(p + 1, record->stop, &record->timestamp_delta);
        p = take_varint(p, record->stop, &record->offset_delta);
        record->rest = p;
        return p <= record->stop ? record->stop : NULL;
    }
    static inline __attribute__((always_inline)) const uint8_t *
    take_fields(const uint8_t *p, const uint8_t *end, record_t *record) {
        if (__builtin_expect(take_deltas(p, end, record) == NULL, 0))
            return NULL;
        p = take_bytes(record->rest, record->stop, &record->key, &record->key_size);
        p = take_bytes(p, record->stop, &record->value, &record->value_size);
        p = take_varint(p, record->stop, &record->header_count);
        record->headers = p;
        if (__builtin_expect(record->header_count < 0 || 2 * (int64_t)record->header_count > record->stop - p, 0))
            return NULL;
        return record->stop;
    }
    static inline __attribute__((always_inline)) const uint8_t *
    take_record(const uint8_t *p, const uint8_t *end, record_t *record) {
        const uint8_t *data;
        int32_t size, left;
        if (__builtin_expect(take_fields(p, end, record) == NULL, 0))
            return NULL;
        p = record->headers;
        for (left = record->header_count; left > 0; left--) {
            p = take_bytes(p, record->stop, &data, &size);
            if (size < 0)
                return NULL;
            p = take_bytes(p, record->stop, &data, &size);
        }
        return p == record->stop ? record->stop : NULL;
    }
    #endif
    """
    ctypedef struct record_t:
        const uint8_t *stop          # the end of the record
        int64_t timestamp_delta
        int32_t offset_delta
        uint8_t attributes
        const uint8_t *rest          # key, value and headers as they are encoded
        const uint8_t *key           # NULL and size -1 for null
        int32_t key_size
        const uint8_t *value
        int32_t value_size
        const uint8_t *headers       # the first header; all of them must end at `stop`
        int32_t header_count

    # Reads up to `rest`, which is not checked and may be empty.
    const uint8_t *take_deltas(const uint8_t *p, const uint8_t *end, record_t *record)
    # Reads all fields; the headers are not checked.
    const uint8_t *take_fields(const uint8_t *p, const uint8_t *end, record_t *record)
    # Reads all fields, and checks that the headers fill the rest of the record.
    const uint8_t *take_record(const uint8_t *p, const uint8_t *end, record_t *record)

cdef inline int control_type(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The type of a control record; negative if it has none."""
    cdef record_t record
    if take_fields(p, end, &record) == NULL or record.key_size < 4 or <int16_t>load_u16(record.key) < 0:
        return -1
    return load_u16(record.key + 2)
