"""The core frees what it has allocated: LeakSanitizer checks a process that has served and stopped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kbroker

ROOT = Path(kbroker.__file__).parent.parent
SERVED = """
import gc, struct, sys, threading
from pathlib import Path
from kbroker.protocol.api import ApiKey
from tests.kit.logs.home import batch_of
from tests.kit.parts.processors import ProcessorRig, produce_request

gate, arrived = threading.Event(), threading.Event()

def hang(request):
    arrived.set()
    gate.wait(20)
    request.respond(b"too late")

def serve(folder):
    rig = ProcessorRig(folder, handle=hang)
    rig.create("orders")
    with rig, rig.connect() as client, rig.connect() as waiting, rig.connect() as refused, rig.connect() as slow, \\
            rig.connect() as old:
        client.call(ApiKey.PRODUCE, 9, produce_request("orders", batch_of([b"x"])))
        client.call(ApiKey.FETCH, 11, rig.fetch_request("orders", 0, session_epoch=0))
        old_request = rig.fetch_request("orders", 1, max_wait_ms=60_000)
        old_request.topics += rig.fetch_request("a topic that nobody has made", 0).topics
        asked = old.send(ApiKey.FETCH, 3, old_request)
        client.call(ApiKey.PRODUCE, 9, produce_request("orders", batch_of([b"y"])))
        old.receive(ApiKey.FETCH, 3, asked)
        waiting.send(ApiKey.FETCH, 11, rig.fetch_request("orders", 2, max_wait_ms=60_000))
        refused.send_raw(struct.pack(">i", -1))
        assert refused.is_closed()
        slow.send_raw(struct.pack(">ihhih", 10, 3, 1, 1, -1))
        assert arrived.wait(20)
        rig.processors[0].stop(0.05)
        rig.threads[1].join(20)
        gate.set()

serve(Path(sys.argv[1]))
gc.collect()
"""


def sanitizer() -> str:
    """Return the library to load before the interpreter: that of the build under test, if it has one."""
    if loaded := os.environ.get("LD_PRELOAD"):
        return loaded
    if shutil.which("gcc") is None:
        return ""
    found = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
    return found if Path(found).is_absolute() else ""


def test_nothing_of_the_core_is_left_when_a_processor_has_stopped_under_its_connections(tmp_path: Path) -> None:
    """A request that was answered after its processor had ended once left its slot behind."""
    library = sanitizer()
    if "asan" not in library:
        pytest.skip("gcc's address sanitizer is not installed")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=1",
    }
    command = [sys.executable, "-c", SERVED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    leaks = [found for found in re.split(r"\n\n", done.stderr) if "leak of" in found and "kbroker/_core" in found]
    assert not leaks, "\n".join(leaks)
