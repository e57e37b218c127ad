"""The requests that Python answers; see request.pxd."""

import sys
import threading

cimport cython

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.object cimport PyObject

from kbroker._core.base.mailbox cimport post
from kbroker._core.base.receive_buffers cimport buffer_free
from kbroker._core.base.sync cimport atomic_claim_i32, atomic_store_i32
from kbroker._core.server.connection cimport (
    SLOT_CLOSE, SLOT_READY, SLOT_SILENT, begin_response, read_header, request_t,
)
from kbroker._core.server.counters cimport count_error
from kbroker._core.server.fetch.fetch cimport fetch_elsewhere, fetch_go_on
from kbroker._core.server.produce.response cimport slot_is_answered
from kbroker._core.server.produce.produce cimport (
    produce_answered, produce_asked, produce_discard, produce_check_blocking, produce_run,
)
from kbroker._core.server.serving cimport report
from kbroker._core.wire.apis cimport API_FETCH, API_PRODUCE
from kbroker._core.wire.cursor cimport write_raw, writer_free
from kbroker._core.wire.message_encode cimport encode_into

from kbroker.errors import AnswerTooLarge, ErrorCode

cdef enum:
    LARGE_BODY = 64 << 10        # bytes; a response of this size or more is copied without the GIL


cdef class Frame:
    """The bytes of one request as a read-only buffer."""

    def __dealloc__(self):
        if self.buffer != NULL:
            buffer_free(self.buffer, self.capacity)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.buffer + self.at, self.size, True, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


