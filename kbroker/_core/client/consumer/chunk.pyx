"""What a Fetch response brought for one partition; the contract is in chunk.pxd."""

from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memset

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.receive_buffers cimport buffer_free
from kbroker._core.base.sync cimport atomic_add_i32
from kbroker._core.client.consumer.messages cimport messages_alike
from kbroker._core.wire.cursor cimport load_u32, load_u64
from kbroker._core.wire.layout cimport (
    ATTRIBUTE_CODEC_MASK, ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BATCH_BASE_OFFSET, BATCH_HEADER_SIZE,
    BATCH_LAST_OFFSET_DELTA, CODEC_ZSTD, LOG_OVERHEAD, MESSAGE_LENGTH, MESSAGE_MAGIC, MESSAGE_OFFSET,
)
from kbroker._core.wire.message_set cimport message_check, message_read, message_t
from kbroker._core.wire.record cimport MIN_RECORD_SIZE, control_type, record_t, take_deltas
from kbroker._core.wire.record_batch cimport (
    BATCH_BAD_BASE_OFFSET, BATCH_BAD_CODEC, BATCH_BAD_COUNT, BATCH_BAD_RECORD, BATCH_OK, BATCH_OLD_MAGIC,
    BATCH_OLD_ZSTD, BATCH_TOO_SHORT, OUT_OF_MEMORY, batch_header, batch_info_t, batch_verify,
)
from kbroker._core.wire.transaction_marker cimport MARKER_ABORT

# --- memory -----------------------------------------------------------------------------------------

cdef fetch_buffer_t *fetch_buffer_new(uint8_t *data, int64_t capacity) noexcept nogil:
    cdef fetch_buffer_t *buffer = <fetch_buffer_t *>malloc(sizeof(fetch_buffer_t))
    if buffer != NULL:
        buffer.refs = 1
        buffer.data = data
        buffer.capacity = capacity
    return buffer

cdef void fetch_buffer_ref(fetch_buffer_t *buffer) noexcept nogil:
    atomic_add_i32(&buffer.refs, 1)

cdef void fetch_buffer_unref(fetch_buffer_t *buffer) noexcept nogil:
    if atomic_add_i32(&buffer.refs, -1) == 0:
        buffer_free(buffer.data, buffer.capacity)
        free(buffer)

cdef chunk_t *chunk_new(fetch_buffer_t *buffer, int64_t start_offset) noexcept nogil:
    cdef chunk_t *chunk = <chunk_t *>calloc(1, sizeof(chunk_t))
    if chunk != NULL:
        fetch_buffer_ref(buffer)
        chunk.buffer = buffer
        chunk.start_offset = chunk.next_offset = start_offset
        chunk.leader_epoch = -1
        chunk.finding = BATCH_OK
    return chunk

cdef void chunk_free(chunk_t *chunk) noexcept nogil:
    fetch_buffer_unref(chunk.buffer)
    free(chunk.batches)
    free(chunk)

# --- what was aborted -------------------------------------------------------------------------------

ctypedef struct aborting_t:
    # A walk over the aborted transactions in the order of their first offsets. `producers` is a hash table of the
    # producers that are inside an aborted transaction at this place. It uses open addressing and is at most half full,
    # as there are no more producers than transactions. A place that was never used is EMPTY, one that was freed is
    # LEFT.
    aborted_t *aborted
    int32_t count
    int32_t at               # the first transaction that has not begun
    int64_t *producers
    uint64_t mask

cdef enum:
    EMPTY = -1
    LEFT = -2

cdef int by_first_offset(const void *a, const void *b) noexcept nogil:
    cdef int64_t x = (<const aborted_t *>a).first_offset
    cdef int64_t y = (<const aborted_t *>b).first_offset
    return (x > y) - (x < y)

cdef bint aborting_init(aborting_t *state, aborted_t *aborted, int32_t count) noexcept nogil:
    cdef size_t places = 16
    memset(state, 0, sizeof(aborting_t))
    if count == 0:
        return True
    while places < 2 * <size_t>count:
        places *= 2
    state.producers = <int64_t *>malloc(places * sizeof(int64_t))
    if state.producers == NULL:
        return False
    memset(state.producers, 0xff, places * sizeof(int64_t))
    qsort(aborted, <size_t>count, sizeof(aborted_t), by_first_offset)
    state.aborted = aborted
    state.count = count
    state.mask = places - 1
    return True

cdef int64_t *aborting_place(aborting_t *state, int64_t producer_id) noexcept nogil:
    """Return the place of a producer in the table of producers that are aborting, or the empty place where it belongs.

    There is always an empty place: each aborted transaction takes one place at most.
    """
    cdef uint64_t at = (<uint64_t>producer_id * <uint64_t>0x9e3779b97f4a7c15) >> 20
    while state.producers[at & state.mask] != producer_id and state.producers[at & state.mask] != EMPTY:
        at += 1
    return &state.producers[at & state.mask]

