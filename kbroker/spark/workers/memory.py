"""The memory of a Python worker: what it keeps between two tasks, so that the next task does not pay for it again."""

from __future__ import annotations

import ctypes
import gc
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  #: malloc.h
FREED_BYTES = 32 << 20


def keep_what_is_loaded() -> None:
    """Exempt from garbage collection what a worker has loaded for its first task. Later calls do nothing.

    A worker that is used again (pyspark.daemon) collects garbage after each task, before it begins the next one. That
    takes 20 ms if it looks at all modules, which stay as long as the worker does.
    """
    if "SPARK_REUSE_WORKER" in os.environ and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def keep_freed_memory() -> None:
    """Let glibc's malloc keep the memory that a few dozen batches free at once, for the next batches.

    A fresh page costs more than what is written into it. Other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(M_MMAP_THRESHOLD, FREED_BYTES)
    mallopt(M_TRIM_THRESHOLD, 2 * FREED_BYTES)
