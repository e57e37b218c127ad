"""Compaction of messages of magic 0 and 1: feeds the map and copies what stays.

Findings are in wire/record_batch.pxd.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.log.compaction.copied_bytes cimport copied_t
from kbroker._core.log.compaction.dedupe_map cimport dedupe_map_t

cdef enum:
    DEDUPE_MAP_FULL = 100        # besides the findings: the rest of the log is left for another cleaning

ctypedef struct message_pass_t:
    dedupe_map_t *map
    int64_t start_offset         # keys of messages below are not put into the map
    bint retain_tombstones       # messages with a null value stay
    int32_t size                 # bytes of the message at hand, set once it was verified
    int64_t records_read
    int64_t messages_kept
    int64_t records_kept

# Put the keys of the message at `data`, of at most `size` bytes, into the map and move the map's latest offset on.
# Returns BATCH_OK, a finding or DEDUPE_MAP_FULL. `inflate(codec, data, magic)` returns the message set in a compressed
# message.
cdef int feed_message(message_pass_t *run, const uint8_t *data, int64_t size, object inflate) except -1 nogil

# Append what stays of the message to `copied`. Returns BATCH_OK or a finding. `deflate(codec, data, magic)` compresses.
cdef int copy_message(message_pass_t *run, const uint8_t *data, int64_t size, copied_t *copied, object inflate,
                      object deflate) except -1 nogil
