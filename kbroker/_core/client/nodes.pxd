"""The open socket of each broker that a pump's engines may use, and the brokers to which engines wait for a socket.

Everything here is for the pump's thread only.
"""

from libc.stdint cimport int32_t
from libc.stdlib cimport free

from kbroker._core.base.arrays cimport with_room
from kbroker._core.client.socket cimport client_socket_t

ctypedef struct client_nodes_t:
    client_socket_t **opened
    int32_t opened_count
    int32_t opened_capacity
    int32_t *wanted              # nodes without a socket that an engine asked for; Python knows of the first `told`
    int32_t wanted_count
    int32_t wanted_capacity
    int32_t told


cdef inline client_socket_t *nodes_find(client_nodes_t *nodes, int32_t node_id) noexcept nogil:
    cdef int32_t i
    for i in range(nodes.opened_count):
        if nodes.opened[i].node_id == node_id:
            return nodes.opened[i]
    return NULL


cdef inline bint nodes_put(client_nodes_t *nodes, client_socket_t *socket) noexcept nogil:
    """Make `socket` the one that engines use for its node. Return False if memory is out."""
    cdef void *grown = with_room(nodes.opened, nodes.opened_count, &nodes.opened_capacity, sizeof(client_socket_t *))
    if grown == NULL:
        return False
    nodes.opened = <client_socket_t **>grown
    nodes.opened[nodes.opened_count] = socket
    nodes.opened_count += 1
    return True


cdef inline void nodes_forget(client_nodes_t *nodes, client_socket_t *socket) noexcept nogil:
    """Remove `socket` from the open sockets, if it is among them."""
    cdef int32_t i
    for i in range(nodes.opened_count):
        if nodes.opened[i] == socket:
            nodes.opened_count -= 1
            nodes.opened[i] = nodes.opened[nodes.opened_count]
            return


cdef inline bint nodes_want(client_nodes_t *nodes, int32_t node_id) noexcept nogil:
    """Note that an engine wants a socket of the node. Return False if that was known already, or if memory is out."""
    cdef int32_t i
    cdef void *grown
    for i in range(nodes.wanted_count):
        if nodes.wanted[i] == node_id:
            return False
    grown = with_room(nodes.wanted, nodes.wanted_count, &nodes.wanted_capacity, sizeof(int32_t))
    if grown == NULL:
        return False
    nodes.wanted = <int32_t *>grown
    nodes.wanted[nodes.wanted_count] = node_id
    nodes.wanted_count += 1
    return True


cdef inline void nodes_unwant(client_nodes_t *nodes, int32_t node_id) noexcept nogil:
    cdef int32_t i
    for i in range(nodes.wanted_count):
        if nodes.wanted[i] == node_id:
            nodes.wanted_count -= 1
            if i < nodes.told:
                nodes.told -= 1
                nodes.wanted[i] = nodes.wanted[nodes.told]
                i = nodes.told
            nodes.wanted[i] = nodes.wanted[nodes.wanted_count]
            return


cdef inline void nodes_free(client_nodes_t *nodes) noexcept nogil:
    free(nodes.opened)
    free(nodes.wanted)
