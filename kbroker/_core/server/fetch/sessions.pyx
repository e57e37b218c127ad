"""The cache of fetch sessions (KIP-227); the contract is in sessions.pxd."""

import os

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.seeded_hash cimport seeded_hash
from kbroker._core.base.sync cimport atomic_add_i32, mutex_destroy, mutex_init, mutex_lock, mutex_unlock
from kbroker._core.log.partition cimport partition_unref

cdef enum:
    FIRST_TABLE = 16
    MAX_BUCKETS = 1 << 16
    MAX_SESSION_ID = 0x7ffffffe


cdef int32_t next_epoch(int32_t epoch) noexcept nogil:
    """Return the epoch after `epoch`: 0 starts a session, -1 is no session, and 1 follows the largest int32."""
    if epoch < 0:
        return -1
    return 1 if epoch == 0x7fffffff else epoch + 1

# --- a session's partitions ---------------------------------------------------------------------------

cdef inline uint32_t hash_of(fetch_session_t *session, const uint8_t *topic, int16_t topic_size,
                             const uint8_t *topic_id, int32_t partition_id) noexcept nogil:
    if session.by_id:
        return <uint32_t>seeded_hash(topic_id, 16, <uint32_t>partition_id)
    return <uint32_t>seeded_hash(topic, topic_size, <uint32_t>partition_id)

cdef int32_t find_slot(fetch_session_t *session, const uint8_t *topic, int16_t topic_size, const uint8_t *topic_id,
                       int32_t partition_id, uint32_t h) noexcept nogil:
    """Return the slot of a partition in the table, or the empty slot where it belongs. The table is never full."""
    cdef uint32_t mask = <uint32_t>session.table_size - 1
    cdef uint32_t at = h & mask
    cdef cached_partition_t *cached
    while session.table[at] >= 0:
        cached = &session.cached[session.table[at]]
        if cached.hash == h and cached.partition_id == partition_id:
            if session.by_id:
                if memcmp(cached.topic_id, topic_id, 16) == 0:
                    return <int32_t>at
            elif cached.topic_size == topic_size and memcmp(cached.topic, topic, topic_size) == 0:
                return <int32_t>at
        at = (at + 1) & mask
    return <int32_t>at

cdef int32_t session_place(fetch_session_t *session, const uint8_t *topic, int16_t topic_size, const uint8_t *topic_id,
                           int32_t partition_id) noexcept nogil:
    cdef uint32_t h
    if session.count == 0 or not may_be_cached(topic_size):
        return -1
    h = hash_of(session, topic, topic_size, topic_id, partition_id)
    return session.table[find_slot(session, topic, topic_size, topic_id, partition_id, h)]

cdef bint grow_table(fetch_session_t *session) noexcept nogil:
    """Make room for one more partition; the table stays at most half full. False: memory is out."""
    cdef int32_t size = session.table_size
    cdef int32_t *table
    cdef int32_t place
    cdef uint32_t at
    if session.table != NULL and (session.count + 1) * 2 <= size:
        return True
    size = size * 2 if size else FIRST_TABLE
    table = <int32_t *>malloc(<size_t>size * sizeof(int32_t))
    if table == NULL:
        return False
    memset(table, 0xff, <size_t>size * sizeof(int32_t))
    place = session.first
    while place >= 0:
        at = session.cached[place].hash & <uint32_t>(size - 1)
        while table[at] >= 0:
            at = (at + 1) & <uint32_t>(size - 1)
        table[at] = place
        place = session.cached[place].next
    free(session.table)
    session.table = table
    session.table_size = size
    return True

cdef int32_t take_place(fetch_session_t *session) noexcept nogil:
    cdef int32_t place = session.free_place
    cdef cached_partition_t *grown
    if place >= 0:
        session.free_place = session.cached[place].next
        return place
    grown = <cached_partition_t *>with_room(session.cached, session.used, &session.capacity, sizeof(cached_partition_t))
    if grown == NULL:
        return -1
    session.cached = grown
    place = session.used
    session.used += 1
    return place

