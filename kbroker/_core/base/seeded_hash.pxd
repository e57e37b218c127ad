"""Hashes of keys that come from outside: SipHash (Aumasson, Bernstein) under a secret.

Somebody who does not know the secret cannot choose keys that collide in a table. `seeded_hash` and
`seeded_hash_of_number` are for tables of this process: each module that uses them draws a secret when it is loaded, so
their results must not be stored or passed to another module. `siphash_64` and `siphash_128` take the caller's secret.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from * nogil:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>

    #define SIP_TURN(x, b) ((x) << (b) | (x) >> (64 - (b)))
    #define SIP_ROUND \\
        v0 += v1; v1 = SIP_TURN(v1, 13); v1 ^= v0; v0 = SIP_TURN(v0, 32); \\
        v2 += v3; v3 = SIP_TURN(v3, 16); v3 ^= v2; \\
        v0 += v3; v3 = SIP_TURN(v3, 21); v3 ^= v0; \\
        v2 += v1; v1 = SIP_TURN(v1, 17); v1 ^= v2; v2 = SIP_TURN(v2, 32);

    static uint64_t hash_secret[2];
    __attribute__((constructor)) static void draw_hash_secret(void) {
        if (getentropy(hash_secret, sizeof hash_secret) != 0)
            abort();    /* the system has no randomness: nothing here would keep what it promises */
    }

    /* The bytes behind the last whole word, and the size in the highest byte. */
    static inline uint64_t sip_last_word(const uint8_t *data, size_t size) {
        uint64_t last = (uint64_t)size << 56;
        for (size_t i = 0; i < (size & 7); i++)
            last |= (uint64_t)data[(size & ~(size_t)7) + i] << 8 * i;
        return last;
    }

    /* SipHash-1-3 of the number's eight bytes and `data` behind them; words are little-endian. */
    static inline uint64_t siphash_64(const uint64_t key[2], uint64_t number, const uint8_t *data, size_t size) {
        uint64_t v0 = 0x736f6d6570736575u ^ key[0], v1 = 0x646f72616e646f6du ^ key[1];
        uint64_t v2 = 0x6c7967656e657261u ^ key[0], v3 = 0x7465646279746573u ^ key[1] ^ number;
        uint64_t word;
        const uint8_t *end = data + (size & ~(size_t)7);
        SIP_ROUND
        v0 ^= number;
        for (const uint8_t *at = data; at < end; at += 8) {
            memcpy(&word, at, 8);
            v3 ^= word;
            SIP_ROUND
            v0 ^= word;
        }
        word = sip_last_word(data, size) + ((uint64_t)8 << 56);
        v3 ^= word;
        SIP_ROUND
        v0 ^= word;
        v2 ^= 0xff;
        SIP_ROUND SIP_ROUND SIP_ROUND
        return v0 ^ v1 ^ v2 ^ v3;
    }
    static inline uint64_t seeded_hash(const uint8_t *data, int64_t size, uint64_t number) {
        return siphash_64(hash_secret, number, data, (size_t)size);
    }
    static inline uint64_t seeded_hash_of_number(uint64_t number) {
        return siphash_64(hash_secret, number, (const uint8_t *)"", 0);
    }

    /* SipHash-2-4 with a result of 128 bits. */
    static inline void siphash_128(const uint64_t key[2], const uint8_t *data, size_t size, uint64_t hash[2]) {
        uint64_t v0 = 0x736f6d6570736575u ^ key[0], v1 = 0x646f72616e646f6du ^ key[1] ^ 0xee;
        uint64_t v2 = 0x6c7967656e657261u ^ key[0], v3 = 0x7465646279746573u ^ key[1];
        uint64_t word, last = sip_last_word(data, size);
        const uint8_t *end = data + (size & ~(size_t)7);
        for (; data < end; data += 8) {
            memcpy(&word, data, 8);
            v3 ^= word;
            SIP_ROUND SIP_ROUND
            v0 ^= word;
        }
        v3 ^= last;
        SIP_ROUND SIP_ROUND
        v0 ^= last;
        v2 ^= 0xee;
        SIP_ROUND SIP_ROUND SIP_ROUND SIP_ROUND
        hash[0] = v0 ^ v1 ^ v2 ^ v3;
        v1 ^= 0xdd;
        SIP_ROUND SIP_ROUND SIP_ROUND SIP_ROUND
        hash[1] = v0 ^ v1 ^ v2 ^ v3;
    }
    """
    # The hash of a name and a number, such as a topic (or its id) and a partition.
    uint64_t seeded_hash(const uint8_t *data, int64_t size, uint64_t number)
    uint64_t seeded_hash_of_number(uint64_t number)
    # The same family under the caller's secret: `key` is two words; siphash_128 writes two words to `hash`.
    uint64_t siphash_64(const uint64_t *key, uint64_t number, const uint8_t *data, size_t size)
    void siphash_128(const uint64_t *key, const uint8_t *data, size_t size, uint64_t *hash)
