/* CRC-32C (Castagnoli) and CRC-32 (zlib), the fastest that this machine can do, chosen when the module is loaded.
 *
 * Both are reflected CRCs of 32 bits and share everything but the polynomial. Functions named `raw` take and give the
 * shift register itself; the public ones invert it before and after, as zlib does.
 *
 * Implementations, slowest first:
 *   portable   slice-by-8 tables, any machine with little-endian loads
 *   hardware   the CPU's CRC instruction (x86: CRC-32C only; aarch64: both), one stream
 *   pclmul     carry-less multiplication: four lanes of 16 bytes folded side by side (x86: PCLMULQDQ, SSE4.2)
 *   vpclmul    the same with four lanes of 64 bytes (x86: AVX512 and VPCLMULQDQ)
 *
 * Folding: a lane of 128 bits that stands D bits before another may be multiplied by x^D mod P and added to it without
 * a change of the remainder. The multiplication is done on 64-bit halves with constants made at load time from P itself
 * (see `crc_make`). The bytes that are left in the end, at most 64, go through a plain implementation with a zero
 * register.
 */

#ifndef KBROKER_CRC_H
#define KBROKER_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kbroker's compiled core is written for little-endian machines"
#endif

#if defined(__x86_64__)
#define CRC_X86 1
#include <immintrin.h>
#elif defined(__aarch64__)
#define CRC_ARM 1
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

enum { CRC_PORTABLE = 0, CRC_HARDWARE = 1, CRC_PCLMUL = 2, CRC_VPCLMUL = 3, CRC_IMPLEMENTATIONS = 4 };

typedef uint32_t (*crc_function_t)(uint32_t raw, const uint8_t *data, size_t size);

typedef struct {
    uint32_t table[8][256];
    uint64_t fold_128[2], fold_512[2], fold_2048[2];   /* multipliers of the halves of a lane, by distance in bits */
} crc_constants_t;

static crc_constants_t crc32c_constants;
static crc_constants_t crc32_constants;

/* --- portable ------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) uint32_t
crc_sliced(const crc_constants_t *c, uint32_t raw, const uint8_t *p, size_t size) {
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        word ^= raw;
        raw = c->table[7][word & 0xff] ^ c->table[6][(word >> 8) & 0xff] ^ c->table[5][(word >> 16) & 0xff] ^
              c->table[4][(word >> 24) & 0xff] ^ c->table[3][(word >> 32) & 0xff] ^ c->table[2][(word >> 40) & 0xff] ^
              c->table[1][(word >> 48) & 0xff] ^ c->table[0][word >> 56];
        p += 8;
        size -= 8;
    }
    while (size--)
        raw = (raw >> 8) ^ c->table[0][(raw ^ *p++) & 0xff];
    return raw;
}

static uint32_t crc32c_portable(uint32_t raw, const uint8_t *p, size_t size) {
    return crc_sliced(&crc32c_constants, raw, p, size);
}

static uint32_t crc32_portable(uint32_t raw, const uint8_t *p, size_t size) {
    return crc_sliced(&crc32_constants, raw, p, size);
}

/* --- x86-64 --------------------------------------------------------------------------------------- */
#ifdef CRC_X86

#define TARGET_SSE42 __attribute__((target("sse4.2")))
#define TARGET_PCLMUL __attribute__((target("sse4.2,pclmul")))
#define TARGET_VPCLMUL __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))

TARGET_SSE42 static uint32_t crc32c_hardware(uint32_t raw, const uint8_t *p, size_t size) {
    uint64_t word, state = raw;
    uint32_t half;
    for (; size >= 8; p += 8, size -= 8) {
        memcpy(&word, p, 8);
        state = _mm_crc32_u64(state, word);
    }
    raw = (uint32_t)state;
    if (size & 4) {
        memcpy(&half, p, 4);
        raw = _mm_crc32_u32(raw, half);
        p += 4;
    }
    if (size & 2) {
        uint16_t pair;
        memcpy(&pair, p, 2);
        raw = _mm_crc32_u16(raw, pair);
        p += 2;
    }
    if (size & 1)
        raw = _mm_crc32_u8(raw, *p);
    return raw;
}

TARGET_PCLMUL static inline __m128i crc_fold(__m128i lane, __m128i multipliers, __m128i next) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(lane, multipliers, 0x00),
                                       _mm_clmulepi64_si128(lane, multipliers, 0x11)), next);
}

