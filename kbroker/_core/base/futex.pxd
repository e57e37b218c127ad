"""Sleeping until a number in memory changes (futex). A thread that has nobody to wake makes no system call."""

from libc.stdint cimport int32_t, int64_t

cdef extern from * nogil:
    """
    #ifndef KBROKER_FUTEX
    #define KBROKER_FUTEX
    #include <errno.h>
    #include <limits.h>
    #include <linux/futex.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    /* 0, or -errno: ETIMEDOUT, EINTR, EAGAIN (*word is no longer `expected`). timeout_ms -1: for ever. */
    static inline int futex_wait(int32_t *word, int32_t expected, int64_t timeout_ms) {
        struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000};
        long failed = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout_ms < 0 ? NULL : &timeout, NULL, 0);
        return failed < 0 ? -errno : 0;
    }
    static inline void futex_wake_all(int32_t *word) {
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
    #endif
    """
    int futex_wait(int32_t *word, int32_t expected, int64_t timeout_ms)
    void futex_wake_all(int32_t *word)
