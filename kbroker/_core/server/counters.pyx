"""What a processor counts, as Python sees it; see counters.pxd."""

from typing import NamedTuple

from libc.stdint cimport int16_t, int64_t
from libc.stdlib cimport calloc

from kbroker._core.base.sync cimport atomic_add_i64


class ApiCounters(NamedTuple):
    """The counters of one API on one processor since its start.

    `latencies[n]` counts answers that took less than 2**n and at least 2**(n-1) microseconds; the last one counts all
    slower ones too. `errors` maps an error code to the number of answers with it.
    """

    requests: int
    bytes_in: int
    bytes_out: int
    latency_ns: int
    latencies: tuple
    errors: dict


cdef void count_error(counters_t *counters, int16_t code) noexcept nogil:
    if counters.errors == NULL:
        counters.errors = <int64_t *>calloc(ERROR_CODES, sizeof(int64_t))
    if counters.errors != NULL and -1 <= code < ERROR_CODES - 1:
        atomic_add_i64(&counters.errors[code + 1], 1)


cdef dict counters_by_key(const counters_t *counters, int key_count):
    cdef const counters_t *c
    cdef int key
    cdef int i
    counted = {}
    for key in range(key_count):
        c = &counters[key]
        if c.requests == 0:
            continue
        latencies = []
        for i in range(LATENCY_BUCKETS):
            latencies.append(c.latencies[i])
        errors = {}
        if c.errors != NULL:
            for i in range(ERROR_CODES):
                if c.errors[i]:
                    errors[i - 1] = c.errors[i]
        counted[key] = ApiCounters(c.requests, c.bytes_in, c.bytes_out, c.latency_ns, tuple(latencies), errors)
    return counted