cdef void aborting_begin(aborting_t *state, int64_t last_offset) noexcept nogil:
    """Mark the producers of the transactions that begin at `last_offset` or before as inside an aborted transaction."""
    while state.at < state.count and state.aborted[state.at].first_offset <= last_offset:
        if state.aborted[state.at].producer_id >= 0:
            aborting_place(state, state.aborted[state.at].producer_id)[0] = state.aborted[state.at].producer_id
        state.at += 1

cdef inline bint is_aborting(aborting_t *state, int64_t producer_id) noexcept nogil:
    return state.at > 0 and aborting_place(state, producer_id)[0] == producer_id

cdef void aborting_end(aborting_t *state, int64_t producer_id) noexcept nogil:
    cdef int64_t *place
    if state.at > 0:
        place = aborting_place(state, producer_id)
        if place[0] == producer_id:
            place[0] = LEFT

# --- batches ----------------------------------------------------------------------------------------

cdef int32_t records_before(const uint8_t *payload, int64_t size, const batch_info_t *info,
                            int64_t position) noexcept nogil:
    cdef const uint8_t *p = payload
    cdef const uint8_t *end = payload + size
    cdef record_t record
    cdef int32_t count
    for count in range(info.record_count):
        p = take_deltas(p, end, &record)
        if p == NULL:
            return -1
        if info.base_offset + record.offset_delta >= position:
            return count
    return info.record_count

cdef int place_add(chunk_t *chunk, const uint8_t *data, int32_t size, int32_t count, int32_t skipped) noexcept nogil:
    cdef batch_place_t *grown = <batch_place_t *>with_room(
        chunk.batches, chunk.batch_count, &chunk.batch_capacity, sizeof(batch_place_t))
    if grown == NULL:
        return OUT_OF_MEMORY
    chunk.batches = grown
    grown = &chunk.batches[chunk.batch_count]
    grown.data = data
    grown.size = size
    grown.count = count
    grown.skipped = skipped
    grown.first = 0
    chunk.batch_count += 1
    return BATCH_OK

cdef int batch_add(chunk_t *chunk, const uint8_t *data, const batch_info_t *info) noexcept nogil:
    """Add a batch that may have records at or behind `next_offset`. Return OUT_OF_MEMORY or a finding."""
    cdef int64_t payload_size = info.size - BATCH_HEADER_SIZE
    cdef int32_t skipped = 0
    cdef bint plain = info.attributes & ATTRIBUTE_CODEC_MASK == 0
    # A batch cannot have more records than it has offsets, nor more than its bytes can hold.
    if info.record_count < 0 or info.record_count > <int64_t>info.last_offset_delta + 1:
        return BATCH_BAD_COUNT
    if plain and info.record_count > payload_size // MIN_RECORD_SIZE:
        return BATCH_BAD_COUNT
    if info.record_count == 0:
        return BATCH_OK
    if info.base_offset < chunk.next_offset:
        if info.record_count == <int64_t>info.last_offset_delta + 1:
            skipped = <int32_t>(chunk.next_offset - info.base_offset)
        elif plain:
            skipped = records_before(data + BATCH_HEADER_SIZE, payload_size, info, chunk.next_offset)
            if skipped < 0:
                return BATCH_BAD_RECORD
            if skipped == info.record_count:
                return BATCH_OK
        else:
            skipped = -1
    return place_add(chunk, data, info.size, info.record_count, skipped)

cdef int64_t place_end(const batch_place_t *place) noexcept nogil:
    """Return the offset behind the last record of a place: of a batch, or of a run of messages of magic 0 or 1."""
    cdef const uint8_t *p = place.data
    cdef const uint8_t *last = p
    if p[MESSAGE_MAGIC] == 2:
        return <int64_t>load_u64(p + BATCH_BASE_OFFSET) + <int32_t>load_u32(p + BATCH_LAST_OFFSET_DELTA) + 1
    while p < place.data + place.size:
        last = p
        p += LOG_OVERHEAD + <int32_t>load_u32(p + MESSAGE_LENGTH)
    return <int64_t>load_u64(last + MESSAGE_OFFSET) + 1

cdef void chunk_cut(chunk_t *chunk, int32_t batch) noexcept nogil:
    chunk.next_offset = place_end(&chunk.batches[batch - 1]) if batch > 0 else chunk.start_offset
    chunk.batch_count = batch
    chunk.finding = BATCH_OK

cdef void chunk_number(chunk_t *chunk) noexcept nogil:
    cdef int32_t i
    chunk.record_count = 0
    for i in range(chunk.batch_count):
        chunk.batches[i].first = chunk.record_count
        chunk.record_count += chunk.batches[i].count - max(chunk.batches[i].skipped, 0)

