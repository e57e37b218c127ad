"""What a worker of Spark keeps from task to task."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kbroker._core.base import build_info

COLLECTED = """
import gc
from kbroker.spark.workers.kept_clients import KeptClients
clients = KeptClients(dict, dict.clear, dict.clear)
counts = []
for _ in range(2):
    with clients.lend({"bootstrap.servers": "a:1"}):
        pass
    counts.append(gc.get_freeze_count())
print(*counts)
"""


def frozen(**environment: str) -> list[int]:
    """How many objects are after the first task of a process, and after the second."""
    command = [sys.executable, "-c", COLLECTED]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=60, check=True)
    return list(map(int, done.stdout.split()))


def test_what_is_loaded_is_never_looked_at_again_in_a_worker_that_is_used_again() -> None:
    first, second = frozen(SPARK_REUSE_WORKER="1")
    assert first > 1000
    assert second <= first


def test_garbage_of_other_processes_is_collected_as_ever() -> None:
    assert frozen() == [0, 0]


FAULTS = """
import resource, sys
from kbroker.spark.workers.memory import keep_freed_memory
if "kept" in sys.argv:
    keep_freed_memory()
pieces = []
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [b"x" * (1 << 20) for _ in range(16)]
    pieces = []
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*arguments: str) -> int:
    """Return the page faults of taking 16 MiB again that were given back before."""
    done = subprocess.run([sys.executable, "-c", FAULTS, *arguments], capture_output=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(build_info.BUILD == "asan", reason="its malloc is another")
def test_memory_that_was_given_back_is_taken_again() -> None:
    assert page_faults() > 1000
    assert page_faults("kept") < 100
