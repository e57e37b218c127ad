"""Finds the partitions of a fetch: those that its request names, or those of its session (KIP-227)."""

from libc.stdint cimport int64_t

from kbroker._core.log.partition_table cimport PartitionTable
from kbroker._core.server.fetch.fetch cimport fetch_t
from kbroker._core.wire.cursor cimport reader_t

# Set the context and the entries of a parsed request: each partition once, with the values that the request names last
# for it, as in Kafka. Returns 0; -1: memory is out; NEEDS_HANDLER, without `may_block` only: the session is in use or
# too large for a processor, and nothing was changed. With CONTEXT_INCREMENTAL f.session is set and locked.
cdef int open_session(fetch_t *f, PartitionTable partition_table, reader_t forgotten, int64_t now_ms,
                      bint may_block) noexcept nogil

# Answer an isolation level that does not exist as Kafka does: every partition gets UNKNOWN_SERVER_ERROR. From version
# 13 on no partition is named.
cdef void refuse_all(fetch_t *f) noexcept nogil
