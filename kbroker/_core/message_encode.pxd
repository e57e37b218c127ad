"""Messages to bytes."""

# The body of a message in a version. ProtocolError (UNSUPPORTED_VERSION) when the version cannot carry a value,
# TypeError when a value is not of its field's type.
cdef bytes encode_message(object message, int version)
