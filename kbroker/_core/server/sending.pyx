"""Sends the ready slots of connections; see sending.pxd.

A plain socket gets bytes by sendmsg and file regions by sendfile. Before a region is sent, the kernel is asked whether
it is in memory. If it is not, the cold reader reads it first, while the processor serves other connections.

With a transport (TLS), plaintext is gathered in bounded pieces, with file regions read by pread, and encrypted in the
interpreter.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy

from kbroker._core.base.clock cimport monotonic_ns
from kbroker._core.base.mailbox cimport MAIL_WARM
from kbroker._core.base.sealing cimport wire_drop, wire_has_rest, wire_seal, wire_send
from kbroker._core.base.sockets cimport VECTORS, iovec, send_vectors
from kbroker._core.log.partition cimport segment_ref, segment_t
from kbroker._core.server.cold_reader cimport resident_prefix, warm_ask, warm_t
from kbroker._core.server.connection cimport (
    SLOT_CLOSE,
    SLOT_READY,
    SLOT_RUNNING,
    conn_close,
    conn_dirty,
    slot_pop,
    slot_t,
    splice_t,
    take_dirty,
)
from kbroker._core.wire.apis cimport API_PRODUCE

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE 1
    #endif
    #include <errno.h>
    #include <sys/sendfile.h>
    #include <sys/uio.h>
    #include <time.h>
    #include <unistd.h>
    #ifndef RWF_NOWAIT
    #define RWF_NOWAIT 0x00000008
    #endif
    static inline ssize_t send_region(int fd, int file, int64_t position, size_t size) {
        off_t at = position;
        return sendfile(fd, file, &at, size);
    }
    /* Without waiting for a disk if `nowait`; -1 and EAGAIN when the first byte is not in memory. */
    static inline ssize_t read_region(int file, void *data, size_t size, int64_t position, int nowait) {
        struct iovec vector = {data, size};
        ssize_t got;
        if (nowait) {
            got = preadv2(file, &vector, 1, position, RWF_NOWAIT);
            if (got >= 0 || (errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS))
                return got;
        }
        return pread(file, data, size, position);
    }
    """
    ssize_t send_region(int fd, int file, int64_t position, size_t size)
    ssize_t read_region(int file, void *data, size_t size, int64_t position, bint nowait)

cdef enum:
    REGION_STEP = 1 << 20        # bytes of a file region that are tested, read ahead and sent at a time

    GATHER_END = 0               # nothing more is ready
    GATHER_FULL = 1              # the vectors or the scratch are full
    GATHER_REGION = 2            # a region for sendfile comes next
    GATHER_COLD = 3              # a region comes next, and it is not in memory
    GATHER_FAILED = 4            # a region cannot be read

ctypedef struct gather_t:
    # The bytes to send next.
    iovec vectors[64]
    size_t vector_count
    int64_t size                 # bytes of all vectors
    size_t scratch_used          # bytes of send_scratch
    splice_t *splice             # GATHER_REGION, GATHER_COLD: the region that comes next
    int64_t skip                 # how many bytes of that region have been sent


cdef int gather(conn_t *conn, gather_t *g, bint copy_all) noexcept nogil:
    """Collect the bytes to send next. Return GATHER_*. `copy_all`: copy all to the scratch, for encryption."""
    cdef slot_t *slot = conn.slots
    cdef int64_t skip = conn.sent - conn.passed_size     # bytes of the piece that have been sent
    cdef int32_t first = conn.passed
    cdef int64_t start
    cdef int64_t size
    cdef int32_t i
    cdef int outcome
    g.vector_count = 0
    g.size = 0
    g.scratch_used = 0
    while slot != NULL and slot.state != SLOT_RUNNING:
        if slot.state == SLOT_CLOSE:
            return GATHER_END
        if slot.state == SLOT_READY:
            start = slot.splices[first - 1].at if first else 0
            for i in range(first, slot.splice_count + 1):
                conn.processor.looked_at += 1
                size = <int64_t>(slot.splices[i].at if i < slot.splice_count else slot.out.size) - start
                if skip < size:
                    outcome = gather_bytes(conn, g, slot.out.data + start + skip, size - skip, copy_all)
                    if outcome:
                        return outcome
                    skip = 0
                else:
                    skip -= size
                start += size
                if i < slot.splice_count:
                    if skip < slot.splices[i].size:
                        outcome = gather_region(conn, g, &slot.splices[i], skip, copy_all)
                        if outcome:
                            return outcome
                        skip = 0
                    else:
                        skip -= slot.splices[i].size
        slot = slot.next
        skip = 0
        first = 0
    return GATHER_END


