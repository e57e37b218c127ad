"""The end of a transaction in a log: a control batch with one record (KIP-98).

The key has the type of the end, the value the coordinator's epoch.

    key   = version:i16 type:i16                  type: 0 abort, 1 commit
    value = version:i16 coordinator_epoch:i32
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from kbroker._core.wire.cursor cimport load_u16, load_u32, store_u16, store_u32, store_u64
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.record cimport record_t, take_fields

cdef enum:
    MARKER_ABORT = 0
    MARKER_COMMIT = 1
    NO_MARKER = -1               # a control record of another type, or not a control record

    MARKER_SIZE = 78             # bytes of the whole batch, as this file writes it
    MARKER_RECORD_SIZE = 17      # bytes of its record

    ABORTED_SIZE = 34            # an entry of .txnindex: i16 version 0, producer id, first, last and last stable offset
    ABORTED_PRODUCER_ID = 2
    ABORTED_FIRST_OFFSET = 10
    ABORTED_LAST_OFFSET = 18
    ABORTED_LAST_STABLE_OFFSET = 26

ctypedef struct marker_t:
    int32_t type                 # MARKER_*
    int32_t coordinator_epoch
    bint bumped                  # its producer epoch is newer than that of the transaction (KIP-890); not told by a log


cdef inline int32_t read_marker(const uint8_t *records, const uint8_t *end, marker_t *marker) noexcept nogil:
    """Read the first record of a control batch. Return its type, or NO_MARKER if it does not end a transaction."""
    cdef record_t record
    marker.type = NO_MARKER
    marker.coordinator_epoch = -1
    marker.bumped = False
    if (
        take_fields(records, end, &record) == NULL or record.key_size < 4 or record.value_size < 6
        or <int16_t>load_u16(record.key) < 0 or <int16_t>load_u16(record.value) < 0
        or load_u16(record.key + 2) > MARKER_COMMIT
    ):
        return NO_MARKER
    marker.type = load_u16(record.key + 2)
    marker.coordinator_epoch = <int32_t>load_u32(record.value + 2)
    return marker.type


cdef inline void write_marker(uint8_t *batch, int64_t producer_id, int16_t producer_epoch, const marker_t *marker,
                              int64_t now_ms) noexcept nogil:
    """Write the MARKER_SIZE bytes of a marker. The append stamps base offset, leader epoch and CRC."""
    cdef uint8_t *record = batch + BATCH_HEADER_SIZE
    memset(batch, 0, MARKER_SIZE)
    store_u32(batch + BATCH_LENGTH, MARKER_SIZE - LOG_OVERHEAD)
    batch[BATCH_MAGIC] = 2
    store_u16(batch + BATCH_ATTRIBUTES, ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL)
    store_u64(batch + BATCH_BASE_TIMESTAMP, <uint64_t>now_ms)
    store_u64(batch + BATCH_MAX_TIMESTAMP, <uint64_t>now_ms)
    store_u64(batch + BATCH_PRODUCER_ID, <uint64_t>producer_id)
    store_u16(batch + BATCH_PRODUCER_EPOCH, <uint16_t>producer_epoch)
    store_u32(batch + BATCH_BASE_SEQUENCE, <uint32_t>-1)
    store_u32(batch + BATCH_RECORD_COUNT, 1)
    record[0] = (MARKER_RECORD_SIZE - 1) * 2     # the size, a zigzag varint; attributes and two deltas of 0 follow
    record[4] = 4 * 2
    store_u16(record + 7, <uint16_t>marker.type)
    record[9] = 6 * 2
    store_u32(record + 12, <uint32_t>marker.coordinator_epoch)


cdef inline void write_aborted(uint8_t *entry, int64_t producer_id, int64_t first_offset, int64_t last_offset,
                               int64_t last_stable_offset) noexcept nogil:
    store_u16(entry, 0)
    store_u64(entry + ABORTED_PRODUCER_ID, <uint64_t>producer_id)
    store_u64(entry + ABORTED_FIRST_OFFSET, <uint64_t>first_offset)
    store_u64(entry + ABORTED_LAST_OFFSET, <uint64_t>last_offset)
    store_u64(entry + ABORTED_LAST_STABLE_OFFSET, <uint64_t>last_stable_offset)
