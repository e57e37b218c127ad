"""Requests that Python makes on a client's socket, and their answers on the way back. For the pump's thread."""

from libc.stdint cimport int16_t, int64_t, uint8_t

from kbroker._core.client.socket cimport client_socket_t, pump_t

# Send a frame that encode_request made; `callback` gets the answer from calls_answer. `timeout_ms` -1: no deadline.
# `silent`: no response will come. `ahead`: send it even while the socket is held. Raises ValueError for what is no
# frame, MemoryError.
cdef int call_send(client_socket_t *socket, int16_t api_key, int16_t api_version, const uint8_t[::1] frame,
                   int64_t timeout_ms, callback, bint silent, bint ahead) except -1
# Call the callbacks of all calls that are answered, oldest first: callback(body, None) or callback(None, reason).
cdef int calls_answer(pump_t *pump) except -1
