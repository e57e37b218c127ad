"""Which partitions a fetch is about: those that its request names, or those of its session (KIP-227)."""

from libc.stdint cimport int64_t

from kbroker._core.log.registry cimport Registry
from kbroker._core.server.fetch.fetch cimport fetch_t
from kbroker._core.wire.cursor cimport reader_t

# Decide the context and settle the entries of a parsed request: each partition once, with what was asked for it last, as
# Kafka has it. With CONTEXT_INCREMENTAL f.session is set and locked. -1: out of memory. NEEDS_HANDLER, unless it `may_block`:
# the session is being worked on, or too large for a processor; nothing was changed.
cdef int open_session(fetch_t *f, Registry registry, reader_t forgotten, int64_t now_ms, bint may_block) noexcept nogil

# An isolation level that does not exist: what Kafka answers when it fails on its way. No partition by id is named.
cdef void refuse_all(fetch_t *f) noexcept nogil
