"""Declarations of epoll, with which processors (server) and pumps (client) wait for their sockets."""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from * nogil:
    """
    #include <sys/epoll.h>
    #include <unistd.h>
    """
    ctypedef union epoll_data_t:
        void *ptr
        uint64_t u64
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    uint32_t EPOLLIN
    uint32_t EPOLLOUT
    uint32_t EPOLLRDHUP
    uint32_t EPOLLERR
    uint32_t EPOLLHUP
    uint32_t EPOLLET
    int EPOLL_CTL_ADD
    int EPOLL_CTL_DEL
    int EPOLL_CTL_MOD
    int EPOLL_CLOEXEC
    int epoll_create1(int flags)
    int epoll_wait(int epoll_fd, epoll_event *events, int count, int timeout_ms)
    int close(int fd)
