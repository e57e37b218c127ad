"""The partitions that a fetcher follows; the contract is in followed.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.sync cimport (
    atomic_load_i32, atomic_load_i64, condition_broadcast, condition_destroy, condition_init, condition_wait,
    mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker._core.client.pump cimport Engine
from kbroker._core.log.partition cimport partition_ref, partition_t, partition_unref
from kbroker._core.log.partition_state cimport PartitionState

from typing import NamedTuple

KINDS = ("error", "diverging", "append", "start")


class ReplicaTrouble(NamedTuple):
    """Why a partition is not fetched any more, or that its leader's log starts later."""

    topic: str
    partition_id: int
    kind: str                    # "error", "diverging", "append"; with "start" the fetching goes on
    leader_epoch: int            # of the request
    error: int                   # the leader's error code or, for "append", that of the follower's own append
    offset: int                  # that was asked for
    diverging_epoch: int         # -1 unless "diverging"
    diverging_end: int
    log_start_offset: int        # where the leader's log starts; "start" only


class FollowedLag(NamedTuple):
    """How far a partition is behind its leader."""

    topic: str
    partition_id: int
    offset: int                  # that is fetched next
    lag: int                     # records below the leader's high watermark that are missing here; -1: not known
    is_stopped: bool             # it waits until trouble is over


cdef void followed_release(followed_partition_t *p) noexcept nogil:
    p.refs -= 1
    if p.refs == 0:
        partition_unref(p.log)
        free(p)


