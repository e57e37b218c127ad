"""The two indexes of a segment, whole entries, held against the batches as segment_check.pyx walks over them.

Both are read once, from their first entry to the last: `index_at` and `time_at` of the walk are the next ones to be judged.
"""

from kbroker._core.log.scan.segment_check cimport check_t, seen_t

# Each index for itself, before the walk.
cdef void check_entry_order(check_t *check) noexcept nogil

# The entries of the batch at check.position, and those before it that no batch had.
cdef void hold_index(check_t *check, const seen_t *seen) noexcept nogil
cdef void hold_time_index(check_t *check, const seen_t *seen) noexcept nogil

# Instead of hold_index: an entry of a batch that is not read further is not judged.
cdef void skip_index(check_t *check) noexcept nogil

# What is left of them behind the last batch. Behind bytes that were not read nothing is known.
cdef void end_indexes(check_t *check) noexcept nogil
