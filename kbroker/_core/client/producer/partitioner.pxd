"""Which partition a record of a producer goes to, on bare pointers. The caller's lock guards the state.

Kinds and where they come from: murmur2 as Java's default (a null key goes to the sticky partition of KIP-794), random as 0.7 and
0.8 had it, round robin, and the CRC-32 of librdkafka (`consistent`: a record without key goes to partition 0; `consistent_random`).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    PARTITION_MURMUR2 = 0
    PARTITION_MURMUR2_RANDOM = 1     # a record without key goes anywhere
    PARTITION_RANDOM = 2             # keys are not looked at
    PARTITION_ROUND_ROBIN = 3
    PARTITION_CONSISTENT = 4
    PARTITION_CONSISTENT_RANDOM = 5
    PARTITION_STICKY = 6             # keys are not looked at
    PARTITION_CALLABLE = 7           # the caller asks a Python function

ctypedef struct partitioner_t:
    uint64_t random                  # state of the generator; never 0
    int64_t sticky_bytes             # so many bytes go to a sticky partition before the next one is drawn
    int32_t kind

# Of one topic.
ctypedef struct spread_t:
    int32_t count                    # partitions
    const int32_t *available         # those with a leader, which records without key go to; all are taken when there is none
    int32_t available_count
    int32_t sticky                   # -1: not drawn yet
    int64_t sticky_used
    uint32_t turn                    # of round robin

cdef uint32_t murmur2(const uint8_t *data, int64_t size) noexcept nogil
cdef void partitioner_init(partitioner_t *p, int32_t kind, int64_t sticky_bytes) noexcept nogil
# key_size -1: no key. record_size is what the record adds to its batch, about.
cdef int32_t partition_for(partitioner_t *p, spread_t *topic, const uint8_t *key, int64_t key_size, int64_t record_size) noexcept nogil
