"""Finds the position of an offset in a log's files; see position.pxd.

The segment is found by base offset. In the active one, the ring over its newest batches is searched first, then the
pending and the written entries of its index. From the index entry on, batch headers are walked.
"""

from libc.errno cimport EAGAIN
from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.sync cimport *
from kbroker._core.log.io cimport io_read
from kbroker._core.log.offset_index cimport index_find, index_position, index_relative_offset
from kbroker._core.log.partition cimport *
from kbroker._core.wire.cursor cimport load_u32, load_u64
from kbroker._core.wire.error_codes cimport (
    UNKNOWN_SERVER_ERROR, OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR,
)
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.transaction_marker cimport (
    ABORTED_FIRST_OFFSET, ABORTED_LAST_OFFSET, ABORTED_LAST_STABLE_OFFSET, ABORTED_PRODUCER_ID, ABORTED_SIZE,
)

cdef enum:
    NO_BATCH = -201
    ALL_TAKEN = -202
    READ_AGAIN = -203
    TOO_MANY_ABORTED = -204

    SCAN_SIZE = 4096             # bytes of one pread in a walk over headers: one of patience_t.pieces
    ABORTED_PIECE = 256          # entries of a .txnindex that take as long to look at as one such read
    MOST_ABORTED = 1 << 16       # a read that overlaps with more aborted transactions is one batch long

ctypedef struct held_t:
    # Segments that were opened for one read.
    segment_t **segments         # references
    int32_t count
    int32_t capacity

ctypedef struct moment_t:
    # The values of the moment at which a segment was found. The log may have changed since then.
    int64_t next_base            # base offset of the following segment, -1 for the active one
    int64_t size                 # of the segment; bytes appended later may not be visible to this reader
    int64_t log_end              # -1 without segments
    uint32_t removals            # partition_t.removals
    bint aborting                # the log has aborted transactions


cdef int partition_read(partition_t *p, int64_t offset, int64_t max_bytes, bint at_least_one, int8_t until,
                        patience_t *patience, read_result_t *result) noexcept nogil:
    cdef need_t need
    cdef held_t held
    cdef int code = 0
    held.segments = NULL
    held.count = held.capacity = 0
    while True:
        need.kind = NEED_NOTHING
        need.base_offset = -1
        result.segment = NULL
        result.aborted = NULL
        result.aborted_count = 0
        result.aborted_capacity = 0
        result.position = 0
        result.size = 0
        code = read_once(p, offset, max_bytes, at_least_one, until, patience, result, &need)
        if code == READ_AGAIN:
            continue
        if code != NEEDS_HANDLER or not patience.may_block:
            break
        code = meet_need(p, &need)
        if code != 0:
            break
        if need.kind == NEED_SEGMENT or need.kind == NEED_ABORTED:
            hold(p, need.base_offset, &held)
    while held.count:
        held.count -= 1
        segment_unref(held.segments[held.count])
    free(held.segments)
    return code


cdef void hold(partition_t *p, int64_t base_offset, held_t *held) noexcept nogil:
    """Keep a reference of a segment that was opened for this read, so that opening the next one does not close it."""
    cdef segment_t *s
    cdef segment_t **grown = <segment_t **>with_room(held.segments, held.count, &held.capacity, sizeof(segment_t *))
    if grown == NULL:
        return
    held.segments = grown
    mutex_lock(&p.lock)
    s = find_segment(p, base_offset)
    if s != NULL:
        segment_ref(s)
        held.segments[held.count] = s
        held.count += 1
    mutex_unlock(&p.lock)


