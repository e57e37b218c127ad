"""Who leads a partition, for answers that name the current leader and its endpoint (KIP-951)."""

from cpython.object cimport PyObject

from kbroker._core.server.connection cimport conn_t
from kbroker._core.server.serving cimport Serving
from kbroker._core.wire.cursor cimport writer_t

cdef enum:
    LEADER_SIZE = 9              # bytes of a current leader: node id, epoch, no tagged fields

# The leader of a partition as FetchSessions.leader_of gives it, or None. `peer`: the Connection, if it is known; else
# this is the thread of the processor of `conn`. `nodes` gets the leader's endpoint under its node id.
cdef object find_leader(Serving serving, PyObject *peer, conn_t *conn, object topic, object topic_id,
                        int partition_id, dict nodes)
# Write the node_endpoints of an answer: the array of `nodes`, without its tag.
cdef void write_endpoints(writer_t *w, dict nodes) except *