cdef void link_last(fetch_session_t *session, int32_t place) noexcept nogil:
    session.cached[place].next = -1
    session.cached[place].previous = session.last
    if session.last >= 0:
        session.cached[session.last].next = place
    else:
        session.first = place
    session.last = place

cdef void unlink_place(fetch_session_t *session, int32_t place) noexcept nogil:
    cdef cached_partition_t *cached = &session.cached[place]
    if cached.previous >= 0:
        session.cached[cached.previous].next = cached.next
    else:
        session.first = cached.next
    if cached.next >= 0:
        session.cached[cached.next].previous = cached.previous
    else:
        session.last = cached.previous

cdef int32_t session_add(fetch_session_t *session, const uint8_t *topic, int16_t topic_size, const uint8_t *topic_id,
                         int32_t partition_id) noexcept nogil:
    cdef uint32_t h = hash_of(session, topic, topic_size, topic_id, partition_id)
    cdef int32_t at
    cdef int32_t place
    cdef cached_partition_t *cached
    if not grow_table(session):
        return -1
    at = find_slot(session, topic, topic_size, topic_id, partition_id, h)
    if session.table[at] >= 0:
        return session.table[at]
    place = take_place(session)
    if place < 0:
        return -1
    cached = &session.cached[place]
    memset(cached, 0, sizeof(cached_partition_t))
    cached.partition_id = partition_id
    cached.hash = h
    cached.leader_epoch = -1
    cached.offset = -1
    cached.last_fetched_epoch = -1
    cached.high_watermark = -1
    cached.log_start_offset = -1
    if session.by_id:
        memcpy(cached.topic_id, topic_id, 16)
    else:
        cached.topic = <uint8_t *>malloc(<size_t>topic_size + 1)
        if cached.topic == NULL:
            cached.next = session.free_place
            session.free_place = place
            return -1
        memcpy(cached.topic, topic, topic_size)
        cached.topic_size = topic_size
    session.table[at] = place
    session.count += 1
    session.shape += 1
    link_last(session, place)
    return place

cdef void release_place(cached_partition_t *cached) noexcept nogil:
    if cached.partition != NULL:
        partition_unref(cached.partition)
        cached.partition = NULL
    free(cached.topic)
    cached.topic = NULL

cdef void session_drop(fetch_session_t *session, int32_t place) noexcept nogil:
    cdef cached_partition_t *cached = &session.cached[place]
    cdef uint32_t mask = <uint32_t>session.table_size - 1
    cdef uint32_t hole
    cdef uint32_t at
    cdef uint32_t home
    hole = cached.hash & mask
    while session.table[hole] != place:
        hole = (hole + 1) & mask
    # Close the hole: a later entry of the run moves back into it unless its home slot is behind the hole.
    at = hole
    while True:
        at = (at + 1) & mask
        if session.table[at] < 0:
            break
        home = session.cached[session.table[at]].hash & mask
        if ((at - home) & mask) >= ((at - hole) & mask):
            session.table[hole] = session.table[at]
            hole = at
    session.table[hole] = -1
    unlink_place(session, place)
    release_place(cached)
    cached.next = session.free_place
    session.free_place = place
    session.count -= 1
    session.shape += 1

cdef void session_move_last(fetch_session_t *session, int32_t place) noexcept nogil:
    if session.last != place:
        unlink_place(session, place)
        link_last(session, place)

# --- sessions -----------------------------------------------------------------------------------------

cdef fetch_session_t *session_new(bint privileged, bint by_id) noexcept nogil:
    cdef fetch_session_t *session = <fetch_session_t *>calloc(1, sizeof(fetch_session_t))
    if session == NULL:
        return NULL
    mutex_init(&session.lock, NULL)
    session.refs = 1
    session.privileged = privileged
    session.by_id = by_id
    session.epoch = 1
    session.free_place = -1
    session.first = -1
    session.last = -1
    return session

