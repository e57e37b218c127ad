"""A timer wheel of two levels, owned by one thread. Nodes are embedded in what they time; adding and removing are O(1).

What is due within WHEEL_SLOTS ms lies in the slot of its very millisecond; what is due later lies in a slot of
WHEEL_SLOTS ms and moves to the near level when its time comes close. So a wheel full of distant timers wakes nobody.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    WHEEL_BITS = 10
    WHEEL_SLOTS = 1024           # of 1 ms near by, of 1.024 s far away
    WHEEL_WORDS = 16             # of 64 slots each

ctypedef struct timer_node_t:
    timer_node_t *next
    timer_node_t *previous       # NULL while not in a wheel
    int64_t due_ms               # monotonic
    int32_t kind                 # what it is embedded in, TIMER_* of server/processor.pxd
    int32_t slot                 # where it is: near slots first, then far ones

ctypedef struct wheel_t:
    timer_node_t *slots[2048]    # each a ring of nodes, the first one to fire first; near level, then far level
    uint64_t occupied[32]        # a bit for each slot
    int64_t now_ms               # everything due before this has been taken
    int64_t count

cdef void wheel_init(wheel_t *wheel, int64_t now_ms) noexcept nogil
cdef void wheel_add(wheel_t *wheel, timer_node_t *node, int64_t due_ms) noexcept nogil   # moves it if it is in already
cdef void wheel_remove(wheel_t *wheel, timer_node_t *node) noexcept nogil                # no-op when not in
# One node that is due at `now_ms`, taken out, or NULL when there is none left. Between calls nodes may be added and removed.
cdef timer_node_t *wheel_take_due(wheel_t *wheel, int64_t now_ms) noexcept nogil
cdef int64_t wheel_next_due_ms(wheel_t *wheel) noexcept nogil                            # lower bound; -1 when empty
