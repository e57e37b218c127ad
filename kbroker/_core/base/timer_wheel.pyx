"""The processors' timer wheel; see timer_wheel.pxd."""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef extern from * nogil:
    int __builtin_ctzll(unsigned long long value)

cdef enum:
    MASK = WHEEL_SLOTS - 1


cdef void wheel_init(wheel_t *wheel, int64_t now_ms) noexcept nogil:
    memset(wheel, 0, sizeof(wheel_t))
    wheel.now_ms = now_ms


cdef void link(wheel_t *wheel, timer_node_t *node, int32_t slot) noexcept nogil:
    cdef timer_node_t *first = wheel.slots[slot]
    node.slot = slot
    if first == NULL:
        node.next = node
        node.previous = node
        wheel.slots[slot] = node
        wheel.occupied[slot >> 6] |= <uint64_t>1 << (slot & 63)
    else:
        node.next = first
        node.previous = first.previous
        first.previous.next = node
        first.previous = node
    wheel.count += 1


cdef void wheel_remove(wheel_t *wheel, timer_node_t *node) noexcept nogil:
    cdef int32_t slot = node.slot
    if node.previous == NULL:
        return
    if node.next == node:
        wheel.slots[slot] = NULL
        wheel.occupied[slot >> 6] &= ~(<uint64_t>1 << (slot & 63))
    else:
        node.next.previous = node.previous
        node.previous.next = node.next
        if wheel.slots[slot] == node:
            wheel.slots[slot] = node.next
    node.next = NULL
    node.previous = NULL
    wheel.count -= 1


cdef void wheel_add(wheel_t *wheel, timer_node_t *node, int64_t due_ms) noexcept nogil:
    cdef int64_t far_tick
    wheel_remove(wheel, node)
    node.due_ms = due_ms
    if due_ms <= wheel.now_ms:
        # Overdue: the next tick takes it. A timer that is added again as it fires cannot loop for ever in one tick.
        due_ms = wheel.now_ms + 1
    if due_ms - wheel.now_ms < WHEEL_SLOTS:
        link(wheel, node, <int32_t>(due_ms & MASK))
    else:
        far_tick = due_ms >> WHEEL_BITS
        if far_tick - (wheel.now_ms >> WHEEL_BITS) >= WHEEL_SLOTS:
            far_tick = (wheel.now_ms >> WHEEL_BITS) + WHEEL_SLOTS - 1     # it moves on from there when its slot comes
        link(wheel, node, WHEEL_SLOTS + <int32_t>(far_tick & MASK))


cdef int64_t distance(wheel_t *wheel, int level, int64_t at) noexcept nogil:
    """Return how many slots (1 to WHEEL_SLOTS) after slot `at` of a level the next occupied one is; 0 when none is."""
    cdef uint64_t *words = &wheel.occupied[level * WHEEL_WORDS]
    cdef int64_t first = (at + 1) & MASK
    cdef int64_t word = first >> 6
    cdef uint64_t bits = words[word] & (~<uint64_t>0 << (first & 63))
    cdef int looked = 0
    while looked <= WHEEL_WORDS:
        if bits:
            return ((((word << 6) + __builtin_ctzll(bits)) - first) & MASK) + 1
        word = (word + 1) & (WHEEL_WORDS - 1)
        bits = words[word]
        looked += 1
    return 0


cdef int64_t wheel_next_due_ms(wheel_t *wheel) noexcept nogil:
    cdef int64_t near, far
    if wheel.count == 0:
        return -1
    if wheel.slots[wheel.now_ms & MASK] != NULL:
        return wheel.now_ms
    near = distance(wheel, 0, wheel.now_ms & MASK)
    far = distance(wheel, 1, (wheel.now_ms >> WHEEL_BITS) & MASK)
    if far:
        far = ((wheel.now_ms >> WHEEL_BITS) + far) << WHEEL_BITS
        if near == 0 or far < wheel.now_ms + near:
            return far
    return wheel.now_ms + near


cdef void come_near(wheel_t *wheel, int32_t slot) noexcept nogil:
    """Move the nodes of a far slot to the near level. `now_ms` has just reached the slot's first millisecond."""
    cdef timer_node_t *node = wheel.slots[slot]
    while node != NULL:
        wheel_remove(wheel, node)
        if node.due_ms - wheel.now_ms < WHEEL_SLOTS:
            link(wheel, node, <int32_t>(node.due_ms & MASK))
        else:
            wheel_add(wheel, node, node.due_ms)
        node = wheel.slots[slot]


cdef timer_node_t *wheel_take_due(wheel_t *wheel, int64_t now_ms) noexcept nogil:
    cdef timer_node_t *node
    cdef int64_t due_ms
    while True:
        # The slot of now_ms itself holds only timers that are due: wheel_add puts nothing there.
        node = wheel.slots[wheel.now_ms & MASK]
        if node != NULL:
            wheel_remove(wheel, node)
            return node
        due_ms = wheel_next_due_ms(wheel)
        if due_ms < 0 or due_ms > now_ms:
            if now_ms > wheel.now_ms:
                wheel.now_ms = now_ms
            return NULL
        wheel.now_ms = due_ms
        if due_ms & MASK == 0:
            come_near(wheel, WHEEL_SLOTS + <int32_t>((due_ms >> WHEEL_BITS) & MASK))


cdef class TimerWheel:
    """A wheel with `count` timers, numbered from 0. For tests."""

    cdef wheel_t wheel
    cdef timer_node_t *nodes
    cdef readonly int count

    def __cinit__(self, int count, int64_t now_ms):
        self.nodes = <timer_node_t *>calloc(count, sizeof(timer_node_t))
        if self.nodes == NULL:
            raise MemoryError(f"no memory for {count} timers")
        self.count = count
        wheel_init(&self.wheel, now_ms)

    def __dealloc__(self):
        free(self.nodes)

    cdef timer_node_t *node(self, int number) except NULL:
        if not 0 <= number < self.count:
            raise IndexError(number)
        return &self.nodes[number]

    def add(self, int number, int64_t due_ms) -> None:
        wheel_add(&self.wheel, self.node(number), due_ms)

    def remove(self, int number) -> None:
        wheel_remove(&self.wheel, self.node(number))

    def take_due(self, int64_t now_ms) -> list[int]:
        taken = []
        cdef timer_node_t *node = wheel_take_due(&self.wheel, now_ms)
        while node != NULL:
            taken.append(<int>(node - self.nodes))
            node = wheel_take_due(&self.wheel, now_ms)
        return taken

    def next_due_ms(self) -> int:
        return wheel_next_due_ms(&self.wheel)

    def __len__(self) -> int:
        return self.wheel.count
