"""Bounds-checked reading and writing of big-endian bytes.

`reader_t` walks borrowed bytes; the owner keeps them alive. Every read goes through `reader_take`, whose one check
refuses both a short buffer and a negative size. A failed read sets `failed` and returns zeros from then on, so a parser
may read a whole group of fields and test `failed` once.

`writer_t` owns one growing buffer. A failed allocation sets `failed`; writes are ignored from then on.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint16_t load_u16(const void *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
    static inline uint32_t load_u32(const void *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline uint64_t load_u64(const void *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline void store_u16(void *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
    static inline void store_u32(void *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
    static inline void store_u64(void *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
    """
    uint16_t load_u16(const void *p)
    uint32_t load_u32(const void *p)
    uint64_t load_u64(const void *p)
    void store_u16(void *p, uint16_t v)
    void store_u32(void *p, uint32_t v)
    void store_u64(void *p, uint64_t v)

cdef enum:
    MOST_STRING = 0x7fff         # bytes; compact strings (KIP-482) have the same limit as strings with an int16 size
    # Upper bound of the array elements in one message; where they become objects, four numbers count as one. A small
    # element takes about forty times its bytes as objects or structs, so this bounds the memory that a frame of the
    # largest size can cost. What a controller tells of 200,000 partitions with five replicas needs a million of them.
    MOST_ELEMENTS = 1 << 20

# --- reading ---------------------------------------------------------------------------------------

ctypedef struct reader_t:
    const uint8_t *start
    const uint8_t *at
    const uint8_t *end
    bint failed

cdef inline void reader_init(reader_t *r, const void *data, size_t size) noexcept nogil:
    r.start = <const uint8_t *>data
    r.at = r.start
    r.end = r.start + size
    r.failed = False

cdef inline size_t reader_left(reader_t *r) noexcept nogil:
    return <size_t>(r.end - r.at)

cdef inline const uint8_t *reader_take(reader_t *r, int64_t size) noexcept nogil:
    """The next `size` bytes. Return NULL and set `failed` if fewer are left or `size` is negative."""
    cdef const uint8_t *here = r.at
    if r.failed or <uint64_t>size > <uint64_t>(r.end - r.at):
        r.failed = True
        return NULL
    r.at += size
    return here

cdef inline int8_t read_i8(reader_t *r) noexcept nogil:
    cdef const uint8_t *p = reader_take(r, 1)
    return <int8_t>p[0] if p != NULL else 0

cdef inline int16_t read_i16(reader_t *r) noexcept nogil:
    cdef const uint8_t *p = reader_take(r, 2)
    return <int16_t>load_u16(p) if p != NULL else 0

cdef inline int32_t read_i32(reader_t *r) noexcept nogil:
    cdef const uint8_t *p = reader_take(r, 4)
    return <int32_t>load_u32(p) if p != NULL else 0

cdef inline int64_t read_i64(reader_t *r) noexcept nogil:
    cdef const uint8_t *p = reader_take(r, 8)
    return <int64_t>load_u64(p) if p != NULL else 0

cdef inline uint32_t read_uvarint(reader_t *r) noexcept nogil:
    """Read an unsigned varint of at most 32 bits (KIP-482). A fifth byte above 0x0f or a sixth byte fails."""
    cdef uint32_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while shift < 35:
        if r.failed or r.at == r.end:
            r.failed = True
            return 0
        byte = r.at[0]
        r.at += 1
        if shift == 28 and byte > 0x0f:
            break
        value |= <uint32_t>(byte & 0x7f) << shift
        if byte < 0x80:
            return value
        shift += 7
    r.failed = True
    return 0

cdef inline const uint8_t *read_string(reader_t *r, bint flexible, int32_t *size) noexcept nogil:
    """The bytes of a (compact) string, MOST_STRING at most; NULL with size -1 if it is null or reading has failed."""
    cdef int64_t n = <int64_t>read_uvarint(r) - 1 if flexible else read_i16(r)
    if n > MOST_STRING:
        r.failed = True
    if n == -1 or r.failed:
        size[0] = -1
        return NULL
    size[0] = <int32_t>n
    return reader_take(r, n)

cdef inline bint is_utf8(const uint8_t *data, int32_t size) noexcept nogil:
    """Whether the bytes are valid UTF-8. A name that is sent back must be: else no client could read the response."""
    cdef uint64_t word = 0
    cdef uint8_t lead
    cdef uint8_t low
    cdef uint8_t high
    cdef int32_t more
    cdef int32_t at = 0
    while at + 8 <= size:
        memcpy(&word, data + at, 8)
        if word & <uint64_t>0x8080808080808080:
            break
        at += 8
    while at < size:
        lead = data[at]
        at += 1
        if lead < 0x80:
            continue
        # The range of the second byte excludes overlong forms, surrogates and code points above U+10FFFF.
        low = 0x80
        high = 0xbf
        if 0xc2 <= lead <= 0xdf:
            more = 1
        elif 0xe0 <= lead <= 0xef:
            more = 2
            if lead == 0xe0:
                low = 0xa0
            elif lead == 0xed:
                high = 0x9f
        elif 0xf0 <= lead <= 0xf4:
            more = 3
            if lead == 0xf0:
                low = 0x90
            elif lead == 0xf4:
                high = 0x8f
        else:
            return False
        if size - at < more or not low <= data[at] <= high:
            return False
        at += 1
        while more > 1:
            if data[at] & 0xc0 != 0x80:
                return False
            at += 1
            more -= 1
    return True

