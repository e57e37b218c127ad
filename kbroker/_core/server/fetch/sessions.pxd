"""Fetch sessions (KIP-227): what an incremental fetch asks for without saying it, shared by all processors.

`fetch_session_t` is reference-counted: the cache holds one, whoever serves a fetch of it holds another, so eviction never
pulls one away under its user. Locks: a session's own `lock` guards its partitions and epoch and is held while a fetch of
it is looked at and answered; the cache's `lock` guards the table and what eviction decides by. Order: session, cache;
session, registry, partition. The cache's lock is never held over anything else.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._core.base.sync cimport mutex_t
from kbroker._core.log.partition cimport partition_t
from kbroker._core.log.registry cimport MOST_TOPIC_NAME

cdef enum:
    SESSION_PARTITIONS = 10000   # of one session: each fetch of it looks at all of them, on the word of some sixty bytes
    SLOT_PARTITIONS = 100        # of all sessions together, for each slot of the cache
    ABANDONED = -(1LL << 60)     # fetch_session_t.last_used_ms

ctypedef struct cached_partition_t:
    # A partition of a session: what the client asked for last, and what it was told last.
    partition_t *partition       # a reference; NULL while not known, looked up again by each fetch
    uint8_t *topic               # its name, owned; NULL in sessions by topic id
    uint8_t topic_id[16]
    int16_t topic_size
    int8_t id_known              # its topic id has been known since it is here: later only the partition is unknown
    int32_t partition_id
    int32_t max_bytes
    int32_t leader_epoch
    int64_t offset
    int64_t high_watermark       # -1 after an error: the next answer tells it again
    int64_t log_start_offset
    uint32_t hash
    int32_t next                 # order of answering, by place; -1 at the end. Of a free place: the next free one
    int32_t previous

ctypedef struct fetch_session_t:
    int32_t refs                 # atomic
    mutex_t lock
    int32_t id                   # constant, as the next three
    int8_t privileged            # a follower's
    int8_t by_id                 # topics are named by id: made by version 13 or later
    int64_t created_ms
    int32_t epoch                # what the next request must say
    uint32_t shape               # changes whenever a partition comes or goes
    cached_partition_t *cached
    int32_t capacity             # places in `cached`
    int32_t count                # in use
    int32_t used                 # places ever used
    int32_t free_place           # -1 none
    int32_t first                # order of answering
    int32_t last
    int32_t *table               # open addressing over places, -1 empty
    int32_t table_size           # a power of two
    # Guarded by the cache's lock:
    int8_t listed                # is in the cache
    int32_t listed_size          # partitions when last used
    int64_t last_used_ms         # ABANDONED: its connection is gone
    int64_t owner                # id of the connection that used it last
    int64_t host                 # token of the one that made it
    fetch_session_t *id_next     # chain of the cache's table

ctypedef struct session_cache_t:
    mutex_t lock
    int32_t slots                # max.incremental.fetch.session.cache.slots
    int64_t min_eviction_ms
    int32_t fetch_max_bytes      # fetch.max.bytes
    int32_t count
    int64_t partition_count
    int64_t most_partitions      # in all sessions together
    int64_t evictions
    uint64_t random
    int64_t set_ms               # a clock set by hand, -1: the processors' own
    int32_t bucket_count         # a power of two
    fetch_session_t **buckets

# A reference for the caller, or NULL.
cdef fetch_session_t *session_find(session_cache_t *cache, int32_t session_id) noexcept nogil
cdef void session_unref(fetch_session_t *session) noexcept nogil
# Out of the cache, by id; nothing happens when it is not there.
cdef void session_remove(session_cache_t *cache, int32_t session_id) noexcept nogil
# An empty session, not in the cache, without an id yet; NULL when memory is out.
cdef fetch_session_t *session_new(bint privileged, bint by_id) noexcept nogil
# Give it an id and a slot of the cache, evicting as KIP-227 says; but a host that has more than half of the cache gives to
# the others, and takes nothing of theirs. 0: no room, the caller keeps the only reference.
cdef int32_t session_list(session_cache_t *cache, fetch_session_t *session, int64_t owner, int64_t host,
                          int64_t now_ms) noexcept nogil
# It was used: by whom and when.
cdef void session_touch(session_cache_t *cache, fetch_session_t *session, int64_t owner, int64_t now_ms) noexcept nogil
# Count the partitions it has now. False: the cache has no room for so many, it has to end. Session.lock held.
cdef bint session_resize(session_cache_t *cache, fetch_session_t *session, int64_t now_ms) noexcept nogil
# The connection is gone: its sessions are the first to be evicted.
cdef void sessions_abandon(session_cache_t *cache, int64_t owner) noexcept nogil
cdef int32_t next_epoch(int32_t epoch) noexcept nogil

# Session.lock held. The place of a partition, -1 when it is not there.
cdef int32_t session_place(fetch_session_t *session, const uint8_t *topic, int16_t topic_size, const uint8_t *topic_id,
                           int32_t partition_id) noexcept nogil
# Whether a session may hold a topic of that name: longer than any topic's it would only cost memory.
cdef inline bint may_be_cached(int16_t topic_size) noexcept nogil:
    return topic_size <= MOST_TOPIC_NAME
# Its place, made at the end of the order when it was not there; -1 when memory is out. `may_be_cached` holds for its topic.
cdef int32_t session_add(fetch_session_t *session, const uint8_t *topic, int16_t topic_size, const uint8_t *topic_id,
                         int32_t partition_id) noexcept nogil
cdef void session_drop(fetch_session_t *session, int32_t place) noexcept nogil
cdef void session_move_last(fetch_session_t *session, int32_t place) noexcept nogil

cdef class FetchSessions:
    """The cache of fetch sessions, and what else all fetches of a broker share."""
    cdef session_cache_t *cache
    cdef object endpoint_of      # callable(Connection) -> (node id, host, port, rack or None), or None
