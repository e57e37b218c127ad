"""Reads a Fetch response; see fetch_response.pxd."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from kbroker._core.base.arrays cimport with_room
from kbroker._core.client.consumer.fetch_request cimport LAST_VERSION_WITH_NAMES, TOPIC_ID_SIZE
from kbroker._core.wire.cursor cimport (
    MOST_ELEMENTS, read_array_count, read_bytes, read_i16, read_i32, read_i64, read_string, read_tag, read_uvarint,
    reader_init, reader_left, reader_t, reader_take, skip_tags,
)
from kbroker._core.wire.record_batch cimport OUT_OF_MEMORY

from kbroker.errors import MalformedBytes

cdef enum:
    MALFORMED = -2               # besides OUT_OF_MEMORY
    # Tagged fields of a partition, version 12.
    DIVERGING_EPOCH = 0
    CURRENT_LEADER = 1


cdef void answers_init(fetch_answers_t *answers) noexcept nogil:
    memset(answers, 0, sizeof(fetch_answers_t))

cdef void answers_free(fetch_answers_t *answers) noexcept nogil:
    free(answers.answers)
    answers_init(answers)

cdef void read_partition_tags(reader_t *r, fetch_answer_t *answer) noexcept nogil:
    cdef uint32_t count = read_uvarint(r)
    cdef uint32_t tag
    cdef reader_t field
    while count > 0 and not r.failed:
        count -= 1
        tag = read_tag(r, &field)
        if r.failed or tag > CURRENT_LEADER:
            continue
        if tag == DIVERGING_EPOCH:
            answer.diverging_epoch = read_i32(&field)
            answer.diverging_end_offset = read_i64(&field)
        else:
            answer.leader_id = read_i32(&field)
            answer.leader_epoch = read_i32(&field)
        skip_tags(&field)
        if field.failed or reader_left(&field):
            r.failed = True

cdef void read_answer(reader_t *r, int16_t version, fetch_answer_t *answer) noexcept nogil:
    cdef bint flexible = version >= 12
    cdef int32_t left
    answer.partition = read_i32(r)
    answer.error = read_i16(r)
    answer.high_watermark = read_i64(r)
    answer.last_stable_offset = read_i64(r) if version >= 4 else -1
    answer.log_start_offset = read_i64(r) if version >= 5 else -1
    answer.aborted_count = max(read_array_count(r, flexible, 16), 0) if version >= 4 else 0
    answer.aborted = r.at
    if flexible:
        left = answer.aborted_count
        while left > 0 and not r.failed:
            left -= 1
            reader_take(r, 16)
            skip_tags(r)
    else:
        reader_take(r, <int64_t>answer.aborted_count * 16)
    answer.preferred_replica = read_i32(r) if version >= 11 else -1
    answer.records = read_bytes(r, flexible, &answer.records_size)
    answer.records_size = max(answer.records_size, 0)
    answer.leader_id = answer.leader_epoch = answer.diverging_epoch = -1
    answer.diverging_end_offset = -1
    if flexible:
        read_partition_tags(r, answer)

cdef int parse_answers(fetch_answers_t *answers, int16_t version, const uint8_t *body, int64_t size) noexcept nogil:
    cdef bint flexible = version >= 12
    cdef reader_t r
    cdef const uint8_t *topic
    cdef int32_t topic_size = 0
    cdef int32_t topics
    cdef int32_t partitions
    cdef fetch_answer_t *grown
    reader_init(&r, body, <size_t>size)
    answers.throttle_ms = read_i32(&r) if version >= 1 else 0
    answers.error = read_i16(&r) if version >= 7 else 0
    answers.session_id = read_i32(&r) if version >= 7 else 0
    topics = read_array_count(&r, flexible, 3)
    while topics > 0 and not r.failed:
        topics -= 1
        if version > LAST_VERSION_WITH_NAMES:
            topic = reader_take(&r, TOPIC_ID_SIZE)
            topic_size = TOPIC_ID_SIZE
        else:
            topic = read_string(&r, flexible, &topic_size)
        partitions = read_array_count(&r, flexible, 18)
        if topic == NULL:
            return MALFORMED
        while partitions > 0 and not r.failed:
            partitions -= 1
            if answers.count == MOST_ELEMENTS:
                return MALFORMED
            grown = <fetch_answer_t *>with_room(answers.answers, answers.count, &answers.capacity,
                                                sizeof(fetch_answer_t))
            if grown == NULL:
                return OUT_OF_MEMORY
            answers.answers = grown
            grown = &answers.answers[answers.count]
            grown.topic = topic
            grown.topic_size = <int16_t>topic_size
            read_answer(&r, version, grown)
            answers.count += 1
        if flexible:
            skip_tags(&r)
    if flexible:
        skip_tags(&r)
    return MALFORMED if r.failed or topics < 0 or reader_left(&r) else 0

cdef void read_aborted(const fetch_answer_t *answer, int16_t version, aborted_t *aborted) noexcept nogil:
    # The array was checked when the answer was read, so no bounds are needed here.
    cdef reader_t r
    cdef int32_t i
    reader_init(&r, answer.aborted, 0x7fffffff)
    for i in range(answer.aborted_count):
        aborted[i].producer_id = read_i64(&r)
        aborted[i].first_offset = read_i64(&r)
        if version >= 12:
            skip_tags(&r)

cdef void answers_move(fetch_answers_t *answers, int64_t distance) noexcept nogil:
    cdef int32_t i
    for i in range(answers.count):
        answers.answers[i].topic += distance
        answers.answers[i].aborted += distance
        if answers.answers[i].records != NULL:
            answers.answers[i].records += distance


def decode_fetch(int16_t version, body):
    """Return (throttle ms, error code, session id, partitions) of a Fetch response; each partition is a dict of fields.

    Raises MalformedBytes if the bytes are not a response of this version.
    """
    cdef Py_buffer view
    cdef fetch_answers_t answers
    cdef fetch_answer_t *answer
    cdef aborted_t *aborted
    cdef int finding
    cdef int32_t i
    answers_init(&answers)
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            finding = parse_answers(&answers, version, <const uint8_t *>view.buf, view.len)
        if finding == OUT_OF_MEMORY:
            raise MemoryError()
        if finding:
            raise MalformedBytes(f"no response of Fetch {version}")
        found = []
        for i in range(answers.count):
            answer = &answers.answers[i]
            aborted = <aborted_t *>malloc(sizeof(aborted_t) * max(answer.aborted_count, 1))
            if aborted == NULL:
                raise MemoryError()
            read_aborted(answer, version, aborted)
            transactions = [(aborted[k].producer_id, aborted[k].first_offset) for k in range(answer.aborted_count)]
            free(aborted)
            found.append({
                "topic": (<const char *>answer.topic)[:answer.topic_size] if answer.topic_size else b"",
                "partition": answer.partition,
                "error": answer.error,
                "high_watermark": answer.high_watermark,
                "last_stable_offset": answer.last_stable_offset,
                "log_start_offset": answer.log_start_offset,
                "aborted": transactions,
                "preferred_replica": answer.preferred_replica,
                "records": (<const char *>answer.records)[:answer.records_size] if answer.records_size else b"",
                "leader": (answer.leader_id, answer.leader_epoch),
                "diverging": (answer.diverging_epoch, answer.diverging_end_offset),
            })
        return answers.throttle_ms, answers.error, answers.session_id, found
    finally:
        PyBuffer_Release(&view)
        answers_free(&answers)
