"""Encrypting what a connection sends and decrypting what it receives, by its transport (TLS).

A transport is a Python object with `encrypt(bytes) -> bytes` and `decrypt(bytes) -> bytes-like`. The server's are in
kbroker.net.transports, the client's in kbroker.client.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t

from kbroker._core.base.sockets cimport send_bytes

ctypedef struct wire_t:
    # Encrypted bytes on their way to the socket. All zero: none.
    PyObject *sealed             # owned; the bytes object, NULL: none
    const char *data             # its bytes
    int64_t size
    int64_t at                   # how many of them have been sent

# Encrypt `plain`; nothing may be on the wire. Raises what the transport raises, TypeError if it returns no bytes.
cdef inline int wire_seal(wire_t *wire, PyObject *transport, bytes plain) except -1:
    cdef object sealed = (<object>transport).encrypt(plain)
    if type(sealed) is not bytes:
        raise TypeError(f"encrypt returned {type(sealed).__name__}")
    Py_INCREF(sealed)
    wire.sealed = <PyObject *>sealed
    wire.data = PyBytes_AS_STRING(sealed)
    wire.size = PyBytes_GET_SIZE(sealed)
    wire.at = 0
    return 0

# Send what the socket takes now of the rest. Returns the bytes sent, or -1 with errno set.
cdef inline ssize_t wire_send(wire_t *wire, int fd) noexcept nogil:
    cdef ssize_t sent = send_bytes(fd, wire.data + wire.at, <size_t>(wire.size - wire.at))
    if sent > 0:
        wire.at += sent
    return sent

cdef inline bint wire_has_rest(const wire_t *wire) noexcept nogil:
    return wire.at < wire.size

# Drop the bytes, sent or not.
cdef inline void wire_drop(wire_t *wire) noexcept nogil:
    if wire.sealed != NULL:
        with gil:
            Py_DECREF(<object>wire.sealed)
        wire.sealed = NULL

# Decrypt what was received. Raises what the transport raises.
cdef inline object opened(PyObject *transport, const uint8_t *data, int64_t size):
    return (<object>transport).decrypt(PyBytes_FromStringAndSize(<const char *>data, size))
