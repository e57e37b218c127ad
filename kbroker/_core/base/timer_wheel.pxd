"""A timer wheel of two levels, owned by one thread. A node is embedded in what it times; adding and removing are O(1).

A timer that is due within WHEEL_SLOTS ms lies in the near level, in the slot of its exact millisecond. A later one lies
in the far level, in a slot that is WHEEL_SLOTS ms wide, and moves to the near level when that slot's time comes. So a
wheel full of distant timers wakes nobody.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    WHEEL_BITS = 10
    WHEEL_SLOTS = 1024           # per level: of 1 ms in the near level, of 1.024 s in the far one
    WHEEL_WORDS = 16             # words of the bit map per level, 64 slots each

ctypedef struct timer_node_t:
    timer_node_t *next
    timer_node_t *previous       # NULL while not in a wheel
    int64_t due_ms               # monotonic
    int32_t kind                 # what the node is embedded in: TIMER_* of server/connection.pxd
    int32_t slot                 # where the node is: the near slots are 0 to WHEEL_SLOTS - 1, the far ones follow

ctypedef struct wheel_t:
    timer_node_t *slots[2048]    # each a ring of nodes, the first one fires first; near level, then far level
    uint64_t occupied[32]        # a bit for each slot: it has nodes
    int64_t now_ms               # monotonic; every timer due before this has been taken
    int64_t count                # nodes in the wheel

cdef void wheel_init(wheel_t *wheel, int64_t now_ms) noexcept nogil
cdef void wheel_add(wheel_t *wheel, timer_node_t *node, int64_t due_ms) noexcept nogil   # a node in the wheel moves
cdef void wheel_remove(wheel_t *wheel, timer_node_t *node) noexcept nogil                # no-op when not in the wheel
# Take out and return one node that is due at `now_ms`; NULL when none is left. Nodes may be added and removed between
# calls.
cdef timer_node_t *wheel_take_due(wheel_t *wheel, int64_t now_ms) noexcept nogil
cdef int64_t wheel_next_due_ms(wheel_t *wheel) noexcept nogil                            # a lower bound; -1 when empty
