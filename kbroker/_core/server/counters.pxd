"""What a processor counts of each API. Its thread alone writes, except the errors; any thread reads."""

from libc.stdint cimport int16_t, int64_t

cdef enum:
    ERROR_CODES = 128        # codes -1 to 126 are counted, each at its code + 1
    LATENCY_BUCKETS = 24     # bucket n counts answers below 2**n us, the last one all slower ones too

ctypedef struct counters_t:
    # Counters of one API key on one processor.
    int64_t requests
    int64_t bytes_in         # of frames, length fields included
    int64_t bytes_out        # of responses, file regions included
    int64_t latency_ns       # sum; from a request received to the last byte of its response given to the socket
    int64_t latencies[24]    # LATENCY_BUCKETS of them
    int64_t *errors          # owned; atomic; ERROR_CODES of them, NULL until the first error

cdef extern from * nogil:
    """
    static inline int latency_bucket(int64_t ns) {
        uint64_t us = ns > 0 ? (uint64_t)ns / 1000 : 0;
        int bucket = us ? 64 - __builtin_clzll(us) : 0;
        return bucket < 24 ? bucket : 23;
    }
    """
    int latency_bucket(int64_t ns)

cdef inline void count_answer(counters_t *counters, int64_t latency_ns) noexcept nogil:
    counters.latency_ns += latency_ns
    counters.latencies[latency_bucket(latency_ns)] += 1

# Count an answer with an error code. Any thread.
cdef void count_error(counters_t *counters, int16_t code) noexcept nogil
# The counters since the start by API key, of the keys with at least one request: a dict of ApiCounters.
cdef dict counters_by_key(const counters_t *counters, int key_count)