cdef void session_unref(fetch_session_t *session) noexcept nogil:
    cdef int32_t place
    if atomic_add_i32(&session.refs, -1) > 0:
        return
    place = session.first
    while place >= 0:
        release_place(&session.cached[place])
        place = session.cached[place].next
    free(session.cached)
    free(session.table)
    mutex_destroy(&session.lock)
    free(session)

# --- the cache ----------------------------------------------------------------------------------------

cdef inline uint32_t bucket_index(const session_cache_t *cache, uint32_t key) noexcept nogil:
    return key * 0x9e3779b1u >> 7 & <uint32_t>(cache.bucket_count - 1)

cdef inline fetch_session_t **bucket_of(session_cache_t *cache, int32_t session_id) noexcept nogil:
    return &cache.buckets[bucket_index(cache, <uint32_t>session_id)]

cdef fetch_session_t *find_locked(session_cache_t *cache, int32_t session_id) noexcept nogil:
    cdef fetch_session_t *session = bucket_of(cache, session_id)[0]
    while session != NULL and session.id != session_id:
        session = session.id_next
    return session

cdef fetch_session_t *session_find(session_cache_t *cache, int32_t session_id) noexcept nogil:
    cdef fetch_session_t *session
    mutex_lock(&cache.lock)
    session = find_locked(cache, session_id)
    if session != NULL:
        atomic_add_i32(&session.refs, 1)
    mutex_unlock(&cache.lock)
    return session

cdef session_host_t *host_locked(session_cache_t *cache, int64_t host) noexcept nogil:
    """Return the entry of a host, which is made if it has none. NULL: memory is out."""
    cdef session_host_t **bucket = &cache.hosts[bucket_index(cache, <uint32_t>host)]
    cdef session_host_t *found = bucket[0]
    while found != NULL and found.host != host:
        found = found.next
    if found == NULL:
        found = <session_host_t *>calloc(1, sizeof(session_host_t))
        if found != NULL:
            found.host = host
            found.next = bucket[0]
            bucket[0] = found
    return found

cdef void charge_locked(session_cache_t *cache, session_host_t *host, int32_t sessions,
                        int32_t partitions) noexcept nogil:
    """Count what a host's sessions take more, or less, of the cache. Its entry goes with its last session."""
    cdef session_host_t **link
    host.sessions += sessions
    host.partitions += partitions
    cache.count += sessions
    cache.partition_count += partitions
    if host.sessions > (cache.slots + 1) // 2:
        cache.slots_host = host
    elif cache.slots_host == host:
        cache.slots_host = NULL
    if host.partitions > (cache.most_partitions + 1) // 2:
        cache.partitions_host = host
    elif cache.partitions_host == host:
        cache.partitions_host = NULL
    if host.sessions == 0:
        link = &cache.hosts[bucket_index(cache, <uint32_t>host.host)]
        while link[0] != host:
            link = &link[0].next
        link[0] = host.next
        free(host)

cdef void unlist_locked(session_cache_t *cache, fetch_session_t *session) noexcept nogil:
    """Take a session out of the cache (cache lock held). The caller gets the cache's reference."""
    cdef fetch_session_t **link = bucket_of(cache, session.id)
    while link[0] != session:
        link = &link[0].id_next
    link[0] = session.id_next
    session.id_next = NULL
    session.listed = False
    charge_locked(cache, session.host, -1, -session.listed_size)
    session.host = NULL

cdef void session_remove(session_cache_t *cache, int32_t session_id) noexcept nogil:
    cdef fetch_session_t *session
    mutex_lock(&cache.lock)
    session = find_locked(cache, session_id)
    if session != NULL:
        unlist_locked(cache, session)
    mutex_unlock(&cache.lock)
    if session != NULL:
        session_unref(session)

