"""Passes each frame on by its API; see routing.pxd."""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.log.partition cimport NEEDS_HANDLER
from kbroker._core.server.connection cimport (
    api_t, begin_response, conn_close, conn_refuse, conn_t, processor_t, read_header, request_t, slot_finish, slot_mute,
    slot_new, slot_t,
)
from kbroker._core.server.counters cimport count_error
from kbroker._core.server.fetch.fetch cimport TO_HANDLER, fetch
from kbroker._core.server.handover cimport hand_over, hand_over_fetch
from kbroker._core.server.produce.produce cimport produce
from kbroker._core.server.serving cimport Serving
from kbroker._core.wire.apis cimport API_FETCH, API_KEYS, API_PRODUCE, API_VERSIONS
from kbroker._core.wire.cursor cimport write_array_count, write_i16
from kbroker._core.wire.error_codes cimport UNSUPPORTED_VERSION


cdef void serve(Serving serving, conn_t *conn, uint8_t *frame, int64_t size) noexcept nogil:
    """Serve one whole frame."""
    cdef processor_t *p = serving.p
    cdef request_t request
    cdef api_t *api
    cdef int outcome
    if not read_header(p, &request, frame, size):
        conn_refuse(conn, "a request header that does not parse")
        return
    conn.api_key = request.api_key
    conn.api_version = request.api_version
    if not 0 <= request.api_key < API_KEYS or p.apis[request.api_key].min_version < 0:
        conn_refuse(conn, "a request of an API that is not served")
        return
    api = &p.apis[request.api_key]
    p.counters[request.api_key].requests += 1
    p.counters[request.api_key].bytes_in += 4 + size
    if not api.min_version <= request.api_version <= api.max_version:
        if request.api_key == API_VERSIONS:
            refuse_api_versions(conn, &request)
        else:
            conn_refuse(conn, "a request in a version that is not served")
        return
    if request.api_key == API_PRODUCE:
        outcome = produce(serving, conn, &request)
    elif request.api_key == API_FETCH:
        outcome = fetch(serving, conn, &request)
        if outcome == TO_HANDLER:
            hand_over_fetch(serving, conn.slots_tail)
            outcome = 0
        if conn.fetch != NULL:
            slot_mute(conn.slots_tail)
    else:
        outcome = NEEDS_HANDLER
    if outcome == NEEDS_HANDLER:
        hand_over(serving, conn, &request)
    elif outcome != 0:
        conn_refuse(conn, "a request that does not parse")


cdef void refuse_api_versions(conn_t *conn, request_t *request) noexcept nogil:
    """Answer UNSUPPORTED_VERSION in version 0, with the versions of ApiVersions that are served (KIP-511)."""
    cdef slot_t *slot = slot_new(conn, request)
    if slot == NULL:
        conn_close(conn, "memory is out")
        return
    begin_response(slot, False)
    write_i16(&slot.out, UNSUPPORTED_VERSION)
    write_array_count(&slot.out, 1, False)
    write_i16(&slot.out, API_VERSIONS)
    write_i16(&slot.out, conn.processor.apis[API_VERSIONS].min_version)
    write_i16(&slot.out, conn.processor.apis[API_VERSIONS].max_version)
    count_error(&conn.processor.counters[API_VERSIONS], UNSUPPORTED_VERSION)
    slot_finish(slot)
