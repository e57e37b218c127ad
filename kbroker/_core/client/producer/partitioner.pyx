"""Partitioners of the producer; see partitioner.pxd."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from kbroker._core.wire.crc cimport crc32

KINDS = {
    "murmur2": PARTITION_MURMUR2,
    "murmur2_random": PARTITION_MURMUR2_RANDOM,
    "random": PARTITION_RANDOM,
    "round_robin": PARTITION_ROUND_ROBIN,
    "consistent": PARTITION_CONSISTENT,
    "consistent_random": PARTITION_CONSISTENT_RANDOM,
    "sticky": PARTITION_STICKY,
}


cdef uint32_t murmur2(const uint8_t *data, int64_t size) noexcept nogil:
    """Kafka's 32-bit MurmurHash2 (seed 0x9747b28c), as `Utils.murmur2` of its clients computes it."""
    cdef uint32_t m = 0x5bd1e995
    cdef uint32_t h = <uint32_t>0x9747b28c ^ <uint32_t>size
    cdef uint32_t word = 0
    cdef int64_t at = 0
    while at + 4 <= size:
        memcpy(&word, data + at, 4)
        word *= m
        word ^= word >> 24
        word *= m
        h = h * m ^ word
        at += 4
    if size > at:
        if size - at == 3:
            h ^= <uint32_t>data[at + 2] << 16
        if size - at >= 2:
            h ^= <uint32_t>data[at + 1] << 8
        h = (h ^ data[at]) * m
    h ^= h >> 13
    h *= m
    return h ^ h >> 15


cdef void partitioner_init(partitioner_t *p, int32_t kind, int64_t sticky_bytes) noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    p.random = (<uint64_t>now.tv_nsec << 32 ^ <uint64_t>now.tv_sec ^ <uint64_t>p) | 1
    p.sticky_bytes = sticky_bytes
    p.kind = kind


cdef inline uint32_t draw(partitioner_t *p, uint32_t below) noexcept nogil:
    """A random number from 0 to `below` - 1, by xorshift64*. The upper half of its product is the more random one."""
    cdef uint64_t x = p.random
    x ^= x >> 12
    x ^= x << 25
    x ^= x >> 27
    p.random = x
    return <uint32_t>((x * <uint64_t>0x2545f4914f6cdd1d >> 32) * below >> 32)


cdef inline int32_t nth_available(spread_t *topic, uint32_t n) noexcept nogil:
    return topic.available[n] if topic.available_count else <int32_t>n


cdef inline uint32_t choices(spread_t *topic) noexcept nogil:
    return <uint32_t>(topic.available_count if topic.available_count else topic.count)


cdef inline int32_t any_partition(partitioner_t *p, spread_t *topic) noexcept nogil:
    return nth_available(topic, draw(p, choices(topic)))


cdef int32_t sticky_partition(partitioner_t *p, spread_t *topic, int64_t record_size) noexcept nogil:
    cdef int32_t drawn
    if topic.sticky < 0 or topic.sticky_used >= p.sticky_bytes:
        drawn = any_partition(p, topic)
        # If the same partition is drawn again, draw once more: else its run would be twice as long as another's.
        if drawn == topic.sticky and choices(topic) > 1:
            drawn = any_partition(p, topic)
        topic.sticky = drawn
        topic.sticky_used = 0
    topic.sticky_used += record_size
    return topic.sticky


cdef int32_t partition_for(partitioner_t *p, spread_t *topic, const uint8_t *key, int64_t key_size,
                           int64_t record_size) noexcept nogil:
    cdef uint32_t turn
    if key_size >= 0 and p.kind <= PARTITION_MURMUR2_RANDOM:
        return <int32_t>((murmur2(key, key_size) & 0x7fffffff) % <uint32_t>topic.count)
    if p.kind == PARTITION_MURMUR2 or p.kind == PARTITION_STICKY:
        return sticky_partition(p, topic, record_size)
    if p.kind == PARTITION_ROUND_ROBIN:
        turn = topic.turn % choices(topic)
        topic.turn = turn + 1
        return nth_available(topic, turn)
    if p.kind == PARTITION_CONSISTENT or (p.kind == PARTITION_CONSISTENT_RANDOM and key_size > 0):
        return <int32_t>(crc32(0, key, <size_t>key_size) % <uint32_t>topic.count) if key_size > 0 else 0
    return any_partition(p, topic)


def murmur2_of(data) -> int:
    """Return the murmur2 hash of a key, as a signed 32-bit number as in Java."""
    cdef Py_buffer view
    cdef int32_t value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    value = <int32_t>murmur2(<const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return value
