"""The newest offset of each key, by a 128-bit hash of the key, in memory of a fixed size."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

ctypedef struct dedupe_hash_t:
    uint64_t word[2]

ctypedef struct dedupe_slot_t:
    dedupe_hash_t hash
    uint64_t next_offset         # the newest offset + 1, as a free slot is all zeros

ctypedef struct dedupe_map_t:
    dedupe_slot_t *slots         # a mapping of its own, `slot_count` long
    uint64_t slot_count
    uint64_t count
    uint64_t capacity            # slots that may be taken: the load factor's share, always below slot_count
    uint64_t key[2]              # of the hash
    int64_t latest_offset        # up to which the log is in the map; -1 for nowhere

# A key's hash, which the others ask for.
cdef dedupe_hash_t dedupe_hash(const dedupe_map_t *map, const uint8_t *key, int64_t size) noexcept nogil

# The slots of some keys are on their way into the core's cache: one after the other, each is a wait.
cdef void dedupe_prefetch(const dedupe_map_t *map, const dedupe_hash_t *hashes, int count) noexcept nogil

# The offset replaces a lower one. False when the key is new and the map is full. `offset` is not negative.
cdef bint dedupe_put(dedupe_map_t *map, const dedupe_hash_t *hash, int64_t offset) noexcept nogil

# The newest offset of a key, -1 when it is not there.
cdef int64_t dedupe_get(const dedupe_map_t *map, const dedupe_hash_t *hash) noexcept nogil

cdef class DedupeMap:
    cdef dedupe_map_t map
