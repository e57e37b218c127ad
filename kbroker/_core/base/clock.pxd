"""The system's clocks: monotonic ones for ages and intervals, the wall clock for timestamps of the protocol."""

from libc.stdint cimport int64_t

cdef extern from * nogil:
    """
    #include <time.h>
    static inline int64_t monotonic_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    static inline int64_t monotonic_ms(void) {
        return monotonic_ns() / 1000000;
    }
    static inline int64_t wall_ms(void) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
    }
    """
    int64_t monotonic_ns()
    int64_t monotonic_ms()
    int64_t wall_ms()
