"""Messages to bytes."""

from kbroker._core.wire.cursor cimport writer_t

# The body of a message in a version. ProtocolError (UNSUPPORTED_VERSION) when the version cannot carry a value,
# TypeError when a value is not of its field's type.
cdef bytes encode_message(object message, int version)

# The same behind what `w` has already: AnswerTooLarge as soon as it is more than `limit` bytes, whatever is still to come.
# Of a body that is not whole, whatever the error, its beginning is left in `w`.
cdef int encode_into(writer_t *w, object message, int version, size_t limit) except -1

cdef class LazyArray:
    cdef Py_ssize_t count
    cdef object items