cdef int read_once(partition_t *p, int64_t offset, int64_t max_bytes, bint at_least_one, int8_t until,
                   patience_t *patience, read_result_t *result, need_t *need) noexcept nogil:
    cdef segment_t *s
    cdef found_t start
    cdef found_t limit
    cdef moment_t then
    cdef int64_t end
    cdef int64_t end_position = 0
    cdef int64_t after = -1
    cdef int code = refusal(p)
    result.high_watermark = -1
    result.last_stable_offset = -1
    result.log_start_offset = -1
    if code == NEEDS_HANDLER:
        need.kind = NEED_OPEN
    if code and code != KAFKA_STORAGE_ERROR:
        return code
    end = partition_visible_end(p, until)
    result.high_watermark = end if until == TO_HIGH_WATERMARK else partition_visible_end(p, TO_HIGH_WATERMARK)
    result.last_stable_offset = end if until == TO_LAST_STABLE else partition_visible_end(p, TO_LAST_STABLE)
    result.log_start_offset = atomic_load_i64(&p.log_start_offset)
    if code:
        return code
    if offset < result.log_start_offset or offset > atomic_load_i64(&p.log_end_offset):
        return OFFSET_OUT_OF_RANGE
    if max_bytes <= 0 and not at_least_one:
        return 0
    while offset < end:
        s = segment_at(p, offset, after, &then)
        if s == NULL:
            return 0 if then.log_end >= 0 else let_go(p)
        if then.next_base >= 0 and then.size == 0:
            # Compaction left nothing of it. It is not opened: several such segments would close one another's files for
            # ever.
            after = s.base_offset
            segment_unref(s)
            continue
        if s.fd < 0:
            need.kind = NEED_SEGMENT
            need.base_offset = s.base_offset
            segment_unref(s)
            return NEEDS_HANDLER
        atomic_store_i32(&s.touched, 1)
        code = locate(p, s, offset, patience, &start, need)
        if code == 0 and start.size:
            # The visible end may lie in this segment and has to be found then; usually it is the segment's own end.
            if end >= (then.next_base if then.next_base >= 0 else then.log_end):
                end_position = then.size
            else:
                code = locate(p, s, end, patience, &limit, need)
                end_position = limit.position
        if code:
            segment_unref(s)
            return code
        if start.size:
            break
        # Nothing at or above `offset` in this segment: a gap that compaction left.
        after = s.base_offset
        segment_unref(s)
    else:
        return 0
    if start.position >= end_position:
        segment_unref(s)
        return 0
    if end_position - start.position <= max_bytes:
        result.size = end_position - start.position
    elif start.size <= max_bytes:
        result.size = max_bytes
    elif at_least_one:
        result.size = start.size
    else:
        segment_unref(s)
        return 0
    result.position = start.position
    result.segment = s
    if until == TO_LAST_STABLE and then.aborting:
        end = then.next_base if then.next_base >= 0 else then.log_end
        code = find_end(p, s, result.position + result.size, patience.may_block, &end, need)
        if code == 0:
            code = collect_aborted(p, s, offset, end, &then, MOST_ABORTED, patience, result, need)
        if code == TOO_MANY_ABORTED:
            result.size = min(result.size, start.size)
            result.aborted_count = 0
            code = collect_aborted(p, s, offset, start.end, &then, INT32_MAX, patience, result, need)
        if code:
            free(result.aborted)
            result.aborted = NULL
            result.aborted_count = 0
            result.segment = NULL
            segment_unref(s)
    return code

# --- aborted transactions -----------------------------------------------------------------------------

cdef int collect_aborted(partition_t *p, segment_t *s, int64_t offset, int64_t end, const moment_t *then, int32_t most,
                         patience_t *patience, read_result_t *result, need_t *need) noexcept nogil:
    """Collect the aborted transactions that overlap with `offset` to `end` into `result`, in Kafka's order.

    As in Kafka, `end` is the offset of the .index entry behind the bytes that are sent (find_end). The search goes
    through the segment that is read and all later ones, because a transaction may have been aborted much later.
    READ_AGAIN: segments have left the list since this one was found, perhaps with the entries of its transactions.
    TOO_MANY_ABORTED: more than `most`.
    """
    cdef segment_t *at
    cdef const uint8_t *entries
    cdef int64_t after = s.base_offset - 1
    cdef int32_t count
    cdef int code = 0
    while code == 0:
        mutex_lock(&p.lock)
        if p.removals != then.removals:
            mutex_unlock(&p.lock)
            return READ_AGAIN
        at = next_aborting(p, after)
        if at == NULL:
            mutex_unlock(&p.lock)
            return 0
        after = at.base_offset
        entries = at.aborted
        count = at.aborted_count
        if count and entries == NULL:
            need.kind = NEED_SEGMENT if at.fd < 0 else NEED_ABORTED
            need.base_offset = at.base_offset
            mutex_unlock(&p.lock)
            return NEEDS_HANDLER
        # The map is valid as long as the segment is referenced; written entries never change.
        segment_ref(at)
        atomic_store_i32(&at.touched, 1)
        mutex_unlock(&p.lock)
        code = take_aborted(entries, count, offset, end, most, patience, result)
        segment_unref(at)
    return 0 if code == ALL_TAKEN else code


cdef segment_t *next_aborting(partition_t *p, int64_t after) noexcept nogil:
    """Return the first segment with aborted transactions and a base offset above `after`, or NULL (`lock` held)."""
    cdef int32_t at = first_segment_from(p.aborting, p.aborting_count, after + 1)
    return p.aborting[at] if at < p.aborting_count else NULL


