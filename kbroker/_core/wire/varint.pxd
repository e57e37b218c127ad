"""Zigzag varints of records on bare pointers, for loops over records. Other code uses the reader of cursor.pxd.

Each `take_` function reads one field that must not go beyond `end`, and returns where the next one starts. It returns
`end + 1` if the bytes end before, if a varint has too many bits, and if a size goes beyond `end`. Every `take_` call
that begins there returns `end + 1` too, so that a group of fields needs only one test, `p > end`.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from * nogil:
    """
    #ifndef KBROKER_VARINT
    #define KBROKER_VARINT
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    static __attribute__((noinline, unused)) const uint8_t *
    take_long_varint(const uint8_t *p, const uint8_t *end, uint64_t *raw, int bits) {
        uint64_t value = 0;
        int shift = 0;
        for (; p < end && shift < bits; shift += 7) {
            uint8_t byte = *p++;
            if (shift + 7 > bits && byte >> (bits - shift))
                break;
            value |= (uint64_t)(byte & 0x7f) << shift;
            if (byte < 0x80) {
                *raw = value;
                return p;
            }
        }
        return end + 1;
    }
    static inline __attribute__((always_inline)) const uint8_t *
    take_raw(const uint8_t *p, const uint8_t *end, uint64_t *raw, int bits) {
        if (__builtin_expect(end - p >= 2, 1)) {
            uint32_t first = p[0];
            if (__builtin_expect(first < 0x80, 1)) {
                *raw = first;
                return p + 1;
            }
            if (__builtin_expect(p[1] < 0x80, 1)) {
                *raw = (first & 0x7f) | (uint32_t)p[1] << 7;
                return p + 2;
            }
        }
        return take_long_varint(p, end, raw, bits);
    }
    static inline __attribute__((always_inline)) const uint8_t *
    take_varint(const uint8_t *p, const uint8_t *end, int32_t *value) {
        uint64_t raw = 0;
        p = take_raw(p, end, &raw, 32);
        *value = (int32_t)((uint32_t)raw >> 1) ^ -(int32_t)(raw & 1);
        return p;
    }
    static inline __attribute__((always_inline)) const uint8_t *
    take_varlong(const uint8_t *p, const uint8_t *end, int64_t *value) {
        uint64_t raw = 0;
        p = take_raw(p, end, &raw, 64);
        *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
        return p;
    }
    /* Bytes behind their size; a negative size is null (*size -1, *data NULL). */
    static inline __attribute__((always_inline)) const uint8_t *
    take_bytes(const uint8_t *p, const uint8_t *end, const uint8_t **data, int32_t *size) {
        p = take_varint(p, end, size);
        if (__builtin_expect(*size > end - p, 0)) {
            *data = NULL;
            return end + 1;
        }
        if (*size < 0) {
            *size = -1;
            *data = NULL;
            return p;
        }
        *data = p;
        return p + *size;
    }
    static inline int put_varlong(uint8_t *p, int64_t value) {
        uint64_t raw = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
        int n = 0;
        while (raw >= 0x80) {
            p[n++] = (uint8_t)(raw | 0x80);
            raw >>= 7;
        }
        p[n++] = (uint8_t)raw;
        return n;
    }
    static inline int varlong_size(int64_t value) {
        uint64_t raw = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
        return (70 - __builtin_clzll(raw | 1)) / 7;
    }
    static inline uint8_t *put_bytes(uint8_t *p, const uint8_t *data, int64_t size) {
        p += put_varlong(p, size);
        if (size <= 0)
            return p;
        memcpy(p, data, (size_t)size);
        return p + size;
    }
    static inline int64_t bytes_size(int64_t size) {
        return varlong_size(size) + (size > 0 ? size : 0);
    }
    #endif
    """
    const uint8_t *take_varint(const uint8_t *p, const uint8_t *end, int32_t *value)
    const uint8_t *take_varlong(const uint8_t *p, const uint8_t *end, int64_t *value)
    const uint8_t *take_bytes(const uint8_t *p, const uint8_t *end, const uint8_t **data, int32_t *size)
    # Writes 10 bytes at most, and returns their number. A varint is encoded as the varlong of the same number.
    int put_varlong(uint8_t *p, int64_t value)
    int varlong_size(int64_t value)
    # put_bytes writes a field as take_bytes reads it (size -1: null), and returns where the next one goes. bytes_size
    # is the number of bytes that it writes.
    uint8_t *put_bytes(uint8_t *p, const uint8_t *data, int64_t size)
    int64_t bytes_size(int64_t size)
