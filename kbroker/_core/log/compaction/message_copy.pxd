"""Compaction of messages of magic 0 and 1: into the map, and the copy of what stays. Findings are wire/record_batch.pxd's."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.log.compaction.copied_bytes cimport copied_t
from kbroker._core.log.compaction.dedupe_map cimport dedupe_map_t

cdef enum:
    DEDUPE_MAP_FULL = 100        # a finding of its own: the rest is for another cleaning

ctypedef struct message_pass_t:
    dedupe_map_t *map
    int64_t start_offset         # keys below are not fed
    bint retain_tombstones
    int32_t size                 # of the message at hand, once it was verified
    int64_t records_read
    int64_t messages_kept
    int64_t records_kept

# The message at `data`, of at most `size` bytes: its keys into the map, and the map's latest offset moved on. BATCH_OK, a
# finding, or DEDUPE_MAP_FULL. `inflate(codec, data, magic)` gives the set in a compressed one.
cdef int feed_message(message_pass_t *run, const uint8_t *data, int64_t size, object inflate) except -1 nogil

# What stays of it, behind what is in `copied`.
cdef int copy_message(message_pass_t *run, const uint8_t *data, int64_t size, copied_t *copied, object inflate,
                      object deflate) except -1 nogil
