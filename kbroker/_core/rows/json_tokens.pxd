"""Reads tokens of JSON texts (RFC 8259), for json.pyx.

Functions read at `json_t.at`, and leave it behind what they have read. A function that fails leaves it where it failed;
a caller that wants to go on keeps where the value began.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from kbroker._core.rows.typed_columns cimport FINE, MALFORMED, NO_MEMORY, NOT_UTF8, TOO_DEEP
from kbroker._core.wire.cursor cimport is_utf8, writer_reserve, writer_t

cdef enum:
    MOST_NESTED = 1000           # levels of objects and arrays, as in Jackson

cdef enum:
    # The kinds of tokens.
    NO_TOKEN
    OBJECT
    ARRAY
    TEXT
    WHOLE                        # a number without a point and an exponent
    REAL
    TRUE
    FALSE
    NULL_TOKEN
    SPECIAL                      # NaN, or an infinity

cdef struct json_t:
    const uint8_t *at
    const uint8_t *end
    writer_t scratch             # a string without its escapes, or a number with a zero behind it
    int wrong                    # FINE, or what was wrong with the first field that became null for it
    int wrong_node               # the index of that field's column
    int depth                    # how many objects and arrays are open in columns
    int64_t nulls_left           # how many nulls may still be put for what the value does not say
    uint8_t[MOST_NESTED] nested  # the closing brackets of the objects and arrays that `skip` is in


cdef inline void blanks(json_t *j) noexcept nogil:
    while j.at < j.end and (j.at[0] == 0x20 or j.at[0] == 0x0a or j.at[0] == 0x0d or j.at[0] == 0x09):
        j.at += 1


cdef inline bint is_digit(json_t *j) noexcept nogil:
    return j.at < j.end and 0x30 <= j.at[0] <= 0x39


cdef inline bint word(json_t *j, const char *text, int size) noexcept nogil:
    if j.end - j.at < size or memcmp(j.at, text, <size_t>size) != 0:
        return False
    j.at += size
    return True


cdef inline int number(json_t *j) noexcept nogil:
    """Read a number. Return WHOLE, REAL or SPECIAL, or NO_TOKEN if there is no number."""
    cdef int found = WHOLE
    if j.at[0] == b"-":
        j.at += 1
        if word(j, b"Infinity", 8) or word(j, b"INF", 3):
            return SPECIAL
    if not is_digit(j):
        return NO_TOKEN
    if j.at[0] == b"0":
        j.at += 1
        if is_digit(j):
            return NO_TOKEN
    while is_digit(j):
        j.at += 1
    if j.at < j.end and j.at[0] == b".":
        found = REAL
        j.at += 1
        if not is_digit(j):
            return NO_TOKEN
        while is_digit(j):
            j.at += 1
    if j.at < j.end and (j.at[0] == b"e" or j.at[0] == b"E"):
        found = REAL
        j.at += 1
        if j.at < j.end and (j.at[0] == b"-" or j.at[0] == b"+"):
            j.at += 1
        if not is_digit(j):
            return NO_TOKEN
        while is_digit(j):
            j.at += 1
    return found


cdef inline int string_end(json_t *j, const uint8_t **start, int64_t *size, bint *escaped) noexcept nogil:
    """Read a string from its opening quote to its closing one. Return FINE or MALFORMED.

    `start` and `size` are set to what is between the quotes. Escapes are not checked: `unescaped` does.
    """
    cdef uint8_t quote = j.at[0], c
    j.at += 1
    start[0] = j.at
    escaped[0] = False
    while j.at < j.end:
        c = j.at[0]
        if c == quote:
            size[0] = j.at - start[0]
            j.at += 1
            return FINE
        if c == b"\\":
            escaped[0] = True
            j.at += 1
            if j.at == j.end:
                return MALFORMED
        elif c < 0x20:
            return MALFORMED
        j.at += 1
    return MALFORMED


cdef inline bint four_digits(const uint8_t *p, const uint8_t *end, uint32_t *value) noexcept nogil:
    cdef int i
    cdef uint8_t c
    value[0] = 0
    if end - p < 4:
        return False
    for i in range(4):
        c = p[i]
        if 0x30 <= c <= 0x39:
            c -= 0x30
        elif 0x41 <= c & 0xdf <= 0x46:
            c = (c & 0xdf) - 0x37
        else:
            return False
        value[0] = value[0] << 4 | c
    return True


cdef inline int put_letter(writer_t *out, uint32_t letter) noexcept nogil:
    cdef uint8_t *p = writer_reserve(out, 4)
    cdef int size
    if p == NULL:
        return NO_MEMORY
    if letter < 0x80:
        p[0] = <uint8_t>letter
        size = 1
    elif letter < 0x800:
        p[0] = <uint8_t>(0xc0 | letter >> 6)
        p[1] = <uint8_t>(0x80 | letter & 0x3f)
        size = 2
    elif letter < 0x10000:
        p[0] = <uint8_t>(0xe0 | letter >> 12)
        p[1] = <uint8_t>(0x80 | letter >> 6 & 0x3f)
        p[2] = <uint8_t>(0x80 | letter & 0x3f)
        size = 3
    else:
        p[0] = <uint8_t>(0xf0 | letter >> 18)
        p[1] = <uint8_t>(0x80 | letter >> 12 & 0x3f)
        p[2] = <uint8_t>(0x80 | letter >> 6 & 0x3f)
        p[3] = <uint8_t>(0x80 | letter & 0x3f)
        size = 4
    out.size -= 4 - size
    return FINE


cdef inline int unescaped(json_t *j, const uint8_t **start, int64_t *size) noexcept nogil:
    """Resolve a string's escapes. Return FINE, MALFORMED or NO_MEMORY.

    The result is in the scratch, valid until its next use. Half of a surrogate pair becomes a question mark, as in
    Java.
    """
    cdef const uint8_t *p = start[0]
    cdef const uint8_t *end = p + size[0]
    cdef uint32_t letter = 0, low = 0
    cdef uint8_t c
    cdef uint8_t *q
    j.scratch.size = 0
    while p < end:
        c = p[0]
        p += 1
        if c != b"\\":
            q = writer_reserve(&j.scratch, 1)
            if q == NULL:
                return NO_MEMORY
            q[0] = c
            continue
        if p == end:
            return MALFORMED
        c = p[0]
        p += 1
        if c == b"u":
            if not four_digits(p, end, &letter):
                return MALFORMED
            p += 4
            if 0xd800 <= letter <= 0xdfff:
                if letter < 0xdc00 and end - p >= 6 and p[0] == b"\\" and p[1] == b"u" \
                        and four_digits(p + 2, end, &low) \
                        and 0xdc00 <= low <= 0xdfff:
                    letter = 0x10000 + ((letter - 0xd800) << 10) + (low - 0xdc00)
                    p += 6
                else:
                    letter = b"?"
        elif c == b"n":
            letter = 0x0a
        elif c == b"t":
            letter = 0x09
        elif c == b"r":
            letter = 0x0d
        elif c == b"b":
            letter = 0x08
        elif c == b"f":
            letter = 0x0c
        elif c == b'"' or c == b"\\" or c == b"/" or c == b"'":
            letter = c
        else:
            return MALFORMED
        if put_letter(&j.scratch, letter) != FINE:
            return NO_MEMORY
    start[0] = j.scratch.data
    size[0] = <int64_t>j.scratch.size
    return FINE


cdef inline int text(json_t *j, const uint8_t **start, int64_t *size) noexcept nogil:
    """Read a string and resolve its escapes. Return FINE, MALFORMED, NOT_UTF8 or NO_MEMORY."""
    cdef bint escaped = False
    cdef int done = string_end(j, start, size, &escaped)
    if done == FINE and not is_utf8(start[0], <int32_t>size[0]):
        return NOT_UTF8
    if done == FINE and escaped:
        done = unescaped(j, start, size)
    return done


cdef inline int scalar(json_t *j, const uint8_t **start, int64_t *size) noexcept nogil:
    """Read a token that is not a bracket. Return its kind, or NO_TOKEN.

    `start` and `size` are set to its text; for a string, to what is between its quotes, with escapes unresolved.
    """
    cdef uint8_t c = j.at[0]
    cdef bint escaped = False
    cdef int found
    start[0] = j.at
    if c == b'"' or c == b"'":
        return TEXT if string_end(j, start, size, &escaped) == FINE else NO_TOKEN
    if c == b"-" or 0x30 <= c <= 0x39:
        found = number(j)
    elif word(j, b"true", 4):
        found = TRUE
    elif word(j, b"false", 5):
        found = FALSE
    elif word(j, b"null", 4):
        found = NULL_TOKEN
    elif word(j, b"NaN", 3) or word(j, b"Infinity", 8) or word(j, b"INF", 3) or word(j, b"+Infinity", 9) \
            or word(j, b"+INF", 4):
        found = SPECIAL
    else:
        return NO_TOKEN
    size[0] = j.at - start[0]
    return found


cdef inline int skip_name(json_t *j) noexcept nogil:
    """Read the name of a field and its colon, and drop them. Return FINE or what is wrong."""
    cdef const uint8_t *start = NULL
    cdef int64_t size = 0
    cdef int done
    blanks(j)
    if j.at == j.end or (j.at[0] != b'"' and j.at[0] != b"'"):
        return MALFORMED
    done = text(j, &start, &size)
    if done != FINE:
        return done
    blanks(j)
    if j.at == j.end or j.at[0] != b":":
        return MALFORMED
    j.at += 1
    return FINE


cdef inline int skip(json_t *j) noexcept nogil:
    """Read a value of any kind, without recursion, and drop it. Return FINE or what is wrong."""
    cdef const uint8_t *start = NULL
    cdef int64_t size = 0
    cdef int open_ = 0, done
    cdef uint8_t c
    while True:
        blanks(j)
        if j.at == j.end:
            return MALFORMED
        c = j.at[0]
        if c == b"{" or c == b"[":
            if j.depth + open_ >= MOST_NESTED:
                return TOO_DEEP
            j.nested[open_] = c + 2      # its closing bracket, in ASCII
            open_ += 1
            j.at += 1
            blanks(j)
            if j.at == j.end or j.at[0] != j.nested[open_ - 1]:
                if c == b"{":
                    done = skip_name(j)
                    if done != FINE:
                        return done
                continue
        elif c == b'"' or c == b"'":
            done = text(j, &start, &size)
            if done != FINE:
                return done
        elif scalar(j, &start, &size) == NO_TOKEN:
            return MALFORMED
        while open_:
            blanks(j)
            if j.at == j.end:
                return MALFORMED
            c = j.at[0]
            j.at += 1
            if c == b",":
                if j.nested[open_ - 1] == b"}":
                    done = skip_name(j)
                    if done != FINE:
                        return done
                break
            if c != j.nested[open_ - 1]:
                return MALFORMED
            open_ -= 1
        if not open_:
            return FINE