cdef int take_aborted(const uint8_t *entries, int32_t count, int64_t offset, int64_t end, int32_t most,
                      patience_t *patience, read_result_t *result) noexcept nogil:
    """Collect the aborted transactions of one .txnindex that overlap with `offset` to `end`.

    The entries ascend by last offset. Returns ALL_TAKEN when no later entry can be of a transaction that began before
    `end`.
    """
    cdef const uint8_t *entry
    cdef aborted_t *grown
    cdef int32_t low = 0
    cdef int32_t high = count
    cdef int32_t middle
    while low < high:
        middle = (low + high) >> 1
        if <int64_t>load_u64(entries + middle * <int64_t>ABORTED_SIZE + ABORTED_LAST_OFFSET) < offset:
            low = middle + 1
        else:
            high = middle
    high = low
    while low < count:
        if low - high >= ABORTED_PIECE:
            high = low
            patience.pieces -= 1
            if patience.pieces < 0 and not patience.may_block:
                return NEEDS_HANDLER
        entry = entries + low * <int64_t>ABORTED_SIZE
        if <int64_t>load_u64(entry + ABORTED_FIRST_OFFSET) < end:
            if result.aborted_count == most:
                return TOO_MANY_ABORTED
            grown = <aborted_t *>with_room(result.aborted, result.aborted_count, &result.aborted_capacity,
                                           sizeof(aborted_t))
            if grown == NULL:
                return UNKNOWN_SERVER_ERROR
            result.aborted = grown
            result.aborted[result.aborted_count].producer_id = <int64_t>load_u64(entry + ABORTED_PRODUCER_ID)
            result.aborted[result.aborted_count].first_offset = <int64_t>load_u64(entry + ABORTED_FIRST_OFFSET)
            result.aborted_count += 1
        if <int64_t>load_u64(entry + ABORTED_LAST_STABLE_OFFSET) >= end:
            return ALL_TAKEN
        low += 1
    return 0


cdef int find_end(partition_t *p, segment_t *s, int64_t position, bint may_block, int64_t *end,
                  need_t *need) noexcept nogil:
    """Set `end` to the offset of the first index entry at or behind byte `position`; without one it is not changed.

    An entry of the file counts only if the batch at its position confirms it; otherwise `end` is not changed either. An
    `end` that is too high is harmless: the fetch then gets more aborted transactions than it needs.
    """
    cdef const uint8_t *entries = NULL
    cdef uint8_t[BATCH_HEADER_SIZE] header
    cdef int64_t last_offset
    cdef int64_t there
    cdef int64_t count
    cdef int64_t slot
    mutex_lock(&p.lock)
    if position >= s.size:
        mutex_unlock(&p.lock)
        return 0
    count = s.index_entries
    if count and s.index == NULL:
        if s.index_fd < 0:
            need.kind = NEED_INDEX
            need.base_offset = s.base_offset
            mutex_unlock(&p.lock)
            return NEEDS_HANDLER
        if not map_index(p, s):
            mutex_unlock(&p.lock)
            return KAFKA_STORAGE_ERROR
    entries = s.index
    if s.pending != NULL and s.pending.count and (
        count == 0 or index_position(entries, count - 1) < position
    ):
        slot = first_at_position(s.pending.index, s.pending.count, position)
        if slot < s.pending.count:
            end[0] = s.base_offset + index_relative_offset(s.pending.index, slot)
        mutex_unlock(&p.lock)
        return 0
    mutex_unlock(&p.lock)
    slot = first_at_position(entries, count, position)
    if slot == count:
        return 0
    there = io_read(s.fd, header, BATCH_HEADER_SIZE, index_position(entries, slot), may_block)
    if there < BATCH_HEADER_SIZE and not may_block:
        return NEEDS_HANDLER
    if there == BATCH_HEADER_SIZE and header[BATCH_MAGIC] == 2:
        last_offset = <int64_t>load_u64(header) + <int32_t>load_u32(header + BATCH_LAST_OFFSET_DELTA)
        if last_offset == s.base_offset + index_relative_offset(entries, slot):
            end[0] = last_offset
    return 0


cdef int64_t first_at_position(const uint8_t *entries, int64_t count, int64_t position) noexcept nogil:
    """Return the slot of the first entry whose position is at least `position`; `count` without one."""
    cdef int64_t low = 0
    cdef int64_t high = count
    cdef int64_t middle
    while low < high:
        middle = (low + high) >> 1
        if index_position(entries, middle) < position:
            low = middle + 1
        else:
            high = middle
    return low