cdef class FollowedPartitions(Engine):

    def __cinit__(self, *_args, **_keywords):
        mutex_init(&self.lock, NULL)
        condition_init(&self.appended, NULL)

    def __dealloc__(self):
        # No request is under way: the pump answers everything before it releases its engines.
        cdef trouble_t *trouble
        cdef int32_t i
        while self.news != NULL:
            trouble = self.news
            self.news = trouble.next
            followed_release(trouble.partition)
            free(trouble)
        for i in range(self.partition_count):
            followed_release(self.partitions[i])
        free(self.partitions)
        condition_destroy(&self.appended)
        mutex_destroy(&self.lock)

    # --- from Python, any thread --------------------------------------------------------------------------------------

    def follow(self, PartitionState state not None, bytes topic_id not None, int32_t leader_epoch):
        """Fetch a partition from the leader, from the log's end on. It may be followed already, in an older epoch.

        `topic_id`: 16 bytes, all zero if the topic has no id. Returns when no append of an older epoch is under way:
        the caller must not hold a lock that the log waits for.
        """
        cdef followed_partition_t *p
        cdef partition_t *log = state.p
        cdef const char *id_bytes = PyBytes_AS_STRING(topic_id)
        if len(topic_id) != 16:
            raise ValueError(f"a topic id of {len(topic_id)} bytes")
        with nogil:
            mutex_lock(&self.lock)
            p = self.add(log)
            if p != NULL:
                p.refs += 1
                p.wanted = False     # nothing of it is asked until the append of the older epoch is over
                self.await_append(p)
                memcpy(p.topic_id, id_bytes, 16)
                p.has_id = any_set(p)
                p.leader_epoch = leader_epoch
                p.leader_high_watermark = -1
                p.wanted = True
                self.set_going(p, 0)
                followed_release(p)
            mutex_unlock(&self.lock)
        if p == NULL:
            raise MemoryError()
        self.awaken()

    def forget(self, PartitionState state not None):
        """Fetch a partition no more; a no-op if it is not followed. No append is under way on return.

        The caller must not hold a lock that the log waits for.
        """
        cdef followed_partition_t *p
        with nogil:
            mutex_lock(&self.lock)
            p = self.find(state.p)
            if p != NULL:
                p.refs += 1
                p.wanted = False
                self.generations += 1
                p.generation = self.generations
                self.await_append(p)
                followed_release(p)
            mutex_unlock(&self.lock)
        self.awaken()

    def resume(self, PartitionState state not None, int32_t leader_epoch, int64_t after_ms=0):
        """Go on with a partition that trouble has stopped, from the log's end, after a pause of `after_ms`.

        A no-op unless the partition is followed in `leader_epoch`.
        """
        cdef followed_partition_t *p
        with nogil:
            mutex_lock(&self.lock)
            p = self.find(state.p)
            if p != NULL and p.wanted and p.stopped and p.leader_epoch == leader_epoch:
                self.set_going(p, monotonic_ms() + after_ms if after_ms else 0)
            mutex_unlock(&self.lock)
        self.awaken()

    def take_news(self):
        """Return the ReplicaTrouble that came since the last call, oldest first; nothing of what is outdated."""
        cdef trouble_t *taken
        cdef trouble_t *next
        cdef bint valid
        with nogil:
            mutex_lock(&self.lock)
            taken = self.news
            self.news = NULL
            mutex_unlock(&self.lock)
        found = []
        while taken != NULL:
            next = taken.next
            with nogil:
                mutex_lock(&self.lock)
                valid = taken.partition.wanted and taken.partition.generation == taken.generation
                mutex_unlock(&self.lock)
            if valid:
                found.append(ReplicaTrouble(
                    name_of(taken.partition.log), taken.partition.log.partition_id, KINDS[taken.kind],
                    taken.leader_epoch, taken.error, taken.offset, taken.diverging_epoch, taken.diverging_end,
                    taken.log_start_offset,
                ))
            with nogil:
                mutex_lock(&self.lock)
                followed_release(taken.partition)
                mutex_unlock(&self.lock)
            free(taken)
            taken = next
        found.reverse()
        return found

    def lag(self):
        """Return a FollowedLag for each partition that is followed."""
        cdef followed_partition_t *copies
        cdef int32_t count = 0
        cdef int32_t i
        cdef int64_t missing
        with nogil:
            mutex_lock(&self.lock)
            copies = <followed_partition_t *>malloc(
                <size_t>(self.partition_count + 1) * sizeof(followed_partition_t))
            if copies != NULL:
                for i in range(self.partition_count):
                    if self.partitions[i].wanted:
                        copies[count] = self.partitions[i][0]
                        partition_ref(copies[count].log)
                        count += 1
            mutex_unlock(&self.lock)
        if copies == NULL:
            raise MemoryError()
        found = []
        for i in range(count):
            missing = max(copies[i].leader_high_watermark - copies[i].offset, 0)
            found.append(FollowedLag(
                name_of(copies[i].log), copies[i].log.partition_id, copies[i].offset,
                -1 if copies[i].leader_high_watermark < 0 else missing, bool(copies[i].stopped),
            ))
            with nogil:
                partition_unref(copies[i].log)
        free(copies)
        return found

    def awaken(self):
        """Have the engine look again at what is to be fetched."""
        if self.pump is not None:
            with nogil:
                self.pump.wake(self)

    # --- inside, the caller holds the lock ----------------------------------------------------------------------------

    cdef followed_partition_t *find(self, const partition_t *log) noexcept nogil:
        cdef int32_t i
        for i in range(self.partition_count):
            if self.partitions[i].log == log:
                return self.partitions[i]
        return NULL

    cdef followed_partition_t *add(self, partition_t *log) noexcept nogil:
        """Return the partition, new in the list if it was not there. NULL: memory is out."""
        cdef followed_partition_t *p = self.find(log)
        cdef void *grown
        if p != NULL:
            return p
        grown = with_room(self.partitions, self.partition_count, &self.partition_capacity, sizeof(void *))
        if grown == NULL:
            return NULL
        self.partitions = <followed_partition_t **>grown
        p = <followed_partition_t *>calloc(1, sizeof(followed_partition_t))
        if p == NULL:
            return NULL
        partition_ref(log)
        p.log = log
        p.refs = 1
        p.leader_epoch = -1
        p.leader_high_watermark = -1
        self.partitions[self.partition_count] = p
        self.partition_count += 1
        return p

    cdef void set_going(self, followed_partition_t *p, int64_t not_before_ms) noexcept nogil:
        """Let the partition be fetched from the log's end on; what was asked before counts no more."""
        self.generations += 1
        p.generation = self.generations
        p.stopped = False
        p.not_before_ms = not_before_ms
        p.offset = atomic_load_i64(&p.log.log_end_offset)
        p.last_epoch = atomic_load_i32(&p.log.newest_epoch)

    cdef void await_append(self, followed_partition_t *p) noexcept nogil:
        """Return when nothing is appended to the partition, and make what is asked of it outdated."""
        self.generations += 1
        p.generation = self.generations
        while p.appending:
            condition_wait(&self.appended, &self.lock)

    cdef void purge(self) noexcept nogil:
        """Take partitions out of the list that are not wanted and in no fetch session."""
        cdef int32_t kept = 0
        cdef int32_t i
        cdef followed_partition_t *p
        for i in range(self.partition_count):
            p = self.partitions[i]
            if p.wanted or p.in_session or p.appending or p.refs > 1:
                self.partitions[kept] = p
                kept += 1
            else:
                followed_release(p)
        self.partition_count = kept

    cdef void say(self, followed_partition_t *p, const trouble_t *trouble) noexcept nogil:
        """Stop the partition, unless its trouble is none, and tell Python. The pump calls `on_told`."""
        cdef trouble_t *told = <trouble_t *>malloc(sizeof(trouble_t))
        if told == NULL:
            p.not_before_ms = monotonic_ms() + 1000      # nobody can be told: it is asked again
            return
        told[0] = trouble[0]
        p.stopped = p.stopped or trouble.kind != TROUBLE_START
        p.refs += 1
        told.partition = p
        told.generation = p.generation
        told.leader_epoch = p.leader_epoch
        told.next = self.news
        self.news = told
        self.pump.tell(self)


cdef inline bint any_set(const followed_partition_t *p) noexcept nogil:
    cdef int i
    for i in range(16):
        if p.topic_id[i]:
            return True
    return False


cdef str name_of(const partition_t *log):
    return log.topic[:log.topic_size].decode("utf-8", "replace")
