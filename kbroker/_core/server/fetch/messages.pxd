"""Converts batches for versions 0 to 3 of Fetch, which get messages of magic 0 or 1, whatever the log holds."""

from kbroker._core.server.fetch.fetch cimport fetch_entry_t, fetch_t
from kbroker._core.server.serving cimport Serving
from kbroker._core.wire.cursor cimport writer_t

# Append the batches of the region `e.read` to `w` as messages; a last batch that is cut is left out. Reads the log in
# pieces, so that little memory is needed besides the response's own. Returns 0, or an error code with nothing written.
# May block.
cdef int write_messages(Serving serving, const fetch_t *f, const fetch_entry_t *e, writer_t *w) noexcept nogil
