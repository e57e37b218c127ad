"""The newest offset of each key, by a 128-bit hash of the key, in memory of a fixed size."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

ctypedef struct dedupe_hash_t:
    uint64_t word[2]

ctypedef struct dedupe_slot_t:
    dedupe_hash_t hash
    uint64_t next_offset         # the newest offset + 1; 0: the slot is free

ctypedef struct dedupe_map_t:
    dedupe_slot_t *slots         # owned; a mapping of `slot_count` slots
    uint64_t slot_count
    uint64_t count               # slots that are taken
    uint64_t capacity            # slots that may be taken: the load factor's share, always below slot_count
    uint64_t key[2]              # the secret of the hash
    int64_t latest_offset        # the log is in the map up to this offset; -1: nothing of it is

# The hash of a key, which the other functions take.
cdef dedupe_hash_t dedupe_hash(const dedupe_map_t *map, const uint8_t *key, int64_t size) noexcept nogil

# Start to load the slots of `count` keys into the cache. Looked up one after the other, each would be a wait.
cdef void dedupe_prefetch(const dedupe_map_t *map, const dedupe_hash_t *hashes, int count) noexcept nogil

# Put a key with its offset, which is not negative; it replaces a lower offset. False when the key is new and the map
# full.
cdef bint dedupe_enter(dedupe_map_t *map, const dedupe_hash_t *hash, int64_t offset) noexcept nogil

# The newest offset of a key, -1 when the key is not in the map.
cdef int64_t dedupe_get(const dedupe_map_t *map, const dedupe_hash_t *hash) noexcept nogil

cdef class DedupeMap:
    cdef dedupe_map_t map
