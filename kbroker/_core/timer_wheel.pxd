"""A hashed timer wheel of 1 ms ticks, owned by one thread. Nodes are embedded in what they time; adding and removing are O(1)."""

from libc.stdint cimport int32_t, int64_t

cdef enum:
    WHEEL_SLOTS = 4096

ctypedef struct timer_node_t:
    timer_node_t *next
    timer_node_t *previous       # NULL while not in a wheel
    int64_t due_ms               # monotonic
    int32_t kind                 # what it is embedded in; the owner's enum

ctypedef struct wheel_t:
    timer_node_t slots[4096]     # sentinels
    int64_t now_ms               # everything due before or at this has been taken
    int64_t count

cdef void wheel_init(wheel_t *wheel, int64_t now_ms) noexcept nogil
cdef void wheel_add(wheel_t *wheel, timer_node_t *node, int64_t due_ms) noexcept nogil   # moves it if it is in already
cdef void wheel_remove(wheel_t *wheel, timer_node_t *node) noexcept nogil                # no-op when not in
cdef timer_node_t *wheel_take_due(wheel_t *wheel, int64_t now_ms) noexcept nogil         # linked by `next`, taken out
cdef int64_t wheel_next_due_ms(wheel_t *wheel) noexcept nogil                            # lower bound; -1 when empty
