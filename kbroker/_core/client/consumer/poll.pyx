"""Hands out the records that were fetched; the contract is in poll.pxd."""

from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.futex cimport futex_wait
from kbroker._core.base.sync cimport (
    atomic_add_i32, atomic_add_i64, atomic_load_i32, atomic_store_i32, mutex_lock, mutex_unlock,
)
from kbroker._core.client.consumer.batches cimport new_chunk
from kbroker._core.client.consumer.chunk cimport chunk_t
from kbroker._core.client.consumer.partitions cimport FetchPartitions, fetch_partition_t, ready_free, ready_t
from kbroker._core.client.consumer.records cimport Handout, RecordIterator, Records, new_records
from kbroker._core.wire.record_batch cimport BATCH_OK

from kbroker._core.client.consumer.record import UnreadableRecords

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *object) noexcept

cdef enum:
    MOST_WAIT_MS = 500               # a poll looks for signals that another thread received after so long at most


cdef class FetchPoll(FetchPartitions):

    def __cinit__(self, *_args, **_keywords):
        self.begun = []
        self.errors = []
        self.delivered = []
        self.unread = {}
        self.taken = {}
        self.passed = {}

    def poll(self, int64_t timeout_ms, int64_t max_records, bint to_read=False, list into=None):
        """Return the next records as Records, `max_records` at most.

        The Records are empty if none came within `timeout_ms`, after `interrupt`, and when every partition has come to
        its stop offset. The records that `reading` has not given come first. Records that the last poll returned and
        that nobody got are fetched again. With `to_read` the iterator of `reading` goes over the records. With `into`
        the Records are appended to this list and belong to the caller at once.

        Raises the errors of `raise_in_poll`. Raises UnreadableRecords where records cannot be read, once all records
        before them have been handed out; the position stays before them. Releases the GIL while it waits; exceptions of
        signal handlers, as KeyboardInterrupt, are raised.
        """
        cdef Records records
        cdef int64_t until_ms = monotonic_ms() + timeout_ms
        cdef int64_t left_ms
        cdef int32_t seen
        self.has_given = False
        self.settle_handout()
        while True:
            seen = atomic_load_i32(&self.signal)
            self.put_back()
            self.raise_one()
            records = new_records()
            self.delivered = []
            self.taken = {}
            self.passed = {}
            try:
                self.take_begun(records, max_records)
                self.take_ready(records, max_records - records.count)
            except BaseException:
                self.take_again()
                raise
            if records.count:
                self.has_given = True
                if to_read:
                    self.begin_reading(records)
                elif into is not None:
                    into.append(records)
                else:
                    self.handout = records.handout = Handout.__new__(Handout)
                return records
            self.raise_one()
            left_ms = until_ms - monotonic_ms()
            if left_ms <= 0 or self.interrupted or self.has_reached_stops:
                self.interrupted = False
                return records
            atomic_add_i32(&self.waiting, 1)
            with nogil:
                futex_wait(&self.signal, seen, min(left_ms, <int64_t>MOST_WAIT_MS))
            atomic_add_i32(&self.waiting, -1)
            PyErr_CheckSignals()

    def reading(self):
        """The iterator over the records of the last poll with `to_read`, or None if it has ended.

        Positions are behind the records that it has given. It ends with the next poll, and when a partition of which it
        has records left is removed, paused or sought.
        """
        if self.iterator is not None and self.iterator.records is None:
            self.iterator = None
        return self.iterator

    def stop_reading(self):
        """End the iterator of `reading`; the next poll hands out the records that are left."""
        self.put_back()

    def settle(self):
        """Decide about the records of the last poll: if nobody got them, they are fetched again.

        If somebody got them, they stay handed out.
        """
        self.settle_handout()

    cdef int settle_handout(self) except -1:
        if self.is_lost():
            self.take_again()
        self.handout = None
        return 0

    def take_back(self):
        """Have the records of the last poll fetched again.

        Does nothing if `settle` has decided that they stay handed out.
        """
        if self.handout is not None:
            self.take_again()
        self.handout = None

    cdef bint is_lost(self) noexcept:
        """Whether nobody has looked at the records that the last poll returned, and nobody keeps them."""
        return self.handout is not None and not self.handout.is_seen and Py_REFCNT(<PyObject *>self.handout) == 1

    def listen(self):
        """Have `on_told` called once when poll has something new to look at: for callers that do not wait in poll."""
        self.heard = atomic_load_i32(&self.signal)
        atomic_store_i32(&self.listening, 1)

    def interrupt(self):
        """Have a waiting poll return, or else the next one return without waiting."""
        self.interrupted = True
        self.awaken()

    def raise_in_poll(self, error, str topic=None, int32_t partition=-1, *, bint until_seek=False):
        """Have the next poll raise `error`; do nothing if it is for a partition that is not assigned.

        The error of a partition is raised once the partition's waiting records have been polled or dropped. Until then
        the partition is not fetched; then it is fetched again. With `until_seek` every poll raises the error instead,
        until somebody seeks. At most one error waits for each partition, and one without a partition: the newest.
        """
        cdef fetch_partition_t *p
        key, generation = None, 0
        if topic is not None:
            key = (topic, partition)
            if key not in self.by_name:
                return
            p = self.find(topic, partition)
            mutex_lock(&self.lock)
            p.blocked = True
            generation = p.generation
            mutex_unlock(&self.lock)
        self.errors = [each for each in self.errors if each[1] != key]
        self.errors.append((error, key, generation, until_seek))
        self.awaken()

    def forget_errors(self):
        """Drop the waiting error that is not for a partition."""
        self.errors = [each for each in self.errors if each[1] is not None]

    cdef int raise_one(self) except -1:
        cdef fetch_partition_t *p
        cdef bint current
        for row in list(self.errors):
            error, key, generation, until_seek = row
            if key is None:
                self.errors.remove(row)
                raise error
            current = False
            if key in self.by_name:
                p = self.find(key[0], key[1])
                mutex_lock(&self.lock)
                current = p.generation == generation
                if current and (p.begun or self.waits(p)):
                    mutex_unlock(&self.lock)
                    continue
                if current and not until_seek:
                    self.move(p, p.position, p.position_epoch)
                    p.blocked = False
                mutex_unlock(&self.lock)
            if not (current and until_seek):
                self.errors.remove(row)
            if current:
                self.wake()
                raise error
        return 0

    cdef bint waits(self, const fetch_partition_t *p) noexcept nogil:
        """Whether records of the partition wait in `ready`. The caller holds the lock."""
        cdef const ready_t *ready = self.ready
        while ready != NULL and ready.partition != p:
            ready = ready.next
        return ready != NULL

    cdef int stop_at(self, error, tuple key, int64_t generation) except -1:
        """Stop a partition whose next records cannot be read: hand out nothing behind them, and have `error` raised."""
        cdef fetch_partition_t *p
        cdef int64_t before = generation
        if key in self.by_name:
            p = self.find(key[0], key[1])
            mutex_lock(&self.lock)
            if p.generation == generation:
                self.move(p, p.position, p.position_epoch)
                p.blocked = True
                generation = p.generation
            mutex_unlock(&self.lock)
            if key in self.taken:
                self.taken[key] = generation, *self.taken[key][1:]
            # The records that this poll has of the partition stay valid: they get its new generation.
            self.delivered = [(row[0], generation, row[2], row[3]) if row[:2] == (key, before)
                              else row for row in self.delivered]
            self.errors.append((error, key, generation, False))
        return 0

    cdef int64_t position_at(self, Chunk chunk, int64_t first, int64_t end) except -1:
        """The position behind records `first` to `end` - 1 of a chunk."""
        try:
            chunk.keep(end)
            return chunk.offset_of(end)
        except UnreadableRecords:
            if end == first:
                raise
            return chunk.offset_of(end - 1) + 1      # the records that cannot be read come behind these

    cdef int deliver(self, Records records, Chunk chunk, tuple key, int64_t generation, int64_t first,
                     int64_t most) except -1:
        cdef fetch_partition_t *p
        cdef int64_t end = min(chunk.chunk.record_count, first + most)
        cdef int64_t position
        cdef int64_t before = -1
        cdef int32_t epoch
        cdef int32_t before_epoch = -1
        cdef bint current
        if key not in self.by_name:
            return 0
        p = self.find(key[0], key[1])
        try:
            position = self.position_at(chunk, first, end)
        except UnreadableRecords as error:
            return self.stop_at(error, key, generation)
        epoch = chunk.epoch_before(end)
        mutex_lock(&self.lock)
        current = p.generation == generation
        if current:
            before = p.position
            before_epoch = p.position_epoch
            p.position = position
            if epoch >= 0 or end > first:
                p.position_epoch = epoch
        mutex_unlock(&self.lock)
        if not current:
            return 0
        if end > first:
            records.add(chunk, first, end)
            self.delivered.append((key, generation, before, before_epoch))
            self.passed.pop(key, None)
        elif chunk.failure is None and chunk.chunk.finding == BATCH_OK:
            self.passed[key] = chunk, generation
        if end < chunk.chunk.record_count:
            self.begun.append((chunk, key, generation, end))
            p.begun = True
        elif chunk.failure is not None or chunk.chunk.finding != BATCH_OK:
            self.stop_at(chunk.error, key, generation)
        return 0

    cdef int begin_reading(self, Records records) except -1:
        cdef fetch_partition_t *p
        self.unread = {}
        for number, row in enumerate(self.delivered):
            self.unread.setdefault(row[0], []).append(number)
        self.iterator = <RecordIterator>iter(records)
        self.iterator.stays = True
        for key, generation, _, _ in self.delivered:
            p = self.find(key[0], key[1]) if key in self.by_name else NULL
            if p == NULL or p.generation != generation or p.paused:
                self.put_back()          # another thread has removed, paused or sought the partition meanwhile
                break
        return 0

    cdef int32_t unread_part(self, tuple key) except -2:
        """The index of the part that has the partition's next record for iteration; -1 if iteration has given all."""
        cdef int32_t number
        if self.iterator is not None and self.iterator.records is not None:
            for number in self.unread.get(key, ()):
                if self.iterator.next_of(number) < self.iterator.records.parts[number].end:
                    return number
        return -1

    cdef bint find_unread(self, topic, partition, int64_t *position, int32_t *epoch) except -1:
        cdef int32_t number = self.unread_part((topic, partition))
        cdef int64_t next
        if number < 0:
            return self.find_lost((topic, partition), position, epoch)
        next = self.iterator.next_of(number)
        if next == self.iterator.records.parts[number].first:
            _, _, before, before_epoch = self.delivered[number]
            position[0] = before
            epoch[0] = before_epoch
        else:
            position[0] = self.iterator.position()
            epoch[0] = (<Chunk>self.iterator.records.chunks[number]).epoch_before(next)
        return True

    cdef bint find_lost(self, tuple key, int64_t *position, int32_t *epoch) except -1:
        if not (key in self.taken and self.is_lost()):
            return False
        generation, before, before_epoch = self.taken[key]
        if generation != self.find(key[0], key[1]).generation:
            return False
        position[0] = before
        epoch[0] = before_epoch
        return True

    cdef int put_back(self) except -1:
        cdef RecordIterator iterator = self.iterator
        cdef fetch_partition_t *p
        cdef int64_t position = -1
        cdef int32_t epoch = -1
        cdef int32_t number
        if iterator is None or iterator.records is None:
            self.iterator = None
            return 0
        for key in self.unread:
            number = self.unread_part(key)
            if number < 0 or key not in self.by_name:
                continue
            self.find_unread(key[0], key[1], &position, &epoch)
            p = self.find(key[0], key[1])
            mutex_lock(&self.lock)
            if p.generation == self.delivered[number][1]:
                p.position = position
                p.position_epoch = epoch
                p.begun = True
            mutex_unlock(&self.lock)
        rest = []
        for number in range(max(iterator.part, 0), iterator.records.part_count):
            if iterator.next_of(number) < iterator.records.parts[number].end:
                key, generation, _, _ = self.delivered[number]
                rest.append((iterator.records.chunks[number], key, generation, iterator.next_of(number)))
        for key in {row[1] for row in rest} & self.passed.keys():
            chunk, generation = self.passed[key]
            rest.append((chunk, key, generation, 0))
        chunks = {row[0] for row in rest}
        self.begun = rest + [row for row in self.begun if row[0] not in chunks]
        self.iterator = None
        iterator.stop()
        return 0

    cdef int take_begun(self, Records records, int64_t most) except -1:
        """Hand out the rest of those chunks of which earlier polls have handed out a part."""
        cdef fetch_partition_t *p
        cdef list begun = self.begun
        self.begun = []
        kept = set()
        begun.reverse()
        try:
            while begun:
                chunk, key, generation, first = begun.pop()
                if key not in self.by_name:
                    continue
                p = self.find(key[0], key[1])
                if p.generation != generation:
                    continue
                p.begun = False
                if p.paused or records.count >= most or key in kept:
                    kept.add(key)
                    self.begun.append((chunk, key, generation, first))
                    p.begun = True
                else:
                    self.note_taken(key, generation)
                    self.deliver(records, chunk, key, generation, first, most - records.count)
        finally:
            self.begun.extend(reversed(begun))
        return 0

    cdef int note_taken(self, tuple key, int64_t generation) except -1:
        cdef fetch_partition_t *p
        if key in self.by_name and key not in self.taken:
            p = self.find(key[0], key[1])
            if p.generation == generation:
                self.taken[key] = generation, p.position, p.position_epoch
        return 0

    cdef int take_again(self) except -1:
        """Set partitions back to their positions before the last poll, so that what it took is fetched again."""
        cdef fetch_partition_t *p
        for key, (generation, position, epoch) in self.taken.items():
            if key not in self.by_name:
                continue
            p = self.find(key[0], key[1])
            mutex_lock(&self.lock)
            if p.generation == generation:
                self.move(p, position, epoch)
                p.blocked = False
            mutex_unlock(&self.lock)
        self.taken = {}
        self.delivered = []
        self.wake()
        return 0

    cdef int take_ready(self, Records records, int64_t most) except -1:
        cdef ready_t *ready
        cdef ready_t **link
        cdef chunk_t *chunk
        cdef int64_t generation
        cdef int64_t end = records.count + most
        cdef bint freed = False
        while records.count < end:
            mutex_lock(&self.lock)
            link = &self.ready
            while link[0] != NULL and (link[0].partition.paused or link[0].partition.begun):
                link = &link[0].next
            ready = link[0]
            if ready != NULL:
                link[0] = ready.next
                if ready.next == NULL:
                    self.ready_end = link
                atomic_add_i64(&self.ready_bytes, -ready.chunk.size)
            mutex_unlock(&self.lock)
            if ready == NULL:
                break
            freed = True
            key = key_of(ready.partition)
            chunk = ready.chunk
            ready.chunk = NULL
            generation = ready.generation
            mutex_lock(&self.lock)
            ready_free(ready)
            mutex_unlock(&self.lock)
            self.note_taken(key, generation)
            self.deliver(records, new_chunk(chunk, key[0], key[1], self.inflate), key, generation, 0,
                         end - records.count)
        if freed:
            self.wake()
        return 0


cdef tuple key_of(const fetch_partition_t *p):
    return (<const char *>p.topic)[:p.topic_size].decode(), p.partition
