"""Locks and atomics of the compiled core. Every lock in a C struct is a `mutex_t` of this file."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct mutex_t "pthread_mutex_t":
        pass
    ctypedef struct condition_t "pthread_cond_t":
        pass
    int mutex_init "pthread_mutex_init"(mutex_t *mutex, void *attributes)
    int mutex_destroy "pthread_mutex_destroy"(mutex_t *mutex)
    int mutex_lock "pthread_mutex_lock"(mutex_t *mutex)
    int mutex_trylock "pthread_mutex_trylock"(mutex_t *mutex)
    int mutex_unlock "pthread_mutex_unlock"(mutex_t *mutex)
    int condition_init "pthread_cond_init"(condition_t *condition, void *attributes)
    int condition_destroy "pthread_cond_destroy"(condition_t *condition)
    int condition_wait "pthread_cond_wait"(condition_t *condition, mutex_t *mutex)
    int condition_signal "pthread_cond_signal"(condition_t *condition)
    int condition_broadcast "pthread_cond_broadcast"(condition_t *condition)

cdef extern from * nogil:
    """
    #include <stdint.h>
    static inline int32_t atomic_add_i32(int32_t *p, int32_t v) { return __atomic_add_fetch(p, v, __ATOMIC_ACQ_REL); }
    static inline int64_t atomic_add_i64(int64_t *p, int64_t v) { return __atomic_add_fetch(p, v, __ATOMIC_RELAXED); }
    static inline int32_t atomic_load_i32(int32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline int64_t atomic_load_i64(int64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void atomic_store_i32(int32_t *p, int32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline void atomic_store_i64(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    /* True when *p was `expected` and is `desired` now. */
    static inline int atomic_claim_i32(int32_t *p, int32_t expected, int32_t desired) {
        return __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    """
    int32_t atomic_add_i32(int32_t *p, int32_t v)
    int64_t atomic_add_i64(int64_t *p, int64_t v)
    int32_t atomic_load_i32(int32_t *p)
    int64_t atomic_load_i64(int64_t *p)
    void atomic_store_i32(int32_t *p, int32_t v)
    void atomic_store_i64(int64_t *p, int64_t v)
    bint atomic_claim_i32(int32_t *p, int32_t expected, int32_t desired)