/* Needs size >= 64. */
TARGET_PCLMUL static inline __attribute__((always_inline)) uint32_t
crc_folded(const crc_constants_t *c, crc_function_t rest, uint32_t raw, const uint8_t *p, size_t size) {
    const __m128i far = _mm_loadu_si128((const __m128i *)c->fold_512);
    const __m128i near = _mm_loadu_si128((const __m128i *)c->fold_128);
    __m128i a = _mm_xor_si128(_mm_loadu_si128((const __m128i *)p), _mm_cvtsi32_si128((int)raw));
    __m128i b = _mm_loadu_si128((const __m128i *)(p + 16));
    __m128i d = _mm_loadu_si128((const __m128i *)(p + 32));
    __m128i e = _mm_loadu_si128((const __m128i *)(p + 48));
    uint8_t left[16];
    for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
        a = crc_fold(a, far, _mm_loadu_si128((const __m128i *)p));
        b = crc_fold(b, far, _mm_loadu_si128((const __m128i *)(p + 16)));
        d = crc_fold(d, far, _mm_loadu_si128((const __m128i *)(p + 32)));
        e = crc_fold(e, far, _mm_loadu_si128((const __m128i *)(p + 48)));
    }
    a = crc_fold(crc_fold(crc_fold(a, near, b), near, d), near, e);
    for (; size >= 16; p += 16, size -= 16)
        a = crc_fold(a, near, _mm_loadu_si128((const __m128i *)p));
    _mm_storeu_si128((__m128i *)left, a);
    return rest(rest(0, left, 16), p, size);
}

TARGET_PCLMUL static uint32_t crc32c_pclmul(uint32_t raw, const uint8_t *p, size_t size) {
    /* Below some 200 bytes the chain of CRC instructions is as quick as the folds and what follows them. */
    return size < 192 ? crc32c_hardware(raw, p, size) : crc_folded(&crc32c_constants, crc32c_hardware, raw, p, size);
}

TARGET_PCLMUL static uint32_t crc32_pclmul(uint32_t raw, const uint8_t *p, size_t size) {
    return size < 64 ? crc32_portable(raw, p, size) : crc_folded(&crc32_constants, crc32_portable, raw, p, size);
}

TARGET_VPCLMUL static inline __m512i crc_fold_wide(__m512i lane, __m512i multipliers, __m512i next) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lane, multipliers, 0x00),
                                     _mm512_clmulepi64_epi128(lane, multipliers, 0x11), next, 0x96);
}

/* Needs size >= 256. */
TARGET_VPCLMUL static inline __attribute__((always_inline)) uint32_t
crc_folded_wide(const crc_constants_t *c, crc_function_t rest, uint32_t raw, const uint8_t *p, size_t size) {
    const __m512i far = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)c->fold_2048));
    const __m512i near = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)c->fold_512));
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)raw)));
    __m512i b = _mm512_loadu_si512(p + 64);
    __m512i d = _mm512_loadu_si512(p + 128);
    __m512i e = _mm512_loadu_si512(p + 192);
    uint8_t left[64];
    for (p += 256, size -= 256; size >= 256; p += 256, size -= 256) {
        a = crc_fold_wide(a, far, _mm512_loadu_si512(p));
        b = crc_fold_wide(b, far, _mm512_loadu_si512(p + 64));
        d = crc_fold_wide(d, far, _mm512_loadu_si512(p + 128));
        e = crc_fold_wide(e, far, _mm512_loadu_si512(p + 192));
    }
    a = crc_fold_wide(crc_fold_wide(crc_fold_wide(a, near, b), near, d), near, e);
    for (; size >= 64; p += 64, size -= 64)
        a = crc_fold_wide(a, near, _mm512_loadu_si512(p));
    _mm512_storeu_si512(left, a);
    _mm256_zeroupper();
    return rest(crc_folded(c, rest, 0, left, 64), p, size);
}

/* The first 512-bit instruction after a while costs some 150 ns (the wide unit wakes up): not for small batches. */
enum { CRC_WIDE_FROM = 8192 };

TARGET_VPCLMUL static uint32_t crc32c_vpclmul(uint32_t raw, const uint8_t *p, size_t size) {
    return size < CRC_WIDE_FROM ? crc32c_pclmul(raw, p, size)
                                : crc_folded_wide(&crc32c_constants, crc32c_hardware, raw, p, size);
}

TARGET_VPCLMUL static uint32_t crc32_vpclmul(uint32_t raw, const uint8_t *p, size_t size) {
    return size < CRC_WIDE_FROM ? crc32_pclmul(raw, p, size)
                                : crc_folded_wide(&crc32_constants, crc32_portable, raw, p, size);
}
#endif