cdef int gather_bytes(conn_t *conn, gather_t *g, uint8_t *data, int64_t size, bint copy_all) noexcept nogil:
    """Add bytes of a response. Return 0, or GATHER_FULL after as many bytes as fit."""
    cdef int64_t fits
    if copy_all:
        fits = min(size, <int64_t>(SEND_SCRATCH - g.scratch_used))
        memcpy(conn.processor.send_scratch + g.scratch_used, data, fits)
        g.scratch_used += fits
        g.size += fits
        return 0 if fits == size else GATHER_FULL
    if g.vector_count == VECTORS:
        return GATHER_FULL
    g.vectors[g.vector_count].iov_base = data
    g.vectors[g.vector_count].iov_len = size
    g.vector_count += 1
    g.size += size
    return 0


cdef void note_warm(conn_t *conn, segment_t *segment, int64_t position, int64_t size) noexcept nogil:
    conn.warm_segment = segment
    conn.warm_from = position
    conn.warm_until = position + size


cdef bint is_warm(conn_t *conn, splice_t *splice, int64_t position) noexcept nogil:
    """Return whether the region was found in memory or read by the cold reader: it is sent without another test."""
    return splice.segment == conn.warm_segment and conn.warm_from <= position < conn.warm_until


cdef int gather_region(conn_t *conn, gather_t *g, splice_t *splice, int64_t skip, bint copy_all) noexcept nogil:
    cdef int64_t left = splice.size - skip
    cdef int64_t position = splice.position + skip
    cdef int64_t room = SEND_SCRATCH - g.scratch_used
    cdef uint8_t *at = conn.processor.send_scratch + g.scratch_used
    cdef int64_t wanted = min(left, room)
    cdef ssize_t got
    g.splice = splice
    g.skip = skip
    if not copy_all:
        if left > SMALL_REGION:
            return GATHER_REGION
        if left > room or g.vector_count == VECTORS:
            return GATHER_FULL
    elif wanted == 0:
        return GATHER_FULL
    got = read_region(splice.segment.fd, at, wanted, position, not is_warm(conn, splice, position))
    if got < 0 and errno == EAGAIN:
        return GATHER_COLD
    if got <= 0:
        return GATHER_FAILED
    g.scratch_used += got
    g.size += got
    if not copy_all:
        g.vectors[g.vector_count].iov_base = at
        g.vectors[g.vector_count].iov_len = got
        g.vector_count += 1
    if got < left:
        if got < wanted:
            g.skip += got
            return GATHER_COLD
        return GATHER_FULL
    return 0


cdef void ask_for_warmth(conn_t *conn, splice_t *splice, int64_t skip) noexcept nogil:
    """Ask the cold reader to read the next bytes of a region into memory.

    The connection goes on when MAIL_WARM comes.
    """
    cdef warm_t *warm = <warm_t *>calloc(1, sizeof(warm_t))
    if warm == NULL:
        conn_close(conn, "memory is out")
        return
    warm.mail.kind = MAIL_WARM
    warm.mail.box = conn.processor.mailbox
    warm.conn = conn
    warm.segment = splice.segment
    segment_ref(warm.segment)
    warm.position = splice.position + skip
    warm.size = min(splice.size - skip, REGION_STEP)
    conn.warm = warm
    warm_ask(conn.processor.cold_reader, warm)


cdef const char *why_closed(slot_t *slot) noexcept nogil:
    """Return the reason for a slot that closes its connection, when its handler has given none."""
    if slot.api_key == API_PRODUCE and not slot.out.failed:
        return "a produce request with acks=0 that was refused"
    return "a request that could not be answered"


cdef void pass_regions(conn_t *conn, slot_t *slot) noexcept nogil:
    """Move past the regions that were sent, so that none is looked at again: a response may have very many."""
    cdef int64_t size
    while conn.passed < slot.splice_count:
        size = slot.splices[conn.passed].at + slot.splices[conn.passed].size
        if conn.passed:
            size -= slot.splices[conn.passed - 1].at
        if conn.sent - conn.passed_size < size:
            return
        conn.passed_size += size
        conn.passed += 1


cdef bint passed(conn_t *conn, int64_t size) noexcept nogil:
    """Note that `size` more bytes of the queue were sent. False: the connection is closed now."""
    cdef slot_t *slot = conn.slots
    cdef int64_t now_ns = 0
    conn.sent += size
    if size:
        conn.last_active_ms = conn.processor.now_ns // 1_000_000
    while slot != NULL and slot.state != SLOT_RUNNING:
        if slot.state == SLOT_CLOSE:
            if conn.wire.sealed != NULL:
                break
            conn_close(conn, conn.reason if conn.reason != NULL else why_closed(slot))
            return False
        if slot.state == SLOT_READY:
            if conn.sent < slot.size:
                pass_regions(conn, slot)
                break
            conn.sent -= slot.size
            conn.passed = 0
            conn.passed_size = 0
        if now_ns == 0:
            now_ns = monotonic_ns()
        slot_pop(conn, now_ns)
        conn.warm_segment = NULL
        slot = conn.slots
    if slot == NULL and (conn.ended or conn.refused) and conn.wire.sealed == NULL:
        conn_close(conn, NULL)
    return not conn.closing