cdef inline const uint8_t *read_bytes(reader_t *r, bint flexible, int32_t *size) noexcept nogil:
    """The data of a (compact) bytes field; NULL with size -1 if it is null, or if reading has failed."""
    cdef int64_t n = <int64_t>read_uvarint(r) - 1 if flexible else read_i32(r)
    if n == -1 or n > 0x7fffffff or r.failed:
        if n > 0x7fffffff:
            r.failed = True
        size[0] = -1
        return NULL
    size[0] = <int32_t>n
    return reader_take(r, n)

cdef inline int32_t read_array_count(reader_t *r, bint flexible, size_t min_element_size) noexcept nogil:
    """The element count of an array, -1 for null.

    A count whose elements could not fit into the bytes that are left fails, so that memory is never allocated on its
    word.
    """
    cdef int64_t n = <int64_t>read_uvarint(r) - 1 if flexible else read_i32(r)
    if r.failed or n < -1 or (n > 0 and <uint64_t>n * min_element_size > <uint64_t>(r.end - r.at)):
        r.failed = True
        return -1
    return <int32_t>n

cdef inline void skip_tags(reader_t *r) noexcept nogil:
    """Skip all tagged fields (KIP-482)."""
    cdef uint32_t count = read_uvarint(r)
    while count > 0 and not r.failed:
        read_uvarint(r)
        reader_take(r, read_uvarint(r))
        count -= 1

cdef inline uint32_t read_tag(reader_t *r, reader_t *field) noexcept nogil:
    """Read the header of the next tagged field: return its tag, and set `field` to its bytes.

    The caller tests r.failed.
    """
    cdef uint32_t tag = read_uvarint(r)
    cdef uint32_t size = read_uvarint(r)
    cdef const uint8_t *data = reader_take(r, size)
    reader_init(field, data, size if data != NULL else 0)
    return tag

# --- writing ---------------------------------------------------------------------------------------

ctypedef struct writer_t:
    uint8_t *data            # owned; NULL while empty
    size_t size
    size_t capacity
    bint failed

cdef inline void writer_init(writer_t *w) noexcept nogil:
    w.data = NULL
    w.size = 0
    w.capacity = 0
    w.failed = False

cdef inline void writer_free(writer_t *w) noexcept nogil:
    free(w.data)
    writer_init(w)

cdef inline uint8_t *writer_reserve(writer_t *w, size_t size) noexcept nogil:
    """Make room for `size` more bytes, which count as written. Return where they go; NULL if memory is out."""
    cdef size_t capacity
    cdef uint8_t *grown
    if w.failed or size >> 42:      # such a large size can only be a negative one, by mistake
        w.failed = True
        return NULL
    if w.size + size > w.capacity:
        capacity = w.capacity * 2 if w.capacity else 128
        while capacity < w.size + size:
            capacity *= 2
        grown = <uint8_t *>realloc(w.data, capacity)
        if grown == NULL:
            w.failed = True
            return NULL
        w.data = grown
        w.capacity = capacity
    grown = w.data + w.size
    w.size += size
    return grown

cdef inline void write_i8(writer_t *w, int8_t value) noexcept nogil:
    cdef uint8_t *p = writer_reserve(w, 1)
    if p != NULL:
        p[0] = <uint8_t>value

cdef inline void write_i16(writer_t *w, int16_t value) noexcept nogil:
    cdef uint8_t *p = writer_reserve(w, 2)
    if p != NULL:
        store_u16(p, <uint16_t>value)

cdef inline void write_i32(writer_t *w, int32_t value) noexcept nogil:
    cdef uint8_t *p = writer_reserve(w, 4)
    if p != NULL:
        store_u32(p, <uint32_t>value)

cdef inline void write_i64(writer_t *w, int64_t value) noexcept nogil:
    cdef uint8_t *p = writer_reserve(w, 8)
    if p != NULL:
        store_u64(p, <uint64_t>value)

cdef inline void write_raw(writer_t *w, const void *data, size_t size) noexcept nogil:
    cdef uint8_t *p = writer_reserve(w, size)
    if p != NULL and size:
        memcpy(p, data, size)

cdef inline void write_uvarint(writer_t *w, uint32_t value) noexcept nogil:
    cdef uint8_t *p = writer_reserve(w, 5)
    cdef int n = 0
    if p == NULL:
        return
    while value >= 0x80:
        p[n] = <uint8_t>(value | 0x80)
        value >>= 7
        n += 1
    p[n] = <uint8_t>value
    w.size -= 4 - n

cdef inline void write_string(writer_t *w, const void *data, int32_t size, bint flexible) noexcept nogil:
    """Write a (compact) string; size -1 writes null."""
    if flexible:
        write_uvarint(w, <uint32_t>(size + 1))
    else:
        write_i16(w, <int16_t>size)
    if size > 0:
        write_raw(w, data, size)

cdef inline void write_array_count(writer_t *w, int32_t count, bint flexible) noexcept nogil:
    if flexible:
        write_uvarint(w, <uint32_t>(count + 1))
    else:
        write_i32(w, count)
