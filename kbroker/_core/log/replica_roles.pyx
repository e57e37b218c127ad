"""What this broker is for a partition, and what a leader knows of the other replicas.

A change of the role happens between two appends, under both locks. Acks that wait for replicas get
NOT_LEADER_OR_FOLLOWER when the role of a leader ends; waiting fetches look again after each change.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.sync cimport *
from kbroker._core.log.acks cimport acks_fail
from kbroker._core.log.partition cimport *
from kbroker._core.log.replicas cimport (
    fetch_position_t, find_follower, low_watermark, low_watermark_moved, low_waiters_fail, replicas_advance,
    replicas_know_no_more, replicas_serve,
)
from kbroker._core.wire.error_codes cimport NOT_LEADER_OR_FOLLOWER

from typing import NamedTuple

ctypedef struct nodes_t:
    # Node ids that Python has given.
    int32_t *ids                 # owned
    int32_t count

ROLES = ("alone", "leader", "follower", "stopped")


class FollowerState(NamedTuple):
    """What a leader knows of another replica. Times are monotonic, in ms; 0: never."""

    node_id: int
    broker_epoch: int            # of its newest fetch, or as the metadata had it; -1: not known
    log_end_offset: int          # -1: not known
    log_start_offset: int        # -1: not known
    last_caught_up_ms: int       # when it had last all that the leader had
    in_sync: bool                # in the committed ISR


cdef class ReplicaRoles(SegmentIndexes):
    """The role of a partition's replica on this broker. Every method may be called from any thread."""

    @property
    def role(self):
        """One of "alone", "leader", "follower", "stopped". Nothing is served of a partition that is stopped."""
        return ROLES[atomic_load_i32(&self.p.role)]

    cdef int64_t begin(self, int32_t role, int32_t leader_epoch) noexcept nogil:
        """Take a role other than the leader's, in this leader epoch. Returns the log end offset."""
        cdef partition_t *p = self.p
        cdef int64_t end
        mutex_lock(&p.append_lock)
        mutex_lock(&p.lock)
        end = p.log_end_offset
        atomic_store_i32(&p.leader_epoch, leader_epoch)
        p.led_since = leader_epoch
        if p.role != role:
            forget_followers(p)
            atomic_store_i32(&p.role, role)
            if role == ROLE_ALONE:
                p.ended_count = 0
                atomic_store_i64(&p.high_watermark, end)
                settle_last_stable(p)
            look_again(p)
        mutex_unlock(&p.lock)
        mutex_unlock(&p.append_lock)
        return end

    def become_alone(self, int32_t leader_epoch):
        """Lead without followers: all that is appended is committed. Return the log end offset.

        Batches are stamped with `leader_epoch` from the next append on, which is at that offset.
        """
        cdef int64_t end
        with nogil:
            end = self.begin(ROLE_ALONE, leader_epoch)
        return end

    def become_leader(self, int32_t leader_epoch, followers, in_sync, int64_t now_ms):
        """Lead in `leader_epoch`. Return the log end offset, where the epoch begins if the log does not have it yet.

        `followers`: the broker epochs (-1: unknown) of the other replicas by node id. `in_sync`: the node ids of the
        committed ISR. A leader that stays one in the next epoch keeps what it knows of its followers, and acks go on
        waiting. They also do in a later epoch, but of its followers the leader knows nothing: another one may have led
        in between, and have had them cut their logs.
        """
        cdef partition_t *p = self.p
        cdef int32_t count = <int32_t>len(followers)
        cdef follower_t *fresh = <follower_t *>calloc(<size_t>count + 1, sizeof(follower_t))
        cdef follower_t *known
        cdef follower_t *f
        cdef epoch_t *epochs = NULL
        cdef int64_t end = 0
        cdef int32_t i = 0
        cdef bint is_new
        cdef bint is_next
        if fresh == NULL:
            raise MemoryError
        try:
            members = frozenset(in_sync)
            for node_id, broker_epoch in followers.items():
                fresh[i].node_id = node_id
                fresh[i].broker_epoch = broker_epoch
                fresh[i].in_sync = fresh[i].counts = fresh[i].live = node_id in members
                fresh[i].log_end_offset = fresh[i].log_start_offset = -1
                fresh[i].last_fetch_leader_end = -1
                fresh[i].last_caught_up_ms = now_ms if node_id in members else 0
                i += 1
        except BaseException:
            free(fresh)
            raise
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            is_new = p.role != ROLE_LEADER
            is_next = leader_epoch - 1 <= p.leader_epoch
            end = p.log_end_offset
            if is_new or leader_epoch != p.leader_epoch:
                epochs = <epoch_t *>malloc(<size_t>(p.epoch_count + 1) * sizeof(epoch_t))
            if epochs != NULL:
                begin_epoch(p, epochs, leader_epoch, end)
            if not is_new:
                for i in range(count):
                    f = &fresh[i]
                    known = find_follower(p, f.node_id)
                    if known == NULL:
                        continue
                    if not f.in_sync or not is_next or f.broker_epoch > known.broker_epoch >= 0:
                        # What it has now is known when it fetches: it may have come back with an emptied disk.
                        f.live = f.live or known.live
                        continue
                    f.live = f.live or known.live
                    f.broker_epoch = max(f.broker_epoch, known.broker_epoch)
                    f.log_end_offset = known.log_end_offset
                    f.log_start_offset = known.log_start_offset
                    f.last_fetch_leader_end = end
                    f.last_fetch_ms = now_ms if f.in_sync else 0
            forget_followers(p)
            p.followers = fresh
            atomic_store_i32(&p.follower_count, count)
            for i in range(count):
                p.in_sync_count += fresh[i].in_sync
            p.in_sync_count += 1
            p.maximal_count = p.in_sync_count
            if is_new or leader_epoch != p.leader_epoch:
                p.epoch_start_offset = end
            atomic_store_i32(&p.leader_epoch, leader_epoch)
            if is_new:
                p.led_since = leader_epoch
                atomic_store_i32(&p.role, ROLE_LEADER)
                look_again(p)
            replicas_advance(p, replica_clock(p, now_ms))
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
        return end

    def become_follower(self, int32_t leader_epoch):
        """Follow the leader of this epoch: appends come from it alone."""
        with nogil:
            self.begin(ROLE_FOLLOWER, leader_epoch)

    def become_stopped(self, int32_t leader_epoch=-1):
        """Serve nothing until another role is taken: the controller has not told yet, or has stopped this replica."""
        with nogil:
            self.begin(ROLE_STOPPED, leader_epoch)

    def set_in_sync(self, committed, maximal):
        """Set a leader's ISR: as the controller has committed it, and with those that it is asked to let in.

        Both are node ids. The high watermark moves if it can. No-op unless this broker leads.
        """
        cdef partition_t *p = self.p
        cdef nodes_t in_sync = nodes_of(committed)
        cdef nodes_t counting = nodes_of(maximal)
        cdef follower_t *f
        cdef int32_t in_sync_count = 1
        cdef int32_t maximal_count = 1
        cdef int32_t i
        with nogil:
            mutex_lock(&p.lock)
            if p.role == ROLE_LEADER:
                for i in range(p.follower_count):
                    f = &p.followers[i]
                    f.in_sync = has_node(&in_sync, f.node_id)
                    f.counts = f.in_sync or has_node(&counting, f.node_id)
                    in_sync_count += f.in_sync
                    maximal_count += f.counts
                p.maximal_count = maximal_count
                atomic_store_i32(&p.in_sync_count, in_sync_count)
                replicas_advance(p, replica_clock(p, monotonic_ms()))
            mutex_unlock(&p.lock)
        free(in_sync.ids)
        free(counting.ids)

    def set_live(self, node_ids):
        """Set which brokers are alive by the metadata: only such a follower may be let into the ISR."""
        cdef partition_t *p = self.p
        cdef nodes_t live = nodes_of(node_ids)
        cdef int32_t i
        with nogil:
            mutex_lock(&p.lock)
            if p.role == ROLE_LEADER:
                for i in range(p.follower_count):
                    p.followers[i].live = has_node(&live, p.followers[i].node_id)
                if p.low_waiters != NULL:
                    low_watermark_moved(p)
                replicas_advance(p, replica_clock(p, monotonic_ms()))
            mutex_unlock(&p.lock)
        free(live.ids)

    def followers(self):
        """Return a FollowerState for each other replica; empty unless this broker leads."""
        cdef partition_t *p = self.p
        cdef follower_t *copy
        cdef int32_t count
        cdef int32_t i
        with nogil:
            mutex_lock(&p.lock)
            count = p.follower_count
            copy = <follower_t *>malloc(<size_t>(count + 1) * sizeof(follower_t))
            if copy != NULL and count:
                memcpy(copy, p.followers, <size_t>count * sizeof(follower_t))
            mutex_unlock(&p.lock)
        if copy == NULL:
            raise MemoryError
        found = []
        for i in range(count):
            found.append(FollowerState(
                copy[i].node_id, copy[i].broker_epoch, copy[i].log_end_offset, copy[i].log_start_offset,
                copy[i].last_caught_up_ms, bool(copy[i].in_sync),
            ))
        free(copy)
        return found

    def take_ready(self):
        """Return the node ids of followers whose fetches were news since the last call: they may be let in.

        None of them is there for a fetch that came before: a follower that has lost its disk meanwhile is not ready.
        """
        cdef partition_t *p = self.p
        cdef int32_t *taken
        cdef int32_t count = 0
        cdef int32_t i
        with nogil:
            mutex_lock(&p.lock)
            taken = <int32_t *>malloc(<size_t>(p.follower_count + 1) * sizeof(int32_t))
            if taken != NULL:
                for i in range(p.follower_count):
                    if p.followers[i].ready:
                        p.followers[i].ready = False
                        taken[count] = p.followers[i].node_id
                        count += 1
            mutex_unlock(&p.lock)
        if taken == NULL:
            raise MemoryError
        ready = [taken[i] for i in range(count)]
        free(taken)
        return ready

    def know_no_more(self):
        """Return the error code for a client that knows of records beyond this leader's log end.

        OFFSET_OUT_OF_RANGE, or NOT_LEADER_OR_FOLLOWER while it is not known whether another broker leads.
        """
        cdef int code
        with nogil:
            code = replicas_know_no_more(self.p, monotonic_ms())
        return code

    def take_lead_doubt(self):
        """Return whether a client was answered since the last call that another broker may lead."""
        cdef partition_t *p = self.p
        cdef bint doubted
        with nogil:
            mutex_lock(&p.lock)
            doubted = p.lead_doubted and p.role == ROLE_LEADER
            p.lead_doubted = False
            mutex_unlock(&p.lock)
        return doubted

    def lead_is_checked(self, int32_t leader_epoch, int64_t began_ms):
        """Note that no other replica led in or after this epoch of the own lead, by a check that began at that time.

        `began_ms` is monotonic. No-op unless this broker leads in this epoch.
        """
        cdef partition_t *p = self.p
        with nogil:
            mutex_lock(&p.lock)
            if p.role == ROLE_LEADER and p.leader_epoch == leader_epoch:
                p.lead_checked_ms = began_ms
            mutex_unlock(&p.lock)

    def follower_fetched(self, int32_t node_id, int64_t broker_epoch, int64_t offset, int64_t log_start_offset,
                         int64_t now_ms):
        """Do what `serve_follower` does for a follower that names no epoch. Return the error code."""
        return self.serve_follower(node_id, broker_epoch, offset, -1, log_start_offset, now_ms)[0]

    def serve_follower(self, int32_t node_id, int64_t broker_epoch, int64_t offset, int32_t last_fetched_epoch,
                       int64_t log_start_offset, int64_t now_ms):
        """Do what the compiled Fetch does for a follower before it reads: check its position, and note the fetch.

        `now_ms` is monotonic. Return the error code, and the diverging epoch with its end; (-1, -1) where nothing
        diverges (KIP-595).
        """
        cdef partition_t *p = self.p
        cdef fetch_position_t at
        cdef int code
        at.offset = offset
        at.last_fetched_epoch = last_fetched_epoch
        at.diverging_epoch = at.diverging_end = -1
        with nogil:
            code = replicas_serve(p, node_id, broker_epoch, &at, log_start_offset, now_ms, True)
        return code, (at.diverging_epoch, at.diverging_end)

    @property
    def low_watermark(self):
        """The smallest log start offset of the live replicas, this one included."""
        cdef partition_t *p = self.p
        cdef int64_t offset
        with nogil:
            mutex_lock(&p.lock)
            offset = low_watermark(p)
            mutex_unlock(&p.lock)
        return offset

    @property
    def led_since(self):
        """The leader epoch in which this broker became the leader; later epochs in which it stays one do not count."""
        cdef partition_t *p = self.p
        cdef int32_t epoch
        with nogil:
            mutex_lock(&p.lock)
            epoch = p.led_since
            mutex_unlock(&p.lock)
        return epoch

    @property
    def epoch_start_offset(self):
        """The log end offset at which the epoch of this leader began."""
        cdef partition_t *p = self.p
        cdef int64_t offset
        with nogil:
            mutex_lock(&p.lock)
            offset = p.epoch_start_offset
            mutex_unlock(&p.lock)
        return offset

    def set_epochs(self, entries):
        """Take over the leader epochs of the log: (epoch, start offset), ascending."""
        cdef partition_t *p = self.p
        cdef int32_t count = <int32_t>len(entries)
        cdef epoch_t *fresh = <epoch_t *>malloc(<size_t>(count + 1) * sizeof(epoch_t))
        cdef epoch_t *old
        cdef int32_t i
        if fresh == NULL:
            raise MemoryError
        try:
            for i, (epoch, start_offset) in enumerate(entries):
                fresh[i].epoch = epoch
                fresh[i].start_offset = start_offset
        except BaseException:
            free(fresh)
            raise
        with nogil:
            mutex_lock(&p.lock)
            old = p.epochs
            p.epochs = fresh
            p.epoch_count = count
            atomic_store_i32(&p.newest_epoch, fresh[count - 1].epoch if count else -1)
            mutex_unlock(&p.lock)
        free(old)