cdef int batch_take(chunk_t *chunk, const uint8_t *data, const batch_info_t *info, aborting_t *aborting) noexcept nogil:
    """Add one whole batch, or skip it (before the position, control, or aborted). Return OUT_OF_MEMORY or a finding."""
    cdef int64_t last_offset = info.base_offset + info.last_offset_delta
    cdef bint control = info.attributes & ATTRIBUTE_CONTROL != 0
    cdef int finding = BATCH_OK
    if info.attributes & ATTRIBUTE_CODEC_MASK > CODEC_ZSTD:
        return BATCH_BAD_CODEC
    if aborting.count and info.producer_id >= 0:
        aborting_begin(aborting, last_offset)
        if control:
            if control_type(data + BATCH_HEADER_SIZE, data + info.size) == MARKER_ABORT:
                aborting_end(aborting, info.producer_id)
        elif info.attributes & ATTRIBUTE_TRANSACTIONAL and is_aborting(aborting, info.producer_id):
            control = True
    if last_offset < chunk.next_offset:
        return BATCH_OK
    if not control:
        finding = batch_add(chunk, data, info)
    if finding == BATCH_OK:
        chunk.next_offset = last_offset + 1
        chunk.leader_epoch = info.leader_epoch
    return finding

cdef int message_take(chunk_t *chunk, const uint8_t *data, int64_t size, bint check_crcs,
                      batch_info_t *info) noexcept nogil:
    """Add one message of magic 0 or 1, or skip it if it lies before the position. Return OUT_OF_MEMORY or a finding.

    The size of the message is written to `info`.
    """
    cdef message_t message
    cdef batch_place_t *last = &chunk.batches[chunk.batch_count - 1] if chunk.batch_count else NULL
    cdef int finding = message_check(data, size, &message) if check_crcs else message_read(data, size, &message)
    cdef int codec = message.attributes & ATTRIBUTE_CODEC_MASK
    if finding != BATCH_OK:
        return finding
    if codec >= CODEC_ZSTD:
        return BATCH_OLD_ZSTD if codec == CODEC_ZSTD else BATCH_BAD_CODEC
    if codec and message.value_size < 0:
        return BATCH_BAD_RECORD
    if not 0 <= message.offset < INT64_MAX:
        return BATCH_BAD_BASE_OFFSET
    info.size = message.size
    # A compressed message has the offset of its last inner message. How many inner messages stand before the position
    # is not known here.
    if message.offset < chunk.next_offset:
        return BATCH_OK
    chunk.next_offset = message.offset + 1
    chunk.leader_epoch = -1
    if codec:
        return place_add(chunk, data, message.size, 0, -1)
    if (last != NULL and last.data + last.size == data and last.size <= INT32_MAX - message.size
            and last.data[MESSAGE_MAGIC] < 2 and messages_alike(last.data, &message)):
        last.size += message.size
        last.count += 1
        return BATCH_OK
    return place_add(chunk, data, message.size, 1, 0)

cdef int chunk_index(chunk_t *chunk, const uint8_t *records, int64_t size, aborted_t *aborted, int32_t aborted_count,
                     bint check_crcs) noexcept nogil:
    cdef batch_info_t info
    cdef aborting_t aborting
    cdef int64_t at = 0
    cdef int finding = BATCH_OK
    chunk.size = size
    if not aborting_init(&aborting, aborted, aborted_count if aborted != NULL else 0):
        return OUT_OF_MEMORY
    while at < size:
        if check_crcs:
            finding = batch_verify(records + at, size - at, &info)
        else:
            finding = batch_header(records + at, size - at, &info)
        if finding == BATCH_OLD_MAGIC:
            finding = message_take(chunk, records + at, size - at, check_crcs, &info)
            if finding != BATCH_OK:
                break
            at += info.size
            continue
        if finding != BATCH_OK:
            break
        if info.base_offset < 0 or info.last_offset_delta < 0 \
                or info.base_offset > INT64_MAX - 1 - info.last_offset_delta:
            finding = BATCH_BAD_BASE_OFFSET
            break
        finding = batch_take(chunk, records + at, &info, &aborting)
        if finding != BATCH_OK:
            break
        at += info.size
    free(aborting.producers)
    if finding == OUT_OF_MEMORY:
        return OUT_OF_MEMORY
    # A batch that a size limit cut off comes whole with the next Fetch. It is an error only if nothing came before it:
    # the next Fetch would bring the same part of it.
    if finding == BATCH_TOO_SHORT and chunk.next_offset > chunk.start_offset:
        finding = BATCH_OK
    chunk.finding = finding
    chunk.finding_position = at
    chunk_number(chunk)
    return 0
