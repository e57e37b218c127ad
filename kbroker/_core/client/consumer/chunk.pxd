"""What a Fetch response brought for one partition: which of its batches a consumer gets, and where it goes on.

A response's buffer (`fetch_buffer_t`) is reference-counted. The chunks of its partitions and every record that was made
of them share it; the last one that goes frees it, on any thread. A chunk belongs to one owner at a time: to the
FetchEngine until it is polled, then to a `Chunk` (batches.pxd).

As in Java's consumer, a batch that is cut short at the end is left out, batches and records before the position are
skipped, control batches move the position and give no records, and read_committed leaves out aborted transactions.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.wire.record_batch cimport batch_info_t

ctypedef struct fetch_buffer_t:
    int32_t refs             # atomic
    uint8_t *data            # from base/receive_buffers.pxd
    int64_t capacity

ctypedef struct aborted_t:
    # A transaction that was aborted: batches of the producer from `first_offset` on, up to its abort marker.
    int64_t producer_id
    int64_t first_offset

ctypedef struct batch_place_t:
    # A batch with records to give; or, of magic 0 and 1, one compressed message, or several plain ones that are alike
    # (messages.pxd).
    const uint8_t *data      # the header, in the response's buffer
    int64_t first            # number of its first record in the chunk
    int32_t size             # bytes, header included
    int32_t count            # records in it; 0 for a compressed message until it is decompressed
    int32_t skipped          # how many of them stand before the position; -1: not known until it is decompressed

ctypedef struct chunk_t:
    chunk_t *next            # for the owner to use
    fetch_buffer_t *buffer   # a reference
    batch_place_t *batches
    int32_t batch_count
    int32_t batch_capacity
    int64_t record_count     # of all batches, once no `skipped` is -1
    int64_t size             # bytes of the partition's records in the response
    int64_t start_offset     # the position that the Fetch asked for
    int64_t next_offset      # the position behind the chunk
    int32_t leader_epoch     # leader epoch of the last batch; -1: not known
    # What is wrong with the bytes behind the last batch: a finding of wire/record_batch.pxd. All batches before are
    # good; batches behind the damaged bytes cannot be found.
    int finding
    int64_t finding_position # where these bytes are, from the start of the partition's records

# Makes a fetch_buffer_t with one reference, which owns `data`. Returns NULL if memory is out; `data` stays the caller's
# then.
cdef fetch_buffer_t *fetch_buffer_new(uint8_t *data, int64_t capacity) noexcept nogil
cdef void fetch_buffer_ref(fetch_buffer_t *buffer) noexcept nogil
cdef void fetch_buffer_unref(fetch_buffer_t *buffer) noexcept nogil

# Makes an empty chunk, which takes its own reference to the buffer. Returns NULL if memory is out.
cdef chunk_t *chunk_new(fetch_buffer_t *buffer, int64_t start_offset) noexcept nogil
cdef void chunk_free(chunk_t *chunk) noexcept nogil

# Looks through a partition's records, which lie in the chunk's buffer. `aborted` has the transactions that
# read_committed leaves out, and is sorted here; it is NULL for read_uncommitted. Returns 0 or OUT_OF_MEMORY.
# `chunk.finding` says what is wrong with the bytes.
cdef int chunk_index(chunk_t *chunk, const uint8_t *records, int64_t size, aborted_t *aborted, int32_t aborted_count,
                     bint check_crcs) noexcept nogil

# Counts the records of a batch whose offset is below `position`, by walking over its decompressed records. Returns -1
# if they are malformed.
cdef int32_t records_before(const uint8_t *payload, int64_t size, const batch_info_t *info,
                            int64_t position) noexcept nogil

# Removes the batches from index `batch` on. `next_offset` is set to the end of the rest, and `finding` to BATCH_OK.
cdef void chunk_cut(chunk_t *chunk, int32_t batch) noexcept nogil

# Numbers the records again, after a `skipped` has become known.
cdef void chunk_number(chunk_t *chunk) noexcept nogil