# --- offsets ------------------------------------------------------------------------------------------


cdef segment_t *segment_at(partition_t *p, int64_t offset, int64_t after, moment_t *then) noexcept nogil:
    """Return a reference of the segment that may have `offset`, or NULL; its base offset is above `after`.

    It is the last segment whose base offset is at most `offset`, else the first one above `after`.
    """
    cdef int32_t low
    cdef int32_t high
    cdef int32_t middle
    cdef segment_t *s = NULL
    mutex_lock(&p.lock)
    low = 0
    high = p.segment_count
    while low < high:
        middle = (low + high) >> 1
        if p.segments[middle].base_offset <= (offset if offset > after else after):
            low = middle + 1
        else:
            high = middle
    low -= 1
    if low >= 0 and p.segments[low].base_offset <= after:
        low += 1
    elif low < 0 and p.segment_count:
        low = 0      # `offset` is below the first segment that is left
    if 0 <= low < p.segment_count:
        s = p.segments[low]
        segment_ref(s)
        then.size = s.size
        then.next_base = p.segments[low + 1].base_offset if low + 1 < p.segment_count else -1
    then.log_end = p.log_end_offset if p.segment_count else -1
    then.removals = p.removals
    then.aborting = p.aborting_count > 0
    mutex_unlock(&p.lock)
    return s


cdef int let_go(partition_t *p) noexcept nogil:
    """Return the error code for a read that has found the log open and now finds it deleted or closed."""
    cdef int code = refusal(p)
    return code if code else NEEDS_HANDLER


cdef int locate(partition_t *p, segment_t *s, int64_t offset, patience_t *patience, found_t *found,
                need_t *need) noexcept nogil:
    """Find the first batch of the segment with records at or above `offset`: by tail ring, else by index and headers.

    Returns 0 with found.size 0 and the segment's end as position when there is none. NEEDS_HANDLER: bytes are not in
    memory, or `need` tells what has to be opened.
    """
    cdef int64_t position = 0
    cdef int64_t size
    cdef int64_t relative = offset - s.base_offset
    mutex_lock(&p.lock)
    if p.segment_count == 0:
        mutex_unlock(&p.lock)
        return let_go(p)
    size = s.size
    if p.segments[p.segment_count - 1] == s:
        if offset >= p.log_end_offset:
            mutex_unlock(&p.lock)
            found.position = size
            found.size = 0
            return 0
        if locate_in_tail(p, s, offset, found):
            mutex_unlock(&p.lock)
            return 0
    if offset > s.base_offset:
        if s.pending != NULL and s.pending.count and index_relative_offset(s.pending.index, 0) <= relative:
            position = floor_position(s.pending.index, s.pending.count, relative)
        elif s.index_entries:
            if s.index == NULL and s.index_fd < 0:
                mutex_unlock(&p.lock)
                need.kind = NEED_INDEX
                need.base_offset = s.base_offset
                return NEEDS_HANDLER
            if s.index == NULL and not map_index(p, s):
                mutex_unlock(&p.lock)
                return KAFKA_STORAGE_ERROR
            # The map is valid as long as the segment is referenced; written entries never change.
            position = -1
    mutex_unlock(&p.lock)
    if position < 0:
        return locate_by_index(p, s, size, offset, patience, found)
    return scan(p, s.fd, position, size, offset, INT64_MIN, INT64_MAX, patience, found)


cdef int locate_by_index(partition_t *p, segment_t *s, int64_t size, int64_t offset, patience_t *patience,
                         found_t *found) noexcept nogil:
    """Find the batch with the entries of the .index file.

    The entries are not checked when a log is opened after a clean stop, so wrong ones are passed over here.
    """
    cdef int64_t slot = index_find(s.index, s.index_entries, offset - s.base_offset)
    cdef int64_t position
    cdef int code
    while slot >= 0:
        position = index_position(s.index, slot)
        if 0 <= position < size:
            code = scan(p, s.fd, position, size, offset, INT64_MIN, offset, patience, found)
            if code != NO_BATCH:
                return code
        slot -= 1
    return scan(p, s.fd, 0, size, offset, INT64_MIN, INT64_MAX, patience, found)


cdef inline int64_t floor_position(const uint8_t *entries, int32_t count, int64_t relative_offset) noexcept nogil:
    """Return the position of the last entry whose offset is at most `relative_offset`; 0, the start, without one."""
    cdef int64_t slot = index_find(entries, count, relative_offset)
    return index_position(entries, slot) if slot >= 0 else 0


