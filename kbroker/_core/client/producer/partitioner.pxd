"""Chooses the partition of a producer's record. A lock of the caller guards the state.

The kinds of choice are: murmur2, Java's default (a record without a key goes to the sticky partition of KIP-794);
random, as in Kafka 0.7 and 0.8; round robin; `consistent` and `consistent_random`, librdkafka's CRC-32 (a record
without a key goes to partition 0, or to a random one).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    PARTITION_MURMUR2 = 0
    PARTITION_MURMUR2_RANDOM = 1     # a record without a key goes to a random partition
    PARTITION_RANDOM = 2             # regardless of keys
    PARTITION_ROUND_ROBIN = 3
    PARTITION_CONSISTENT = 4
    PARTITION_CONSISTENT_RANDOM = 5
    PARTITION_STICKY = 6             # regardless of keys
    PARTITION_CALLABLE = 7           # the caller asks a Python function

ctypedef struct partitioner_t:
    uint64_t random                  # state of the generator; never 0
    int64_t sticky_bytes             # bytes that go to a sticky partition before the next one is drawn
    int32_t kind

# The partitions of one topic, and what the partitioner remembers of it.
ctypedef struct spread_t:
    int32_t count                    # partitions
    const int32_t *available         # partitions with a leader, for records without a key; if empty, all
    int32_t available_count
    int32_t sticky                   # the sticky partition; -1: not drawn yet
    int64_t sticky_used              # bytes that went to the sticky partition
    uint32_t turn                    # of round robin

# The hash of Kafka's clients: 32-bit MurmurHash2.
cdef uint32_t murmur2(const uint8_t *data, int64_t size) noexcept nogil
cdef void partitioner_init(partitioner_t *p, int32_t kind, int64_t sticky_bytes) noexcept nogil
# Chooses the partition of a record. key_size is -1 for no key; record_size is about what the record adds to its batch.
cdef int32_t partition_for(partitioner_t *p, spread_t *topic, const uint8_t *key, int64_t key_size,
                           int64_t record_size) noexcept nogil
