"""32-bit xxHash (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): the checksum of lz4 frame headers.

It is used for a few bytes only: the codec itself checks longer data.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef enum:
    LANE = 4
    STRIPE = 16                  # four lanes, each with its own accumulator

# Primes of the specification. Part of the format. Do not change.
cdef uint32_t PRIME_1 = 2654435761
cdef uint32_t PRIME_2 = 2246822519
cdef uint32_t PRIME_3 = 3266489917
cdef uint32_t PRIME_4 = 668265263
cdef uint32_t PRIME_5 = 374761393


cdef inline uint32_t rotate(uint32_t value, int bits) noexcept nogil:
    return value << bits | value >> (32 - bits)


cdef inline uint32_t little_endian(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24


cdef uint32_t xxh32(const uint8_t *data, int64_t size, uint32_t seed) noexcept nogil:
    cdef uint32_t[4] sums
    cdef uint32_t hashed
    cdef int64_t left = size
    cdef int lane
    if size >= STRIPE:
        sums[0] = seed + PRIME_1 + PRIME_2
        sums[1] = seed + PRIME_2
        sums[2] = seed
        sums[3] = seed - PRIME_1
        while left >= STRIPE:
            for lane in range(4):
                sums[lane] = rotate(sums[lane] + little_endian(data) * PRIME_2, 13) * PRIME_1
                data += LANE
            left -= STRIPE
        hashed = rotate(sums[0], 1) + rotate(sums[1], 7) + rotate(sums[2], 12) + rotate(sums[3], 18)
    else:
        hashed = seed + PRIME_5
    hashed += <uint32_t>size
    while left >= LANE:
        hashed = rotate(hashed + little_endian(data) * PRIME_3, 17) * PRIME_4
        data += LANE
        left -= LANE
    while left > 0:
        hashed = rotate(hashed + data[0] * PRIME_5, 11) * PRIME_1
        data += 1
        left -= 1
    hashed = (hashed ^ hashed >> 15) * PRIME_2
    hashed = (hashed ^ hashed >> 13) * PRIME_3
    return hashed ^ hashed >> 16


def xxh32_of(data, uint32_t seed=0):
    """Return the XXH32 of a contiguous buffer."""
    cdef Py_buffer view
    cdef uint32_t hashed
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            hashed = xxh32(<const uint8_t *>view.buf, view.len, seed)
    finally:
        PyBuffer_Release(&view)
    return hashed
