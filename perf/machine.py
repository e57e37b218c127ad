"""What the operating system says of a process and of this machine: CPU seconds, memory, cores."""

from __future__ import annotations

import mmap
import os
import platform
import time
from pathlib import Path

CPUCLOCK_SCHED = 2  #: the kind of clock in the low bits of a process clock id


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads of `pid`, those that have ended too, in seconds.

    It is the process's CPU clock (clock_getcpuclockid(3)), with nanoseconds; proc(5) has ticks of 10 ms.
    """
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


def thread_state(pid: int) -> str:
    """Return the state of the main thread of `pid`: R running or ready to run, S waiting, ... (proc(5)).

    It is empty when the process is gone. CPU seconds do not tell whether a thread waits: in a virtual machine they do
    not have the time that the host takes.
    """
    try:
        return stat_fields(pid)[0]
    except OSError:
        return ""


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat that follow the name; the state is the first."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def memory_mb(pid: int) -> float:
    """Return the anonymous resident memory of `pid` in MB. The page cache of mapped files is not counted."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def resident_mb(pid: int) -> float:
    """Return all resident memory of `pid` in MB, pages of shared libraries and files included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def touch_memory(size: int = 3 << 30) -> None:
    """Touch and free `size` bytes of memory that is new to the process.

    A run after it does not pay for pages that a virtual machine's host has taken back. Call it before every run that
    writes files: the first write to such a page costs thirty times the second. Where the host takes free pages back all
    the time (free page reporting), it helps for about a gigabyte and a second.
    """
    mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def describe() -> str:
    """Return one line about the machine, without names."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{os.cpu_count()} cores ({model}), {memory_gib:.0f} GiB, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d', time.gmtime())}"
    )