/* --- aarch64 -------------------------------------------------------------------------------------- */
#ifdef CRC_ARM

#define CRC_ARM_STREAM(NAME, EIGHT, ONE)                                                     \
    __attribute__((target("+crc"))) static uint32_t NAME(uint32_t raw, const uint8_t *p, size_t size) { \
        uint64_t word;                                                                       \
        for (; size >= 8; p += 8, size -= 8) {                                               \
            memcpy(&word, p, 8);                                                             \
            raw = EIGHT(raw, word);                                                          \
        }                                                                                    \
        while (size--)                                                                       \
            raw = ONE(raw, *p++);                                                            \
        return raw;                                                                          \
    }
CRC_ARM_STREAM(crc32c_hardware, __crc32cd, __crc32cb)
CRC_ARM_STREAM(crc32_hardware, __crc32d, __crc32b)
#endif

/* --- the choice ----------------------------------------------------------------------------------- */

static crc_function_t crc32c_functions[CRC_IMPLEMENTATIONS];    /* NULL where this machine cannot */
static crc_function_t crc32_functions[CRC_IMPLEMENTATIONS];
static crc_function_t crc32c_chosen;
static crc_function_t crc32_chosen;

/* x^n mod P, reflected. */
static uint32_t crc_power(uint32_t polynomial, unsigned n) {
    uint32_t value = 0x80000000u;
    while (n--)
        value = (value >> 1) ^ (value & 1 ? polynomial : 0);
    return value;
}

static void crc_make(crc_constants_t *c, uint32_t polynomial) {
    const struct { uint64_t *pair; unsigned distance; } folds[] = {
        {c->fold_128, 128}, {c->fold_512, 512}, {c->fold_2048, 2048},
    };
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (value & 1 ? polynomial : 0);
        c->table[0][byte] = value;
    }
    for (unsigned byte = 0; byte < 256; byte++)
        for (int slice = 1; slice < 8; slice++)
            c->table[slice][byte] = (c->table[slice - 1][byte] >> 8) ^ c->table[0][c->table[slice - 1][byte] & 0xff];
    /* The low half of a reflected lane holds the higher powers. A product of reflected factors comes out one bit low,
     * hence the shift; the 32 is the width of the constant itself. */
    for (unsigned i = 0; i < sizeof folds / sizeof *folds; i++) {
        folds[i].pair[0] = (uint64_t)crc_power(polynomial, folds[i].distance + 32) << 1;
        folds[i].pair[1] = (uint64_t)crc_power(polynomial, folds[i].distance - 32) << 1;
    }
}

/* Returns 0, or -1 when this machine lacks `implementation` for that checksum. Not safe while another thread computes a
   checksum. */
static int crc32c_choose(int implementation) {
    if (!crc32c_functions[implementation])
        return -1;
    crc32c_chosen = crc32c_functions[implementation];
    return 0;
}

static int crc32_choose(int implementation) {
    if (!crc32_functions[implementation])
        return -1;
    crc32_chosen = crc32_functions[implementation];
    return 0;
}

static void crc_start(void) {
    crc_make(&crc32c_constants, 0x82f63b78u);
    crc_make(&crc32_constants, 0xedb88320u);
    crc32c_functions[CRC_PORTABLE] = crc32c_portable;
    crc32_functions[CRC_PORTABLE] = crc32_portable;
#ifdef CRC_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) {
        crc32c_functions[CRC_HARDWARE] = crc32c_hardware;
        if (__builtin_cpu_supports("pclmul")) {
            crc32c_functions[CRC_PCLMUL] = crc32c_pclmul;
            crc32_functions[CRC_PCLMUL] = crc32_pclmul;
            if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq")) {
                crc32c_functions[CRC_VPCLMUL] = crc32c_vpclmul;
                crc32_functions[CRC_VPCLMUL] = crc32_vpclmul;
            }
        }
    }
#elif defined(CRC_ARM) && defined(__linux__)
    if (getauxval(AT_HWCAP) & (1 << 7)) {    /* HWCAP_CRC32 */
        crc32c_functions[CRC_HARDWARE] = crc32c_hardware;
        crc32_functions[CRC_HARDWARE] = crc32_hardware;
    }
#endif
    for (int i = 0; i < CRC_IMPLEMENTATIONS; i++) {
        crc32c_choose(i);
        crc32_choose(i);
    }
}

#endif
