"""What the functions that serve a request need of its processor; see serving.pxd."""

import sys


cdef class Serving:
    """The part of a processor that serves requests."""


cdef void report(Serving serving, what, error) noexcept:
    try:
        error.add_note(f"in {what}, on {serving.name}")
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        pass                     # there is nobody left to tell
