"""A log directory, shared by its partitions."""

from libc.stdint cimport int64_t

from kbroker._core.log.partition cimport log_dir_t

cdef class LogDirectory:
    """A log directory's flush queue and health, shared by its partitions."""
    cdef log_dir_t dir
    cdef readonly str path
    cdef int64_t full_logged_ns# monotonic; when the log last had a line about a full disk; 0: never
    cdef object on_offline     # callable(reason) or None; called once, on the thread that saw the failure
