"""What a pass of compaction leaves of some bytes, in order: what was written anew, and what stays as it lies.

What stays is not copied as long as it is one piece and all there is: then it is read where it lies.
"""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.wire.cursor cimport write_raw, writer_t

ctypedef struct copied_t:
    writer_t made
    const uint8_t *piece         # to follow behind `made`, still in the source; NULL for none
    const uint8_t *piece_end

cdef inline writer_t *copied_writer(copied_t *copied) noexcept nogil:
    """For what is written anew."""
    if copied.piece != NULL:
        write_raw(&copied.made, copied.piece, <size_t>(copied.piece_end - copied.piece))
        copied.piece = NULL
    return &copied.made

cdef inline void copied_keep(copied_t *copied, const uint8_t *data, int64_t size) noexcept nogil:
    """These bytes of the source stay."""
    if copied.piece == NULL or data != copied.piece_end:
        copied_writer(copied)
        copied.piece = data
    copied.piece_end = data + size
