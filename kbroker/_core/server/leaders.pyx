"""Who leads a partition, for answers; see leaders.pxd."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t

from kbroker._core.server.peer cimport connection_of
from kbroker._core.wire.cursor cimport write_array_count, write_i32, write_string, write_uvarint


cdef object find_leader(Serving serving, PyObject *peer, conn_t *conn, object topic, object topic_id,
                        int partition_id, dict nodes):
    leader_of = serving.fetch_sessions.leader_of
    if leader_of is None:
        return None
    leader = leader_of(
        <object>peer if peer != NULL else connection_of(serving, conn), topic, topic_id, partition_id
    )
    if leader is not None and leader.host is not None:
        nodes[leader.node_id] = leader
    return leader


cdef void write_endpoints(writer_t *w, dict nodes) except *:
    cdef bytes host
    cdef bytes rack
    write_array_count(w, <int32_t>len(nodes), True)
    for leader in nodes.values():
        host = leader.host.encode()
        write_i32(w, leader.node_id)
        write_string(w, <const char *>host, <int32_t>len(host), True)
        write_i32(w, leader.port)
        if leader.rack is None:
            write_string(w, NULL, -1, True)
        else:
            rack = leader.rack.encode()
            write_string(w, <const char *>rack, <int32_t>len(rack), True)
        write_uvarint(w, 0)
