"""Sending and receiving on sockets without waiting."""

cdef extern from "<sys/uio.h>" nogil:
    ctypedef struct iovec "struct iovec":
        void *iov_base
        size_t iov_len

cdef enum:
    VECTORS = 64                 # pieces that one send_vectors is given at most

cdef extern from * nogil:
    """
    #include <sys/socket.h>
    #include <sys/uio.h>
    static inline ssize_t send_bytes(int fd, const void *data, size_t size) {
        return send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    static inline ssize_t send_vectors(int fd, struct iovec *vectors, size_t count) {
        struct msghdr message = {.msg_iov = vectors, .msg_iovlen = count};
        if (count == 1)
            return send_bytes(fd, vectors->iov_base, vectors->iov_len);
        return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    static inline ssize_t receive_bytes(int fd, void *data, size_t size) {
        return recv(fd, data, size, MSG_DONTWAIT);
    }
    static inline ssize_t peek_bytes(int fd, void *data, size_t size) {
        return recv(fd, data, size, MSG_DONTWAIT | MSG_PEEK);
    }
    """
    # Send what the socket takes now. Returns the bytes sent, or -1 with errno set.
    ssize_t send_bytes(int fd, const void *data, size_t size)
    ssize_t send_vectors(int fd, iovec *vectors, size_t count)
    # Receive what has come. Returns the bytes received, 0 at the end of the stream, or -1 with errno set.
    ssize_t receive_bytes(int fd, void *data, size_t size)
    # The same, but the bytes stay where they are.
    ssize_t peek_bytes(int fd, void *data, size_t size)
