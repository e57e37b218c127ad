"""A connection as Python sees it; see peer.pxd."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from kbroker.model import bracketed

cdef extern from * nogil:
    """
    #include <arpa/inet.h>
    #include <netinet/in.h>
    #include <string.h>
    #include <sys/socket.h>
    /* Writes the numeric host of one end of a socket, and returns its port; -1: there is no address. An IPv4 address
       that is mapped into IPv6 comes as IPv4. */
    static int socket_address(int fd, int remote, char *host, size_t size) {
        struct sockaddr_storage address;
        socklen_t length = sizeof address;
        int failed = remote ? getpeername(fd, (struct sockaddr *)&address, &length)
                            : getsockname(fd, (struct sockaddr *)&address, &length);
        host[0] = 0;
        if (failed)
            return -1;
        if (address.ss_family == AF_INET) {
            struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
            inet_ntop(AF_INET, &v4->sin_addr, host, size);
            return ntohs(v4->sin_port);
        }
        if (address.ss_family == AF_INET6) {
            struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
            if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
                inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, host, size);
            else
                inet_ntop(AF_INET6, &v6->sin6_addr, host, size);
            return ntohs(v6->sin6_port);
        }
        return -1;
    }
    """
    int socket_address(int fd, bint remote, char *host, size_t size)

cdef enum:
    ADDRESS_SIZE = 64


cdef class Connection:
    """A client's connection: its addresses, its principal, and what handlers remember for it."""

    def __cinit__(self, int64_t id, str listener, int fd):
        cdef char[ADDRESS_SIZE] host
        self.id = id
        self.listener = listener
        self.peer_port = socket_address(fd, True, host, ADDRESS_SIZE)
        self.peer_host = (<bytes>host).decode()
        self.local_port = socket_address(fd, False, host, ADDRESS_SIZE)
        self.local_host = (<bytes>host).decode()
        self.principal = "User:ANONYMOUS"

    @property
    def session(self) -> dict:
        """A dict in which handlers keep values for this connection until it is closed."""
        if self._session is None:
            self._session = {}
        return self._session

    @property
    def peer(self) -> str:
        """The client's address for people: 10.0.0.7:51234 or [fe80::1]:51234."""
        return f"{bracketed(self.peer_host)}:{self.peer_port}"

    def __repr__(self) -> str:
        return f"<Connection {self.id} from {self.peer} on {self.listener}>"


cdef Connection connection_of(Serving serving, conn_t *conn):
    cdef Connection connection
    if conn.info == NULL:
        connection = Connection.__new__(Connection, conn.id, serving.listeners[conn.listener], conn.fd)
        connection.token = conn.token
        Py_INCREF(connection)
        conn.info = <PyObject *>connection
    return <Connection>conn.info
