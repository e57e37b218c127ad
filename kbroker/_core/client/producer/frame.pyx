"""Writes and reads Produce frames for clients; see frame.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

from kbroker._core.base.sockets cimport iovec
from kbroker._core.wire.apis cimport PRODUCE_BATCHES_FROM
from kbroker._core.wire.cursor cimport (
    is_utf8,
    read_array_count,
    read_i16,
    read_i32,
    read_i64,
    read_string,
    read_uvarint,
    reader_init,
    reader_left,
    reader_t,
    reader_take,
    read_tag,
    skip_tags,
    store_u32,
    write_array_count,
    write_i16,
    write_i32,
    write_string,
    write_uvarint,
    writer_free,
    writer_init,
)

from kbroker.errors import MalformedBytes

cdef enum:
    FLEXIBLE_VERSION = 9
    LEADER_VERSION = 10
    MIN_TOPIC = 3                # name, partitions and tags, each of at least one byte
    MIN_PARTITION = 14           # index, error code, base offset
    MIN_RECORD_ERROR = 5

# --- the request --------------------------------------------------------------------------------------

cdef bint same_topic(const produce_entry_t *one, const produce_entry_t *other) noexcept nogil:
    return one.topic == other.topic or (
        one.topic_size == other.topic_size and memcmp(one.topic, other.topic, <size_t>one.topic_size) == 0)


cdef int32_t topic_end(const produce_entry_t *entries, int32_t first, int32_t count) noexcept nogil:
    """The index behind the last entry of the topic that begins at index `first`."""
    cdef int32_t i = first + 1
    while i < count and same_topic(&entries[first], &entries[i]):
        i += 1
    return i


cdef bint write_produce(writer_t *out, int16_t version, const produce_options_t *options, produce_entry_t *entries,
                        int32_t count) noexcept nogil:
    cdef bint flexible = version >= FLEXIBLE_VERSION
    cdef int64_t batches = 0
    cdef int32_t topic_count = 0
    cdef int32_t first
    cdef int32_t stop
    cdef int32_t i
    first = 0
    while first < count:
        first = topic_end(entries, first, count)
        topic_count += 1
    write_i32(out, 0)                        # the size
    write_i16(out, 0)                        # Produce
    write_i16(out, version)
    write_i32(out, 0)                        # the correlation id
    write_string(out, options.client_id, options.client_id_size, False)
    if flexible:
        write_uvarint(out, 0)
    if version >= PRODUCE_BATCHES_FROM:
        write_string(out, options.transactional_id, options.transactional_id_size if options.transactional_id != NULL
                     else -1, flexible)
    write_i16(out, options.acks)
    write_i32(out, options.timeout_ms)
    write_array_count(out, topic_count, flexible)
    first = 0
    while first < count:
        stop = topic_end(entries, first, count)
        write_string(out, entries[first].topic, entries[first].topic_size, flexible)
        write_array_count(out, stop - first, flexible)
        for i in range(first, stop):
            write_i32(out, entries[i].partition_id)
            if flexible:
                write_uvarint(out, <uint32_t>(entries[i].size + 1))
            else:
                write_i32(out, <int32_t>entries[i].size)
            entries[i].split_at = <int64_t>out.size
            batches += entries[i].size
            if flexible:
                write_uvarint(out, 0)
        if flexible:
            write_uvarint(out, 0)
        first = stop
    if flexible:
        write_uvarint(out, 0)
    if out.failed or <int64_t>out.size + batches - 4 > INT32_MAX:
        return False
    store_u32(out.data, <uint32_t>(<int64_t>out.size + batches - 4))
    return True


cdef void cut_produce(writer_t *out, produce_entry_t *entries, int32_t count, iovec *pieces) noexcept nogil:
    cdef int64_t at = 0
    cdef int32_t i
    for i in range(count):
        pieces[2 * i].iov_base = out.data + at
        pieces[2 * i].iov_len = <size_t>(entries[i].split_at - at)
        pieces[2 * i + 1].iov_base = <void *>entries[i].data
        pieces[2 * i + 1].iov_len = <size_t>entries[i].size
        at = entries[i].split_at
    pieces[2 * count].iov_base = out.data + at
    pieces[2 * count].iov_len = <size_t>(<int64_t>out.size - at)

# --- the response -------------------------------------------------------------------------------------

cdef produce_entry_t *entry_of(produce_entry_t *entries, int32_t count, int32_t expected, const uint8_t *topic,
                               int32_t topic_size, int32_t partition_id) noexcept nogil:
    """Find the entry that an answer is for; NULL if there is none.

    The search begins at index `expected`, as brokers mostly answer in the order of the request.
    """
    cdef produce_entry_t *e
    cdef int32_t i
    for i in range(count):
        e = &entries[(expected + i) % count]
        if e.partition_id == partition_id and e.topic_size == topic_size \
                and memcmp(e.topic, topic, <size_t>topic_size) == 0:
            return e
    return NULL


cdef int32_t read_count(reader_t *r, bint flexible, size_t min_element_size) noexcept nogil:
    """Read the count of an array that cannot be null."""
    cdef int32_t count = read_array_count(r, flexible, min_element_size)
    if count < 0:
        r.failed = True
    return count


cdef const uint8_t *read_text(reader_t *r, bint flexible, int32_t *size) noexcept nogil:
    cdef const uint8_t *text = read_string(r, flexible, size)
    if text != NULL and not is_utf8(text, size[0]):
        r.failed = True
    return text


cdef void read_record_errors(reader_t *r, bint flexible) noexcept nogil:
    """Skip the list of records that the broker found wrong: the batch's error message says it too."""
    cdef int32_t size = 0
    cdef int32_t count = read_count(r, flexible, MIN_RECORD_ERROR)
    while count > 0 and not r.failed:
        read_i32(r)
        read_text(r, flexible, &size)
        if flexible:
            skip_tags(r)
        count -= 1