cdef inline int compare_value(bint privileged_a, int32_t size_a, int32_t id_a,
                              bint privileged_b, int32_t size_b, int32_t id_b) noexcept nogil:
    """Compare the worth of two sessions (-1, 0, 1); the lesser one is evicted first.

    Unprivileged is less than privileged, then fewer partitions, then the lower id.
    """
    if privileged_a != privileged_b:
        return -1 if privileged_b else 1
    if size_a != size_b:
        return -1 if size_a < size_b else 1
    if id_a != id_b:
        return -1 if id_a < id_b else 1
    return 0

cdef inline bint was_silent_longer(const fetch_session_t *session, const fetch_session_t *than) noexcept nogil:
    if than == NULL or session.last_used_ms != than.last_used_ms:
        return than == NULL or session.last_used_ms < than.last_used_ms
    return session.id < than.id

cdef fetch_session_t *evict_locked(session_cache_t *cache, const fetch_session_t *new_one, int64_t host,
                                   int64_t now_ms) noexcept nogil:
    """Evict a session to make room for one of `host` (cache lock held). Return it, with the cache's reference, or NULL.

    As in KIP-227, a new session replaces one that was not used for min_eviction_ms, else one that is worth less than
    itself and was in use for longer than min_eviction_ms; a follower's session also replaces a younger one of a
    consumer. Among sessions in use, a host that has more than half of the cache replaces only its own, and other hosts
    replace that host's: consumers' sessions first, the longest silent one first. `new_one` NULL: there is no room for
    partitions; then only a session that was not used for min_eviction_ms may go, or one of the host that has more than
    half.

    It searches the whole table once, which happens only when the cache is full.
    """
    cdef session_host_t *greedy = cache.partitions_host if new_one == NULL else cache.slots_host
    cdef bint is_own = greedy != NULL and greedy.host == host
    cdef fetch_session_t *session
    cdef fetch_session_t *stalest = NULL
    cdef fetch_session_t *cheapest = NULL
    cdef fetch_session_t *excess = NULL
    cdef int32_t bucket
    cdef bint settled
    for bucket in range(cache.bucket_count):
        session = cache.buckets[bucket]
        while session != NULL:
            if was_silent_longer(session, stalest):
                stalest = session
            if greedy == session.host and not is_own and (
                    excess == NULL or session.privileged < excess.privileged
                    or (session.privileged == excess.privileged and was_silent_longer(session, excess))):
                excess = session
            settled = session.last_used_ms - session.created_ms > cache.min_eviction_ms
            if (not is_own or session.host == greedy) and (
                    settled or (new_one != NULL and new_one.privileged and not session.privileged)):
                if cheapest == NULL or compare_value(session.privileged, session.listed_size, session.id,
                                                     cheapest.privileged, cheapest.listed_size, cheapest.id) < 0:
                    cheapest = session
            session = session.id_next
    if stalest == NULL:
        return NULL
    if now_ms - stalest.last_used_ms <= cache.min_eviction_ms:
        if excess == NULL and (new_one == NULL or cheapest == NULL or compare_value(
                new_one.privileged, new_one.count, 0, cheapest.privileged, cheapest.listed_size, cheapest.id) < 0):
            return NULL
        stalest = excess if excess != NULL else cheapest
    unlist_locked(cache, stalest)
    cache.evictions += 1
    return stalest

cdef inline int32_t random_id(session_cache_t *cache) noexcept nogil:
    cdef uint64_t x = cache.random
    x ^= x << 13
    x ^= x >> 7
    x ^= x << 17
    cache.random = x
    return <int32_t>((x >> 24) % MAX_SESSION_ID) + 1

cdef inline int64_t clock_of(session_cache_t *cache, int64_t now_ms) noexcept nogil:
    return cache.set_ms if cache.set_ms >= 0 else now_ms

