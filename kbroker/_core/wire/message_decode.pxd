"""Decodes messages from bytes that nobody has checked."""

# Decodes a message of class `cls` at the start of `body`, and sets size[0] to the bytes it takes. With `whole`, it must
# fill `body`. Raises MalformedBytes if it does not, or if the bytes are not such a message. The message keeps no
# reference to `body`.
cdef object decode_message(object cls, object body, int version, bint whole, size_t *size)
