"""Handing out what has been fetched; the contract is in poll.pxd."""

from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.futex cimport futex_wait
from kbroker._core.base.sync cimport atomic_add_i32, atomic_add_i64, atomic_load_i32, atomic_store_i32, mutex_lock, mutex_unlock
from kbroker._core.client.consumer.batches cimport new_chunk
from kbroker._core.client.consumer.chunk cimport chunk_t
from kbroker._core.client.consumer.partitions cimport FetchPartitions, fetch_partition_t, ready_free, ready_t
from kbroker._core.client.consumer.records cimport Handout, RecordIterator, Records, new_records
from kbroker._core.wire.record_batch cimport BATCH_OK

from kbroker._core.client.consumer.record import UnreadableRecords

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *object) noexcept

cdef enum:
    MOST_WAIT_MS = 500               # a signal that another thread was given is seen after so long


cdef class FetchPoll(FetchPartitions):

    def __cinit__(self, *_args, **_keywords):
        self.begun = []
        self.errors = []
        self.delivered = []
        self.unread = {}
        self.taken = {}
        self.passed = {}

    def poll(self, int64_t timeout_ms, int64_t max_records, bint to_read=False, list into=None):
        """The next records, at most so many; none when there are none within the time, or after `interrupt`.

        What `reading` has not given comes first, and what an earlier poll has returned to nobody. With `to_read` it is `reading` what gives these.
        They are appended to `into`, and are the caller's at once.

        Raises what `raise_in_poll` was given, and UnreadableRecords once all before it has been given: then position stays where it is.
        Gives the GIL back while it waits; KeyboardInterrupt and other exceptions of signal handlers come out.
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
        """The iterator over the last poll `to_read`, whose positions are behind what it has given; None: it has ended.

        It ends when something happens to a partition of which it has records left, and by a poll.
        """
        if self.iterator is not None and self.iterator.records is None:
            self.iterator = None
        return self.iterator

    def stop_reading(self):
        """The rest of it is for the next poll."""
        self.put_back()

    def settle(self):
        """What the last poll has returned comes again if nobody has got it; else it never does."""
        self.settle_handout()

    cdef int settle_handout(self) except -1:
        if self.is_lost():
            self.take_again()
        self.handout = None
        return 0

    def take_back(self):
        """What the last poll has returned comes again, unless it is settled."""
        if self.handout is not None:
            self.take_again()
        self.handout = None

    cdef bint is_lost(self) noexcept:
        """Whether nobody has looked at what the last poll has returned, and nobody can any more."""
        return self.handout is not None and not self.handout.is_seen and Py_REFCNT(<PyObject *>self.handout) == 1

    def listen(self):
        """`on_told` is called once when poll has something to look at from now on, for who does not wait in it."""
        self.heard = atomic_load_i32(&self.signal)
        atomic_store_i32(&self.listening, 1)

    def interrupt(self):
        """A poll that waits returns, or the next one does."""
        self.interrupted = True
        self.awaken()

    def raise_in_poll(self, error, str topic=None, int32_t partition=-1, *, bint until_seek=False):
        """The next poll raises it, for a partition when what waits of that has been polled or dropped; it stands still until then.

        Then the partition is fetched again; with `until_seek` every poll raises it instead, until somebody seeks. One error of each partition, and
        one of none, waits at a time: the newest.
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
        """What waits to be raised of no partition is not."""
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
        """With the lock: whether something of it waits to be polled."""
        cdef const ready_t *ready = self.ready
        while ready != NULL and ready.partition != p:
            ready = ready.next
        return ready != NULL

    cdef int stop_at(self, error, tuple key, int64_t generation) except -1:
        """A partition whose next records cannot be read: nothing behind them is handed out."""
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
            # What this poll has of it is still right.
            self.delivered = [(row[0], generation, row[2], row[3]) if row[:2] == (key, before) else row for row in self.delivered]
            self.errors.append((error, key, generation, False))
        return 0

    cdef int64_t position_at(self, Chunk chunk, int64_t first, int64_t end) except -1:
        """The position behind records `first` to `end` - 1."""
        try:
            chunk.keep(end)
            return chunk.offset_of(end)
        except UnreadableRecords:
            if end == first:
                raise
            return chunk.offset_of(end - 1) + 1      # what cannot be read comes behind them

    cdef int deliver(self, Records records, Chunk chunk, tuple key, int64_t generation, int64_t first, int64_t most) except -1:
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
                self.put_back()          # another thread has done something to it meanwhile
                break
        return 0

    cdef int32_t unread_part(self, tuple key) except -2:
        """The part of what is read that has the next record of a partition; -1: none has."""
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
        """What an earlier poll has left over of a chunk."""
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
        """A poll was interrupted: what it has taken is fetched again, from where its partitions stood before."""
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
            self.deliver(records, new_chunk(chunk, key[0], key[1], self.inflate), key, generation, 0, end - records.count)
        if freed:
            self.wake()
        return 0


cdef tuple key_of(const fetch_partition_t *p):
    return (<const char *>p.topic)[:p.topic_size].decode(), p.partition
