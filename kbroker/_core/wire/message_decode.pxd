"""Messages from bytes of anybody."""

# The message of a class at the start of `body`, which must fill it when it is to be the `whole` of it; `size[0]`
# becomes the bytes it takes. MalformedBytes when anything is wrong. The message keeps no reference to `body`.
cdef object decode_message(object cls, object body, int version, bint whole, size_t *size)
