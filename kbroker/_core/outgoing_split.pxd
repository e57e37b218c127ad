"""A batch that is too large for its broker becomes two."""

from kbroker._core.accumulator cimport accumulator_t, outgoing_list_t

# With the lock: the head of `items`, which is not compressed, becomes two. False: it has one record only, or memory is out.
cdef bint split_outgoing(accumulator_t *a, outgoing_list_t *items) noexcept nogil
