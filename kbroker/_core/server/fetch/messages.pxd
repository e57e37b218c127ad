"""What versions 0 to 3 of Fetch get: messages of magic 0 or 1, whatever the log holds."""

from kbroker._core.server.fetch.fetch cimport fetch_entry_t, fetch_t
from kbroker._core.server.serving cimport Serving
from kbroker._core.wire.cursor cimport writer_t

# Messages of the batches that `e.read` tells of, behind what is in `w`; a last batch cut short is left out. Reads the log in
# pieces, so that no more memory than the response's own is needed. 0, or an error code and nothing written. May block.
cdef int write_messages(Serving serving, const fetch_t *f, const fetch_entry_t *e, writer_t *w) noexcept nogil