cdef void read_leader(reader_t *r, produce_entry_t *e, int16_t version) noexcept nogil:
    """Read the tagged fields of a partition: tag 0 is the current leader (KIP-951)."""
    cdef uint32_t count = read_uvarint(r)
    cdef uint32_t tag
    cdef uint32_t size
    cdef reader_t field
    cdef const uint8_t *data
    while count > 0 and not r.failed:
        tag = read_uvarint(r)
        size = read_uvarint(r)
        data = reader_take(r, size)
        if data != NULL and tag == 0 and version >= LEADER_VERSION:
            reader_init(&field, data, size)
            e.leader = read_i32(&field)
            e.leader_epoch = read_i32(&field)
            skip_tags(&field)
            if field.failed:
                r.failed = True
        count -= 1


cdef void read_nodes(reader_t *r, int16_t version, reader_t *nodes) noexcept nogil:
    """Read the tagged fields of the response: tag 0 has the leaders' addresses (KIP-951)."""
    cdef uint32_t count = read_uvarint(r)
    cdef reader_t field
    while count > 0 and not r.failed:
        if read_tag(r, &field) == 0 and version >= LEADER_VERSION:
            nodes[0] = field
        count -= 1


cdef bint read_produce(const uint8_t *body, int64_t size, int16_t version, produce_entry_t *entries, int32_t count,
                       reader_t *nodes) noexcept nogil:
    cdef reader_t r
    cdef bint flexible = version >= FLEXIBLE_VERSION
    cdef const uint8_t *topic
    cdef int32_t topic_size = 0
    cdef int32_t topics
    cdef int32_t partitions
    cdef int32_t partition_id
    cdef int32_t found = 0
    cdef produce_entry_t *e
    reader_init(&r, body, <size_t>size)
    reader_init(nodes, body, 0)
    topics = read_count(&r, flexible, MIN_TOPIC)
    while topics > 0 and not r.failed:
        topic = read_string(&r, flexible, &topic_size)
        partitions = read_count(&r, flexible, MIN_PARTITION)
        while partitions > 0 and not r.failed:
            partition_id = read_i32(&r)
            e = entry_of(entries, count, found, topic, topic_size, partition_id) if topic != NULL and not r.failed \
                else NULL
            if e == NULL or e.answered:
                return False
            e.answered = True
            found += 1
            e.error = read_i16(&r)
            e.base_offset = read_i64(&r)
            e.log_append_time = read_i64(&r) if version >= 2 else -1
            e.log_start_offset = read_i64(&r) if version >= 5 else -1
            e.text = NULL
            e.text_size = -1
            e.leader = -1
            e.leader_epoch = -1
            if version >= 8:
                read_record_errors(&r, flexible)
                e.text = read_text(&r, flexible, &e.text_size)
            if flexible:
                read_leader(&r, e, version)
            partitions -= 1
        if flexible:
            skip_tags(&r)
        topics -= 1
    if version >= 1:
        read_i32(&r)                         # the throttle time, in ms
    if flexible:
        read_nodes(&r, version, nodes)
    return not r.failed and reader_left(&r) == 0 and found == count