cdef nodes_t nodes_of(given) except *:
    cdef nodes_t nodes
    cdef list ids = list(given)
    cdef int32_t i
    nodes.count = <int32_t>len(ids)
    nodes.ids = <int32_t *>malloc(<size_t>(nodes.count + 1) * sizeof(int32_t))
    if nodes.ids == NULL:
        raise MemoryError
    try:
        for i in range(nodes.count):
            nodes.ids[i] = ids[i]
    except BaseException:
        free(nodes.ids)
        raise
    return nodes


cdef bint has_node(const nodes_t *nodes, int32_t node_id) noexcept nogil:
    cdef int32_t i
    for i in range(nodes.count):
        if nodes.ids[i] == node_id:
            return True
    return False


cdef void forget_followers(partition_t *p) noexcept nogil:
    free(p.followers)
    p.followers = NULL
    atomic_store_i32(&p.follower_count, 0)
    atomic_store_i32(&p.in_sync_count, 0)
    p.maximal_count = 0
    p.lead_doubted = False
    p.lead_checked_ms = 0


cdef void look_again(partition_t *p) noexcept nogil:
    """Fail the acks of the role that has ended, and wake all fetches (`lock` held)."""
    acks_fail(p, NOT_LEADER_OR_FOLLOWER, False)
    low_waiters_fail(p, NOT_LEADER_OR_FOLLOWER)
    wake_fetches(p, INT32_MAX, INT32_MAX, INT32_MAX)


cdef void begin_epoch(partition_t *p, epoch_t *epochs, int32_t epoch, int64_t start_offset) noexcept nogil:
    """Add an epoch, into the memory `epochs`, to those known (`lock` held), before a fetch can ask for an older one.

    The newest one, in which this broker has led before, begins where it has begun. storage.LeaderEpochs adds it the
    same way, and calls `set_epochs`.
    """
    cdef int32_t kept = 0
    if p.epoch_count and p.epochs[p.epoch_count - 1].epoch == epoch:
        free(epochs)
        return
    while kept < p.epoch_count and p.epochs[kept].epoch < epoch and p.epochs[kept].start_offset < start_offset:
        epochs[kept] = p.epochs[kept]
        kept += 1
    epochs[kept].epoch = epoch
    epochs[kept].start_offset = start_offset
    free(p.epochs)
    p.epochs = epochs
    p.epoch_count = kept + 1
    atomic_store_i32(&p.newest_epoch, epoch)