cdef bint make_room_locked(session_cache_t *cache, int32_t more, int64_t host, fetch_session_t **evicted,
                           int64_t now_ms) noexcept nogil:
    """Make room in the cache for `more` partitions, by evicting sessions. False: there is no room.

    Evicted sessions are put in front of the list `evicted`; the caller drops them.
    """
    cdef fetch_session_t *gone
    while cache.partition_count + more > cache.most_partitions:
        gone = evict_locked(cache, NULL, host, now_ms)
        if gone == NULL:
            return False
        gone.id_next = evicted[0]
        evicted[0] = gone
    return True

cdef void let_go(fetch_session_t *evicted) noexcept nogil:
    cdef fetch_session_t *gone
    while evicted != NULL:
        gone = evicted
        evicted = gone.id_next
        session_unref(gone)

cdef int32_t session_list(session_cache_t *cache, fetch_session_t *session, int64_t owner, int64_t host,
                          int64_t now_ms) noexcept nogil:
    cdef fetch_session_t *evicted = NULL
    cdef fetch_session_t **bucket
    cdef session_host_t *made_by
    cdef int32_t session_id = 0
    mutex_lock(&cache.lock)
    now_ms = clock_of(cache, now_ms)
    if make_room_locked(cache, session.count, host, &evicted, now_ms):
        if cache.count >= cache.slots:
            evicted = evict_locked(cache, session, host, now_ms)
        made_by = host_locked(cache, host) if cache.count < cache.slots else NULL
        if made_by != NULL:
            session_id = random_id(cache)
            while find_locked(cache, session_id) != NULL:
                session_id = random_id(cache)
            session.id = session_id
            session.created_ms = now_ms
            session.last_used_ms = now_ms
            session.owner = owner
            session.host = made_by
            session.listed_size = session.count
            session.listed = True
            bucket = bucket_of(cache, session_id)
            session.id_next = bucket[0]
            bucket[0] = session
            charge_locked(cache, made_by, 1, session.count)
    mutex_unlock(&cache.lock)
    let_go(evicted)
    return session_id

cdef void session_touch(session_cache_t *cache, fetch_session_t *session, int64_t owner, int64_t now_ms) noexcept nogil:
    mutex_lock(&cache.lock)
    session.last_used_ms = clock_of(cache, now_ms)
    session.owner = owner
    mutex_unlock(&cache.lock)

cdef bint session_resize(session_cache_t *cache, fetch_session_t *session, int64_t now_ms) noexcept nogil:
    cdef fetch_session_t *evicted = NULL
    cdef bint fits = True
    mutex_lock(&cache.lock)
    if session.listed:
        session.last_used_ms = clock_of(cache, now_ms)       # so that it does not evict itself
        fits = make_room_locked(cache, session.count - session.listed_size, session.host.host, &evicted,
                                session.last_used_ms)
        if fits:
            charge_locked(cache, session.host, 0, session.count - session.listed_size)
            session.listed_size = session.count
    mutex_unlock(&cache.lock)
    let_go(evicted)
    return fits

cdef void sessions_abandon(session_cache_t *cache, int64_t owner) noexcept nogil:
    cdef fetch_session_t *session
    cdef int32_t bucket
    mutex_lock(&cache.lock)
    for bucket in range(cache.bucket_count):
        session = cache.buckets[bucket]
        while session != NULL:
            if session.owner == owner:
                session.last_used_ms = ABANDONED
            session = session.id_next
    mutex_unlock(&cache.lock)


