"""Sending on sockets without waiting."""

cdef extern from "<sys/uio.h>" nogil:
    ctypedef struct iovec "struct iovec":
        void *iov_base
        size_t iov_len

cdef extern from * nogil:
    """
    #include <sys/socket.h>
    #include <sys/uio.h>
    static inline ssize_t send_vectors(int fd, struct iovec *vectors, size_t count) {
        struct msghdr message = {.msg_iov = vectors, .msg_iovlen = count};
        if (count == 1)
            return send(fd, vectors->iov_base, vectors->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
        return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    """
    # Send what the socket takes now. Returns the bytes sent, or -1 with errno set.
    ssize_t send_vectors(int fd, iovec *vectors, size_t count)
