"""Requests that Python makes; see calls.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_WriteUnraisable
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.sockets cimport iovec
from kbroker._core.client.socket cimport (
    REASON_SIZE, client_socket_t, exchange_t, pump_t, socket_send, socket_send_ahead,
)
from kbroker._core.wire.apis cimport API_KEYS

ctypedef struct call_t:
    # A request that Python makes, and later its answer on the way back. The frame follows the struct in memory.
    exchange_t exchange
    iovec piece
    PyObject *callback           # a reference
    uint8_t *copied              # the body of the answer
    Py_ssize_t size              # bytes of the body; -1: no answer
    char reason[160]
    call_t *next


cdef void call_answered(void *owner, exchange_t *exchange, client_socket_t *socket, const uint8_t *body, int64_t size,
                        const char *reason) noexcept nogil:
    cdef call_t *call = <call_t *>exchange
    call.size = -1
    if body != NULL:
        call.copied = <uint8_t *>malloc(size + 1)
        if call.copied == NULL:
            reason = "memory is out"
        else:
            memcpy(call.copied, body, size)
            call.size = size
    elif reason == NULL:
        call.size = 0            # a silent exchange that was sent
    if call.size < 0:
        snprintf(call.reason, REASON_SIZE, "%s", reason)
    call.next = <call_t *>socket.pump.answers
    socket.pump.answers = call
    socket.pump.news = True


cdef int call_send(client_socket_t *socket, int16_t api_key, int16_t api_version, const uint8_t[::1] frame,
                   int64_t timeout_ms, callback, bint silent, bint ahead) except -1:
    cdef call_t *call
    cdef Py_ssize_t size = frame.shape[0]
    if not 0 <= api_key < API_KEYS:
        raise ValueError(f"api_key={api_key}")
    if size < 12:
        raise ValueError(f"a frame of {size} bytes")
    call = <call_t *>calloc(1, sizeof(call_t) + size)
    if call == NULL:
        raise MemoryError()
    memcpy(call + 1, &frame[0], size)
    call.piece.iov_base = call + 1
    call.piece.iov_len = size
    call.exchange.api_key = api_key
    call.exchange.api_version = api_version
    call.exchange.deadline_ms = monotonic_ms() + timeout_ms if timeout_ms >= 0 else -1
    call.exchange.pieces = &call.piece
    call.exchange.piece_count = 1
    call.exchange.silent = silent
    call.exchange.answered = call_answered
    Py_INCREF(callback)
    call.callback = <PyObject *>callback
    if ahead:
        socket_send_ahead(socket, &call.exchange)
    else:
        socket_send(socket, &call.exchange)
    return 0


cdef int calls_answer(pump_t *pump) except -1:
    cdef call_t *calls = NULL
    cdef call_t *call
    while pump.answers != NULL:
        call = <call_t *>pump.answers
        pump.answers = call.next
        call.next = calls
        calls = call
    while calls != NULL:
        call = calls
        calls = call.next
        callback = <object>call.callback
        Py_DECREF(callback)
        body = PyBytes_FromStringAndSize(<char *>call.copied, call.size) if call.size >= 0 else None
        reason = call.reason.decode(errors="replace") if call.size < 0 else None
        free(call.copied)
        free(call)
        try:
            callback(body, reason)
        except Exception:
            PyErr_WriteUnraisable(callback)
    return 0