cdef inline bint locate_in_tail(partition_t *p, segment_t *s, int64_t offset, found_t *found) noexcept nogil:
    """Find the batch with `offset` in the ring over the newest batches (`lock` held).

    False: the ring is empty, or `offset` is below its first batch.
    """
    cdef uint32_t newest = p.tail_count
    cdef uint32_t low = newest - TAIL_RING if newest > TAIL_RING else 0
    cdef uint32_t high = newest
    cdef uint32_t middle
    if low == high or offset < p.tail[low & (TAIL_RING - 1)].base_offset:
        return False
    while high - low > 1:
        middle = low + ((high - low) >> 1)
        if p.tail[middle & (TAIL_RING - 1)].base_offset <= offset:
            low = middle
        else:
            high = middle
    found.position = p.tail[low & (TAIL_RING - 1)].position
    found.size = (p.tail[(low + 1) & (TAIL_RING - 1)].position if low + 1 < newest else s.size) - found.position
    found.end = p.tail[(low + 1) & (TAIL_RING - 1)].base_offset if low + 1 < newest else p.log_end_offset
    return True


cdef bint map_index(partition_t *p, segment_t *s) noexcept nogil:
    """Map the .index for lookups (`lock` held), as large as that of an active segment may become."""
    cdef int64_t capacity = p.options.index_max_bytes
    if capacity < <int64_t>s.index_entries * INDEX_ENTRY_SIZE:
        capacity = <int64_t>s.index_entries * INDEX_ENTRY_SIZE
    s.index = map_index_file(s.index_fd, capacity, False)
    s.index_capacity = capacity
    return s.index != NULL


cdef int scan(partition_t *p, int32_t fd, int64_t position, int64_t end, int64_t offset, int64_t timestamp,
              int64_t first_offset, patience_t *patience, found_t *found) noexcept nogil:
    cdef uint8_t[SCAN_SIZE] buffer
    cdef int64_t begin = position
    cdef int64_t start = position      # of the first byte in `buffer`
    cdef int64_t there = 0
    cdef int64_t wanted
    cdef int64_t last_offset
    cdef int64_t newest
    cdef int64_t length
    cdef const uint8_t *header
    while position < end:
        wanted = end - position
        if wanted < BATCH_MAGIC + 1:
            return CORRUPT_MESSAGE if first_offset == INT64_MAX or position > begin else NO_BATCH
        if wanted > BATCH_HEADER_SIZE:
            wanted = BATCH_HEADER_SIZE
        if position + wanted > start + there:
            start = position
            patience.pieces -= 1
            if patience.pieces < 0 and not patience.may_block:
                return NEEDS_HANDLER
            there = io_read(fd, buffer, SCAN_SIZE if end - start > SCAN_SIZE else end - start, start,
                            patience.may_block)
            if there < wanted:
                # Fewer bytes than the segment has: only some of them are in memory, or the file was cut from outside.
                if not patience.may_block and (there >= 0 or there == -EAGAIN):
                    return NEEDS_HANDLER
                if there < 0:
                    directory_failed(p, <int>there)
                return KAFKA_STORAGE_ERROR
        header = buffer + (position - start)
        length = <int32_t>load_u32(header + BATCH_LENGTH)
        last_offset = <int64_t>load_u64(header)
        if first_offset != INT64_MAX and position == begin and (
            length < 14 or LOG_OVERHEAD + length > end - position or header[BATCH_MAGIC] > 2
            or not 0 <= last_offset <= first_offset
        ):
            return NO_BATCH
        if length < 14 or LOG_OVERHEAD + length > end - position:
            return CORRUPT_MESSAGE
        if header[BATCH_MAGIC] >= 2:
            if wanted < BATCH_HEADER_SIZE:
                return CORRUPT_MESSAGE
            last_offset += <int32_t>load_u32(header + BATCH_LAST_OFFSET_DELTA)
            newest = <int64_t>load_u64(header + BATCH_MAX_TIMESTAMP)
        elif header[MESSAGE_MAGIC] == 1 and wanted >= MESSAGE_TIMESTAMP + 8:
            newest = <int64_t>load_u64(header + MESSAGE_TIMESTAMP)
        else:
            newest = -1
        if last_offset >= offset and newest >= timestamp:
            found.position = position
            found.size = LOG_OVERHEAD + length
            found.end = last_offset + 1
            return 0
        position += LOG_OVERHEAD + length
    found.position = end
    found.size = 0
    return 0
