"""The output of a pass of compaction, in order: bytes that were written anew, and bytes of the source that stay.

Bytes of the source are not copied while the whole output is one piece of it: then the output is read in the source.
"""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.wire.cursor cimport write_raw, writer_t

ctypedef struct copied_t:
    writer_t made
    const uint8_t *piece         # bytes of the source that follow `made` in the output; NULL: none
    const uint8_t *piece_end

cdef inline writer_t *copied_writer(copied_t *copied) noexcept nogil:
    """Return the writer for bytes that are written anew; bytes of the source that stay are copied to it first."""
    if copied.piece != NULL:
        write_raw(&copied.made, copied.piece, <size_t>(copied.piece_end - copied.piece))
        copied.piece = NULL
    return &copied.made

cdef inline void copied_keep(copied_t *copied, const uint8_t *data, int64_t size) noexcept nogil:
    """Add `size` bytes of the source to the output.

    The source has to stay valid until the output is read.
    """
    if copied.piece == NULL or data != copied.piece_end:
        copied_writer(copied)
        copied.piece = data
    copied.piece_end = data + size
