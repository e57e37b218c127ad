"""What a Fetch response brought for one partition: which of its batches a consumer gets, and where it goes on.

A response's buffer (`fetch_buffer_t`) is counted and shared by the chunks of its partitions, and by every record that has been made of them; it
is freed by whoever lets the last of them go, on any thread. A chunk belongs to one owner at a time: to the FetchEngine until it
is polled, then to a `Chunk` (batches.pxd).

As in Java's consumer a batch cut short at the end is left out, batches and records before the position are skipped, control
batches move the position and give nothing, and read_committed leaves out what was aborted.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.wire.record_batch cimport batch_info_t

cdef enum:
    OUT_OF_MEMORY = -1

ctypedef struct fetch_buffer_t:
    int32_t refs             # atomic
    uint8_t *data            # of receive_buffers
    int64_t capacity

ctypedef struct aborted_t:
    # A transaction that was aborted: batches of the producer from `first_offset` on, up to its abort marker.
    int64_t producer_id
    int64_t first_offset

ctypedef struct batch_place_t:
    # A batch with records to give; or messages of magic 0 or 1, one that is compressed or some that are alike (messages.pxd).
    const uint8_t *data      # its header, in the response's buffer
    int64_t first            # number of its first record in the chunk
    int32_t size             # bytes, header included
    int32_t count            # records in it; of a compressed message known once it is inflated, 0 before
    int32_t skipped          # of these so many stand before the position; -1: known once it is inflated

ctypedef struct chunk_t:
    chunk_t *next            # the owner's
    fetch_buffer_t *buffer   # a reference
    batch_place_t *batches
    int32_t batch_count
    int32_t batch_capacity
    int64_t record_count     # of all batches, once no `skipped` is -1
    int64_t size             # bytes of the partition's records in the response
    int64_t start_offset     # the position it was asked for
    int64_t next_offset      # the position behind it
    int32_t leader_epoch     # of the last batch, -1 none
    # What is wrong with the bytes behind the last batch, a finding of wire/record_batch.pxd: all before it is good, and nothing of
    # what follows can be found.
    int finding
    int64_t finding_position # where, from the start of the partition's records

# The buffer becomes the new one's, which has one reference; NULL when memory is out, nothing has changed then.
cdef fetch_buffer_t *fetch_buffer_new(uint8_t *data, int64_t capacity) noexcept nogil
cdef void fetch_buffer_ref(fetch_buffer_t *buffer) noexcept nogil
cdef void fetch_buffer_unref(fetch_buffer_t *buffer) noexcept nogil

# An empty chunk that holds a reference of its own; NULL when memory is out.
cdef chunk_t *chunk_new(fetch_buffer_t *buffer, int64_t start_offset) noexcept nogil
cdef void chunk_free(chunk_t *chunk) noexcept nogil

# Look through a partition's records, which lie in the chunk's buffer. `aborted` (sorted here) is what read_committed leaves out, NULL
# for read_uncommitted. OUT_OF_MEMORY or 0; what is wrong with the bytes is in `chunk.finding`.
cdef int chunk_index(chunk_t *chunk, const uint8_t *records, int64_t size, aborted_t *aborted, int32_t aborted_count, bint check_crcs) noexcept nogil

# Records of a batch before `position`: its payload is walked. -1: it is not right.
cdef int32_t records_before(const uint8_t *payload, int64_t size, const batch_info_t *info, int64_t position) noexcept nogil

# Leaves out the batches from the one at `batch` on: the chunk ends before it, and nothing is wrong with what is left.
cdef void chunk_cut(chunk_t *chunk, int32_t batch) noexcept nogil

# The numbers of the records again, after a `skipped` has become known.
cdef void chunk_number(chunk_t *chunk) noexcept nogil
