"""Fetch sessions (KIP-227): the partitions that an incremental fetch asks for without naming them, for all processors.

`fetch_session_t` is reference-counted. The cache holds one reference and each fetch of the session another, so eviction
does not free a session that is in use.

Locks. A session's `lock` guards its partitions and epoch; it is held while a fetch of the session is looked at and
answered. The cache's `lock` guards the table and the fields that eviction decides by. Order: session, cache; session,
partition table, partition. No other lock is taken under the cache's.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._core.base.sync cimport mutex_t
from kbroker._core.base.throttle cimport Throttle, throttle_t
from kbroker._core.log.partition cimport partition_t
from kbroker._core.log.partition_table cimport MOST_TOPIC_NAME

cdef enum:
    SESSION_PARTITIONS = 10000   # limit of one session: a request of some sixty bytes makes the broker look at them all
    SLOT_PARTITIONS = 100        # limit of all sessions together, for each slot of the cache
    ABANDONED = -(1LL << 60)     # fetch_session_t.last_used_ms: the connection is closed, so evict it first

ctypedef struct cached_partition_t:
    # A partition of a session: what the client asked for last, and what it was answered last.
    partition_t *partition       # a reference; NULL while it is not known: each fetch looks it up again
    uint8_t *topic               # owned; its name; NULL in a session by topic id
    uint8_t topic_id[16]
    int16_t topic_size
    int8_t id_known              # its topic id was known once; if it is not any more, the partition is unknown
    int32_t partition_id
    int32_t max_bytes
    int32_t leader_epoch
    int64_t offset
    int32_t last_fetched_epoch   # -1: not given
    int64_t follower_start       # a follower's log start offset
    int64_t high_watermark       # as answered; -1 after an error, so that the next answer names the partition
    int64_t log_start_offset
    uint32_t hash                # of topic and partition
    int32_t next                 # order of answering, by place, -1 at the end; in a free place: the next free place
    int32_t previous

ctypedef struct session_host_t:
    # What a host's sessions take of the cache. Guarded by the cache's lock; it exists while the host has a session.
    int64_t host                 # token of its connections
    int32_t sessions
    int64_t partitions
    session_host_t *next         # in the chain of session_cache_t.hosts

ctypedef struct fetch_session_t:
    # A place is an index in `cached`.
    int32_t refs                 # atomic
    mutex_t lock
    int32_t id                   # constant, as are the next three fields
    int8_t privileged            # it is of a follower
    int8_t by_id                 # its topics are named by id: it was made by version 13 or later
    int64_t created_ms
    int32_t epoch                # that the next request must have
    uint32_t shape               # changes whenever a partition is added or removed
    cached_partition_t *cached
    int32_t capacity             # places allocated
    int32_t count                # partitions
    int32_t used                 # places from here on were never used
    int32_t free_place           # the first free place, -1: none
    int32_t first                # the place that is answered first, -1: none
    int32_t last                 # the place that is answered last
    int32_t *table               # owned; open addressing: places, -1: empty
    int32_t table_size           # a power of two
    # Guarded by the cache's lock:
    int8_t listed                # it is in the cache
    int32_t listed_size          # partitions that the cache counts for it
    int64_t last_used_ms         # monotonic, or ABANDONED
    int64_t owner                # id of the connection that used it last
    session_host_t *host         # of the connection that made it; NULL while it is not listed
    fetch_session_t *id_next     # in the chain of the cache's table

ctypedef struct session_cache_t:
    mutex_t lock
    int32_t slots                # max.incremental.fetch.session.cache.slots
    int64_t min_eviction_ms
    int32_t fetch_max_bytes      # fetch.max.bytes
    int32_t redirects            # 1: consumers of other racks may be sent to other replicas (KIP-392)
    int32_t rack_size
    const char *rack             # of this broker; borrowed from FetchSessions
    int32_t count                # sessions
    int64_t partition_count      # partitions in all sessions
    int64_t most_partitions      # the limit of partition_count
    int64_t evictions
    uint64_t random              # state of the generator of ids
    throttle_t *throttle         # of what followers get that are not in sync; borrowed from FetchSessions; NULL: none
    int64_t set_ms               # a clock set by hand (tests), -1: the caller's time is used
    session_host_t *slots_host   # the host that has more than half of the slots; NULL: none
    session_host_t *partitions_host # the host that has more than half of most_partitions; NULL: none
    int32_t bucket_count         # of each of the two tables, a power of two
    fetch_session_t **buckets    # sessions by id
    session_host_t **hosts

# A reference that the caller owns, or NULL.
cdef fetch_session_t *session_find(session_cache_t *cache, int32_t session_id) noexcept nogil
cdef void session_unref(fetch_session_t *session) noexcept nogil
# Remove a session from the cache by id; no-op when it is not there.
cdef void session_remove(session_cache_t *cache, int32_t session_id) noexcept nogil
# Make an empty session that is not in the cache and has no id yet; NULL when memory is out.
cdef fetch_session_t *session_new(bint privileged, bint by_id) noexcept nogil
# Put a session into the cache, which takes over the caller's reference, and return its id. If the cache is full,
# another session is evicted. KIP-227 says which, with one exception: while one host has more than half of the cache,
# its new sessions replace only its own, and those of other hosts may replace its sessions even in use. 0: nothing
# could be evicted, and the caller keeps the only reference.
cdef int32_t session_list(session_cache_t *cache, fetch_session_t *session, int64_t owner, int64_t host,
                          int64_t now_ms) noexcept nogil
# Note that a connection (`owner`) has used the session.
cdef void session_touch(session_cache_t *cache, fetch_session_t *session, int64_t owner, int64_t now_ms) noexcept nogil
# Count the partitions that the session has now (its lock held). False: the cache has no room for them, so the session
# has to end.
cdef bint session_resize(session_cache_t *cache, fetch_session_t *session, int64_t now_ms) noexcept nogil
# A connection is closed: its sessions are evicted first from now on.
cdef void sessions_abandon(session_cache_t *cache, int64_t owner) noexcept nogil
# The epoch that follows `epoch` in a session; -1 after a negative one.
cdef int32_t next_epoch(int32_t epoch) noexcept nogil

# The functions from here on need the session's lock. The place of a partition, -1 when the session does not have it.
cdef int32_t session_place(fetch_session_t *session, const uint8_t *topic, int16_t topic_size, const uint8_t *topic_id,
                           int32_t partition_id) noexcept nogil
# Whether a session may hold a topic with a name of this size (bytes). No topic has a longer name than MOST_TOPIC_NAME.
cdef inline bint may_be_cached(int16_t topic_size) noexcept nogil:
    return topic_size <= MOST_TOPIC_NAME
# The place of a partition, which is added at the end of the order when it is new; -1 when memory is out. The caller has
# checked `may_be_cached`.
cdef int32_t session_add(fetch_session_t *session, const uint8_t *topic, int16_t topic_size, const uint8_t *topic_id,
                         int32_t partition_id) noexcept nogil
cdef void session_drop(fetch_session_t *session, int32_t place) noexcept nogil
cdef void session_move_last(fetch_session_t *session, int32_t place) noexcept nogil

cdef class FetchSessions:
    """The cache of fetch sessions, and the settings that all fetches of a broker share."""
    cdef session_cache_t *cache
    cdef object leader_of        # callable, or None
    cdef object read_replica_of  # callable, or None
    cdef bytes rack_name
    cdef Throttle throttle       # or None
