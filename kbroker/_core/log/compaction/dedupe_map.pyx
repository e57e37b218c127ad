"""The newest offset of each key of a log, for compaction, in memory of a fixed size.

As in Kafka's SkimpyOffsetMap, a key is represented by a hash of 128 bits, which makes 24 bytes with the offset. Two
keys with the same hash would lose a record; by chance that is not expected to happen ever. Against somebody who
searches for such keys, the hash is SipHash-2-4 with a result of 128 bits and a secret for each map (Kafka: plain MD5).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kbroker._core.base.seeded_hash cimport siphash_128

import os

cdef enum:
    SLOT_SIZE = 24
    LEAST_SLOTS = 2

cdef extern from * nogil:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <sys/mman.h>

    /* Zeros: memory only where they are written. At `old` it takes the place of what is there. */
    static inline void *map_zeros(void *old, size_t size) {
        void *made = mmap(old, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (old ? MAP_FIXED : 0), -1, 0);
        return made == MAP_FAILED ? NULL : made;
    }
    static inline void use_huge_pages(void *where, size_t size) {
        (void)madvise(where, size, MADV_HUGEPAGE);
    }
    static inline uint64_t scaled(uint64_t hash, uint64_t count) {
        return (uint64_t)(((unsigned __int128)hash * count) >> 64);
    }
    """
    void prefetch "__builtin_prefetch"(const void *where)
    void *map_zeros(void *old, size_t size)
    void use_huge_pages(void *where, size_t size)
    int munmap(void *where, size_t size)
    uint64_t scaled(uint64_t hash, uint64_t count)


cdef inline dedupe_slot_t *first_slot(const dedupe_map_t *map, const dedupe_hash_t *hash) noexcept nogil:
    return map.slots + scaled(hash.word[0], map.slot_count)


cdef dedupe_hash_t dedupe_hash(const dedupe_map_t *map, const uint8_t *key, int64_t size) noexcept nogil:
    cdef dedupe_hash_t hash
    siphash_128(map.key, key, <size_t>size, hash.word)
    return hash


cdef void dedupe_prefetch(const dedupe_map_t *map, const dedupe_hash_t *hashes, int count) noexcept nogil:
    # A loop of its own, so that the processor resolves several addresses at once: even that takes long for each.
    cdef const uint8_t *slot
    cdef int at
    for at in range(count):
        slot = <const uint8_t *>first_slot(map, &hashes[at])
        prefetch(slot)
        prefetch(slot + SLOT_SIZE - 1)    # a slot may end in the next cache line


cdef inline dedupe_slot_t *find_slot(const dedupe_map_t *map, const dedupe_hash_t *hash) noexcept nogil:
    """Return the slot of a key, or the free slot where it belongs. There is always a free one."""
    cdef dedupe_slot_t *slot = first_slot(map, hash)
    while True:
        if slot.next_offset == 0 or (slot.hash.word[0] == hash.word[0] and slot.hash.word[1] == hash.word[1]):
            return slot
        slot += 1
        if slot == map.slots + map.slot_count:
            slot = map.slots


cdef bint dedupe_enter(dedupe_map_t *map, const dedupe_hash_t *hash, int64_t offset) noexcept nogil:
    cdef dedupe_slot_t *slot = find_slot(map, hash)
    if slot.next_offset == 0:
        if map.count == map.capacity:
            return False
        slot.hash = hash[0]
        map.count += 1
    if <uint64_t>offset + 1 > slot.next_offset:
        slot.next_offset = <uint64_t>offset + 1
    return True


cdef int64_t dedupe_get(const dedupe_map_t *map, const dedupe_hash_t *hash) noexcept nogil:
    return <int64_t>(find_slot(map, hash).next_offset - 1)


@cython.final
cdef class DedupeMap:
    """A map from key to newest offset in `buffer_size` bytes, of which the share `load_factor` may be in use.

    `latest_offset` tells up to which offset the log is in the map; the code that feeds the map sets it. One thread at a
    time. Raises ValueError when `buffer_size` is too small, `load_factor` is not in (0, 1] or `hash_key` is not 16
    bytes.
    """

    def __cinit__(self, int64_t buffer_size, double load_factor=0.9, bytes hash_key=None):
        cdef uint64_t slot_count
        cdef const uint8_t *secret
        if buffer_size < LEAST_SLOTS * SLOT_SIZE:
            raise ValueError(f"a map of {buffer_size} bytes has room for no key")
        if not 0 < load_factor <= 1:
            raise ValueError(f"a load factor of {load_factor} is not in 0 to 1")
        hash_key = os.urandom(16) if hash_key is None else hash_key
        if len(hash_key) != 16:
            raise ValueError("the key of the hash has 16 bytes")
        secret = hash_key
        memcpy(self.map.key, secret, 16)
        slot_count = <uint64_t>buffer_size // SLOT_SIZE
        self.map.slots = <dedupe_slot_t *>map_zeros(NULL, slot_count * SLOT_SIZE)
        if self.map.slots == NULL:
            raise MemoryError
        self.map.slot_count = slot_count
        # One slot is always free: it ends the search for a key that is not there.
        self.map.capacity = min(slot_count - 1, max(<uint64_t>1, <uint64_t>(slot_count * load_factor)))
        self.map.latest_offset = -1

    def __dealloc__(self):
        if self.map.slots != NULL:
            munmap(self.map.slots, self.size)

    def __len__(self):
        return self.map.count

    @property
    def size(self):
        """The bytes of memory that the map may use."""
        return self.map.slot_count * SLOT_SIZE

    @property
    def capacity(self):
        """The number of keys that the map takes."""
        return self.map.capacity

    @property
    def latest_offset(self):
        return self.map.latest_offset

    @latest_offset.setter
    def latest_offset(self, int64_t offset):
        self.map.latest_offset = offset

    def enter(self, key, int64_t offset):
        """Enter a key; an offset below the known one is ignored. Return False when the key is new and the map is full.

        Raises ValueError when `offset` is negative.
        """
        cdef Py_buffer view
        cdef dedupe_hash_t hash
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        try:
            hash = dedupe_hash(&self.map, <const uint8_t *>view.buf, view.len)
            return dedupe_enter(&self.map, &hash, offset)
        finally:
            PyBuffer_Release(&view)

    def get(self, key):
        """Return the newest offset of a key, -1 when the key is not in the map."""
        cdef Py_buffer view
        cdef dedupe_hash_t hash
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        try:
            hash = dedupe_hash(&self.map, <const uint8_t *>view.buf, view.len)
            return dedupe_get(&self.map, &hash)
        finally:
            PyBuffer_Release(&view)

    def clear(self, *, bint for_many=False):
        """Forget all keys and give the memory back to the system.

        `for_many`: so many keys will follow that all of the memory will be used. It then comes in huge pages, where the
        system has them: with small pages, address translation takes longer than everything else.
        """
        if map_zeros(self.map.slots, self.size) == NULL:
            raise MemoryError
        if for_many:
            use_huge_pages(self.map.slots, self.size)
        self.map.count = 0
        self.map.latest_offset = -1


def key_hash(bytes secret not None, bytes data not None):
    """Return the 16-byte hash that the map uses, to test it against the published vectors."""
    cdef uint64_t[2] made
    cdef uint64_t[2] key
    cdef const uint8_t *p = secret
    if len(secret) != 16:
        raise ValueError("the key of the hash has 16 bytes")
    memcpy(key, p, 16)
    p = data
    siphash_128(key, p, <size_t>len(data), made)
    return (<char *>made)[:16]
