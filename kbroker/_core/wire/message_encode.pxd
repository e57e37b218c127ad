"""Encodes messages into bytes."""

from kbroker._core.wire.cursor cimport writer_t

# Returns the body of a message in a version. Raises ProtocolError (UNSUPPORTED_VERSION) if the version cannot carry a
# value, and TypeError if a value is not of its field's type.
cdef bytes encode_message(object message, int version)

# Does what encode_message does, but appends the body to `w`. Raises AnswerTooLarge as soon as the body has more than
# `limit` bytes, without encoding the rest. After any error, the beginning of the body is left in `w`.
cdef int encode_into(writer_t *w, object message, int version, size_t limit) except -1

cdef class LazyArray:
    cdef Py_ssize_t count
    cdef object items