# --- for tests ----------------------------------------------------------------------------------------

cdef class ProduceFrame:
    """A Produce request and its response, for tests in Python."""

    cdef produce_entry_t *entries
    cdef int32_t count
    cdef list held

    def __cinit__(self, batches):
        """`batches`: rows (topic, partition, batch); the rows of one topic stand side by side."""
        cdef bytes name
        cdef bytes data
        self.held = []
        self.entries = <produce_entry_t *>calloc(max(1, len(batches)), sizeof(produce_entry_t))
        if self.entries == NULL:
            raise MemoryError()
        for topic, partition, batch in batches:
            name = topic.encode()
            data = bytes(batch)
            self.held.append((name, data))
            self.entries[self.count].topic = PyBytes_AS_STRING(name)
            self.entries[self.count].topic_size = <int32_t>PyBytes_GET_SIZE(name)
            self.entries[self.count].partition_id = partition
            self.entries[self.count].data = <const uint8_t *>PyBytes_AS_STRING(data)
            self.entries[self.count].size = PyBytes_GET_SIZE(data)
            self.count += 1

    def __dealloc__(self):
        free(self.entries)

    def encode(self, int16_t version, client_id, transactional_id, int16_t acks, int32_t timeout_ms):
        cdef produce_options_t options
        cdef writer_t out
        cdef iovec *pieces = <iovec *>calloc(<size_t>(2 * self.count + 1), sizeof(iovec))
        cdef bytes client = (client_id or "").encode()
        cdef bytes transactional = (transactional_id or "").encode()
        options.client_id = PyBytes_AS_STRING(client)
        options.client_id_size = -1 if client_id is None else <int32_t>len(client)
        options.transactional_id = NULL if transactional_id is None else PyBytes_AS_STRING(transactional)
        options.transactional_id_size = <int32_t>len(transactional)
        options.acks = acks
        options.timeout_ms = timeout_ms
        writer_init(&out)
        try:
            if pieces == NULL or not write_produce(&out, version, &options, self.entries, self.count):
                raise MemoryError()
            cut_produce(&out, self.entries, self.count, pieces)
            return b"".join([PyBytes_FromStringAndSize(<char *>pieces[i].iov_base, <Py_ssize_t>pieces[i].iov_len)
                             for i in range(2 * self.count + 1)])
        finally:
            free(pieces)
            writer_free(&out)

    def decode(self, int16_t version, bytes body not None):
        """Return (error, base offset, log append time, log start offset, text, leader, leader epoch) of each batch.

        Raises MalformedBytes if `body` is not a response to this request.
        """
        cdef int32_t i
        cdef reader_t nodes
        cdef produce_entry_t *e
        for i in range(self.count):
            self.entries[i].answered = False
        if not read_produce(<const uint8_t *>PyBytes_AS_STRING(body), len(body), version, self.entries, self.count,
                            &nodes):
            raise MalformedBytes("no answer to this Produce request")
        answers = []
        for i in range(self.count):
            e = &self.entries[i]
            text = None if e.text == NULL else e.text[:e.text_size].decode("utf-8", "replace")
            answers.append((e.error, e.base_offset, e.log_append_time, e.log_start_offset, text, e.leader,
                            e.leader_epoch))
        return answers