@cython.no_gc_clear           # __dealloc__ needs the connection's processor
cdef class Request:
    """A request that Python answers once, from any thread.

    The answer is one of respond, respond_with, respond_nothing, close and run_blocking; each raises RuntimeError when
    the request is answered already. `body` has the bytes behind the request header. A Request that is dropped without
    an answer closes its connection.
    """

    def __dealloc__(self):
        if self.work != NULL:
            produce_discard(self.work)
        if self.slot != NULL:
            self.deliver(self.slot, SLOT_CLOSE)

    @property
    def body(self) -> memoryview:
        if self.frame is None:
            raise RuntimeError("a Fetch that a processor has begun has no body: run_blocking goes on with it")
        return memoryview(self.frame)[self.body_at:]

    @property
    def only_verifies(self) -> bool:
        return self.work != NULL and self.work.only_verifies

    cdef slot_t *claim(self) except NULL:
        cdef slot_t *slot = self.slot
        if not atomic_claim_i32(&self.answered, 0, 1):
            raise RuntimeError(f"{self!r} has been answered already")
        self.slot = NULL
        return slot

    cdef void deliver(self, slot_t *slot, int32_t outcome) noexcept:
        slot.outcome = outcome
        if threading.get_ident() == self.serving.thread_id and slot.fetch == NULL:
            slot_is_answered(self.serving, slot, True)
        else:
            with nogil:
                post(&slot.mail)

    def respond_with(self, message not None) -> None:
        """Answer with a message, which is encoded directly into the response.

        Raises AnswerTooLarge when it is larger than kbroker.response.max.bytes. After any error the request can still
        be answered.
        """
        cdef slot_t *slot = self.claim()
        begin_response(slot, self.flexible)
        try:
            encode_into(&slot.out, message, self.api_version, <size_t>self.serving.max_response_size)
        except BaseException:
            writer_free(&slot.out)
            self.slot = slot
            atomic_store_i32(&self.answered, 0)
            raise
        self.deliver(slot, SLOT_READY)

    def respond(self, const uint8_t[::1] body not None) -> None:
        """Answer with an encoded body; size and response header are put before it.

        Raises AnswerTooLarge when it is larger than kbroker.response.max.bytes; the request can still be answered then.
        """
        cdef slot_t *slot
        cdef size_t size = body.shape[0]
        if size > <size_t>self.serving.max_response_size:
            raise AnswerTooLarge(ErrorCode.INVALID_REQUEST, "The answer is larger than kbroker.response.max.bytes.")
        slot = self.claim()
        begin_response(slot, self.flexible)
        if size >= LARGE_BODY:
            with nogil:
                write_raw(&slot.out, &body[0], size)
        elif size:
            write_raw(&slot.out, &body[0], size)
        self.deliver(slot, SLOT_READY)

    def count_error(self, int code) -> None:
        """Count one more answer to this API with an error code, for the metrics."""
        count_error(&self.serving.p.counters[self.api_key], code)

    def respond_nothing(self) -> None:
        """End the request without a response, because it asks for none."""
        self.deliver(self.claim(), SLOT_SILENT)

    def close(self, str reason not None) -> None:
        """Answer by closing the connection, after earlier requests are answered. `reason` is logged with the peer."""
        cdef slot_t *slot = self.claim()
        self.connection.close_reason = reason
        self.deliver(slot, SLOT_CLOSE)

    cdef void fail(self, error) noexcept:
        """Report `error`, which the code that had the request raised, and close the connection.

        The client must not wait for an answer that never comes.
        """
        cdef slot_t *slot = self.slot
        sys.excepthook(type(error), error, error.__traceback__)
        if atomic_claim_i32(&self.answered, 0, 1):
            self.slot = NULL
            if self.connection is not None:
                self.connection.close_reason = f"an error of this broker: {error!r}"
            self.deliver(slot, SLOT_CLOSE)

    def check_blocking(self):
        """Do everything of a Produce that comes before the append.

        Call it on a thread that may block, unless the request `only_verifies`. Return the question for the coordinator
        of the transaction, to be asked before `run_blocking`: (transactional_id, producer_id, producer_epoch, [(topic,
        partition_id), ...]), or None. Raises RuntimeError when the request is not a Produce that a processor has begun.
        """
        cdef produce_t *work = self.work
        cdef Frame frame = self.frame
        cdef bint asks
        if work == NULL:
            raise RuntimeError(f"{self!r} is not one that can be checked")
        with nogil:
            asks = produce_check_blocking(self.serving, work, frame.buffer + frame.at)
        return produce_asked(work, frame.buffer + frame.at) if asks else None

    def run_blocking(self, codes=None) -> None:
        """Finish and answer a Produce or Fetch that the processor could not finish, on a thread that may block.

        `codes`: the answer of the coordinator of a transaction, an error code for each partition of the question that
        `check_blocking` returned. Without it no transaction may begin. Raises RuntimeError for any other API.
        """
        cdef slot_t *slot
        if self.api_key != API_PRODUCE and self.api_key != API_FETCH:
            raise RuntimeError(f"{self!r} is not one that run_blocking can serve")
        slot = self.claim()
        self.deliver(slot, self.produce(slot, codes) if self.api_key == API_PRODUCE else self.fetch(slot))

    cdef int32_t fetch(self, slot_t *slot) noexcept:
        """Serve a claimed Fetch. Return its outcome (SLOT_*)."""
        cdef Frame frame = self.frame
        cdef request_t header
        cdef int32_t outcome
        if slot.fetch != NULL:
            with nogil:
                outcome = fetch_go_on(self.serving, slot, <PyObject *>self.connection)
            return outcome
        with nogil:
            read_header(self.serving.p, &header, frame.buffer + frame.at, frame.size)
            outcome = fetch_elsewhere(self.serving, slot, &header, <PyObject *>self.connection, self.connection.id,
                                      self.connection.token)
        if outcome == SLOT_CLOSE:
            self.connection.close_reason = "a request that does not parse"
        return outcome

    cdef int32_t produce(self, slot_t *slot, codes) except? -1:
        """Serve a claimed Produce. Return its outcome (SLOT_*)."""
        cdef Frame frame = self.frame
        cdef PyObject *peer = <PyObject *>self.connection
        cdef produce_t *work = self.work
        cdef int32_t outcome
        self.work = NULL
        if not work.checked:
            with nogil:
                produce_check_blocking(self.serving, work, frame.buffer + frame.at)
        try:
            produce_answered(work, codes)
        except BaseException as error:
            report(self.serving, "asking the coordinator of a transaction", error)
            produce_answered(work, None)
        with nogil:
            outcome = produce_run(self.serving, slot, work, frame.buffer + frame.at, peer)
        return outcome

    def __repr__(self) -> str:
        return (f"<Request {self.api_key} v{self.api_version}, correlation id {self.correlation_id}, "
                f"client {self.client_id!r} at {self.connection.peer if self.connection is not None else '?'}>")