cdef class FetchSessions:

    def __cinit__(self, int slots=1000, long long min_eviction_ms=120_000, int fetch_max_bytes=55 * 1024 * 1024,
                  leader_of=None, read_replica_of=None, str rack=None, Throttle throttle=None):
        """Make an empty cache with `slots` sessions (max.incremental.fetch.session.cache.slots).

        `leader_of(connection, topic, topic_id, partition_id)`, with either topic or topic_id None, returns a Leader:
        who leads the partition, and how the peer of the connection reaches it; None: it is not known. Without it,
        clients of another leader are not told the leader.
        `read_replica_of(connection, topic, partition_id, rack, offset)` returns the node that a consumer in that rack
        is to fetch from instead of this broker, which is the leader and in `rack`; -1: from this broker (KIP-392).
        Without it, everybody fetches from the leader.
        `throttle` limits what followers get that are not in sync, of the partitions whose options say so (KIP-73).
        """
        cdef session_cache_t *cache = <session_cache_t *>calloc(1, sizeof(session_cache_t))
        if cache == NULL:
            raise MemoryError
        self.cache = cache
        self.leader_of = leader_of
        self.read_replica_of = read_replica_of
        self.throttle = throttle
        cache.throttle = NULL if throttle is None else &throttle.t
        self.rack_name = rack.encode() if rack is not None else b""
        cache.rack = PyBytes_AS_STRING(self.rack_name)
        cache.rack_size = <int32_t>len(self.rack_name)
        cache.redirects = read_replica_of is not None
        mutex_init(&cache.lock, NULL)
        cache.slots = slots
        cache.min_eviction_ms = min_eviction_ms
        cache.fetch_max_bytes = fetch_max_bytes
        cache.most_partitions = <int64_t>SLOT_PARTITIONS * max(slots, SESSION_PARTITIONS // SLOT_PARTITIONS)
        cache.set_ms = -1
        cache.random = int.from_bytes(os.urandom(8), "big") | 1
        cache.bucket_count = 64
        while cache.bucket_count < slots and cache.bucket_count < MAX_BUCKETS:
            cache.bucket_count *= 2
        cache.buckets = <fetch_session_t **>calloc(<size_t>cache.bucket_count, sizeof(fetch_session_t *))
        cache.hosts = <session_host_t **>calloc(<size_t>cache.bucket_count, sizeof(session_host_t *))
        if cache.buckets == NULL or cache.hosts == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef fetch_session_t *session
        cdef session_host_t *host
        cdef int32_t bucket
        if self.cache == NULL:
            return
        if self.cache.hosts != NULL:
            for bucket in range(self.cache.bucket_count):
                while self.cache.hosts[bucket] != NULL:
                    host = self.cache.hosts[bucket]
                    self.cache.hosts[bucket] = host.next
                    free(host)
            free(self.cache.hosts)
        if self.cache.buckets != NULL:
            for bucket in range(self.cache.bucket_count):
                while self.cache.buckets[bucket] != NULL:
                    session = self.cache.buckets[bucket]
                    self.cache.buckets[bucket] = session.id_next
                    session_unref(session)
            free(self.cache.buckets)
        mutex_destroy(&self.cache.lock)
        free(self.cache)

    def counts(self):
        """Return (sessions, partitions in all sessions, evictions so far)."""
        cdef int32_t count
        cdef int64_t partition_count
        cdef int64_t evictions
        with nogil:
            mutex_lock(&self.cache.lock)
            count = self.cache.count
            partition_count = self.cache.partition_count
            evictions = self.cache.evictions
            mutex_unlock(&self.cache.lock)
        return count, partition_count, evictions

    @property
    def longest_search(self):
        """The number of slots that a search in any session looks at in the worst case.

        Read it only while no fetch is served.
        """
        cdef fetch_session_t *session
        cdef int32_t bucket
        cdef int32_t at
        cdef int32_t longest = 0
        for bucket in range(self.cache.bucket_count):
            session = self.cache.buckets[bucket]
            while session != NULL:
                for at in range(session.table_size):
                    if session.table[at] >= 0:
                        longest = max(longest, 1 + (
                            (at - <int32_t>session.cached[session.table[at]].hash) & (session.table_size - 1)))
                session = session.id_next
        return longest

    def set_clock_ms(self, long long now_ms):
        """Set the clock of the cache to a fixed time. For tests."""
        with nogil:
            mutex_lock(&self.cache.lock)
            self.cache.set_ms = now_ms
            mutex_unlock(&self.cache.lock)
