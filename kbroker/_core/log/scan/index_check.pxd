"""Compares the whole entries of a segment's two indexes with the batches that segment_check.pyx walks over.

Both indexes are read once, from the first entry to the last: `index_at` and `time_at` of check_t are the next entries.
"""

from kbroker._core.log.scan.segment_check cimport check_t, seen_t

# Before the walk: check the order of the entries in each index.
cdef void check_entry_order(check_t *check) noexcept nogil

# Check the entries of the batch at check.position, and the entries before it that belong to no batch.
cdef void hold_index(check_t *check, const seen_t *seen) noexcept nogil
cdef void hold_time_index(check_t *check, const seen_t *seen) noexcept nogil

# Instead of hold_index, for a batch that is not read further: its entry is not checked.
cdef void skip_index(check_t *check) noexcept nogil

# After the walk: check the entries that are left. Entries of bytes that the walk did not read are not reported.
cdef void end_indexes(check_t *check) noexcept nogil