cdef bint stuck(conn_t *conn) noexcept nogil:
    """Return whether to stop after a failed call on the socket. Closes the connection when the peer is gone."""
    if errno == EAGAIN:
        conn.blocked = True
    elif errno == EIO:
        conn_close(conn, "a file region to be sent cannot be read")
    elif errno != EINTR:
        conn_close(conn, NULL)
    else:
        return False
    return True


cdef void go_on_without_bytes(conn_t *conn, gather_t *g, int outcome) noexcept nogil:
    """Do what comes next when `gather` has collected no bytes and no region that can be sent."""
    if outcome == GATHER_COLD:
        ask_for_warmth(conn, g.splice, g.skip)
    elif outcome == GATHER_FAILED:
        conn_close(conn, "a file region to be sent cannot be read")
    else:
        # Nothing to send: there may be silent slots left, or one that closes the connection.
        passed(conn, 0)


cdef void send_plain(conn_t *conn) noexcept nogil:
    cdef gather_t g
    cdef int outcome
    cdef ssize_t sent
    cdef int64_t budget = SEND_TURN
    cdef int64_t size
    cdef int64_t resident
    while True:
        outcome = gather(conn, &g, False)
        if g.vector_count:
            # Not with MSG_MORE: the receiver wakes early, and the region's pages fill whole segments (measured).
            sent = send_vectors(conn.fd, g.vectors, g.vector_count)
        elif outcome == GATHER_REGION:
            size = min(g.splice.size - g.skip, REGION_STEP)
            if not is_warm(conn, g.splice, g.splice.position + g.skip):
                resident = resident_prefix(g.splice.segment.fd, g.splice.position + g.skip, size)
                if resident == 0:
                    ask_for_warmth(conn, g.splice, g.skip)
                    return
                size = resident
                note_warm(conn, g.splice.segment, g.splice.position + g.skip, resident)
            sent = send_region(conn.fd, g.splice.segment.fd, g.splice.position + g.skip, size)
            if sent == 0:
                conn_close(conn, "a file region to be sent is not in its file any more")
                return
        else:
            go_on_without_bytes(conn, &g, outcome)
            return
        if sent < 0:
            if stuck(conn):
                return
            continue
        if not passed(conn, sent):
            return
        if conn.slots == NULL or conn.slots.state == SLOT_RUNNING:
            return
        budget -= sent
        if budget <= 0:
            conn_dirty(conn)
            return


cdef int encrypt(conn_t *conn, int64_t size) noexcept with gil:
    """Encrypt the first `size` bytes of the scratch into conn.wire. -1: the transport failed."""
    try:
        wire_seal(&conn.wire, conn.transport, PyBytes_FromStringAndSize(<char *>conn.processor.send_scratch, size))
    except Exception:
        return -1
    return 0


cdef void send_encrypted(conn_t *conn) noexcept nogil:
    cdef gather_t g
    cdef int outcome
    cdef ssize_t sent
    cdef int64_t budget = SEND_TURN
    while True:
        if conn.wire.sealed == NULL:
            outcome = gather(conn, &g, True)
            if g.size:
                if encrypt(conn, g.size) < 0:
                    conn_close(conn, "its transport cannot encrypt")
                    return
                if not passed(conn, g.size):
                    return
            else:
                go_on_without_bytes(conn, &g, outcome)
                return
        while wire_has_rest(&conn.wire):
            sent = wire_send(&conn.wire, conn.fd)
            if sent >= 0:
                budget -= sent
            elif stuck(conn):
                return
        wire_drop(&conn.wire)
        if budget <= 0:
            conn_dirty(conn)
            return


cdef void send_ready(conn_t *conn) noexcept nogil:
    if conn.closing or conn.blocked or conn.warm != NULL:
        return
    if conn.transport == NULL:
        send_plain(conn)
    else:
        send_encrypted(conn)


cdef void send_dirty(processor_t *p) noexcept nogil:
    """Send to the connections that are dirty now. One that becomes dirty meanwhile waits for the next call."""
    cdef conn_t *last = p.dirty_tail
    cdef conn_t *conn
    while p.dirty != NULL:
        conn = take_dirty(p)
        send_ready(conn)
        if conn == last:
            return
