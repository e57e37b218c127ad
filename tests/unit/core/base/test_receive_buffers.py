"""Buffers of frames: kept ones are few, and go back whatever size they had."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

from kbroker._core.base.receive_buffers import kept_buffers
from tests.kit.parts.processors import ProcessorRig, wait_until


def test_a_few_large_buffers_are_kept_and_no_more(tmp_path: Path) -> None:
    with ProcessorRig(tmp_path / "logs") as rig:
        clients = [rig.connect() for _ in range(30)]
        for number, client in enumerate(clients):
            size = 100_000 * (number % 5 + 1) ** 3
            client.socket.sendall(struct.pack(">ihhih", size, 3, 1, number, -1) + bytes(size // 2))
        for client in clients:
            client.close()
        wait_until(lambda: rig.connection_count == 0, "the connections are gone")
        assert 1 <= kept_buffers() <= 16


#: In a process of its own, where nothing else has a consumer.
ONE_CONSUMER = """
from kbroker._core.client.consumer.fetch import FetchEngine
from kbroker._core.client.consumer.batches import read_chunk
from kbroker._core.base.receive_buffers import kept_bytes

def use(*sizes):
    chunks = [read_chunk("t", 0, bytes(size), None) for size in sizes]
    assert all(chunk.error is not None for chunk in chunks)

use(5 << 20)
assert kept_bytes() == 0
engine = FetchEngine(None, queued_max_bytes=16 << 20)
use(3 << 20, 2 << 20)
assert kept_bytes() == 5 << 20
use(3 << 20, 2 << 20)  # these are they
assert kept_bytes() == 5 << 20
use(5 << 20)  # in the place of the smallest
assert kept_bytes() == 8 << 20
use(9 << 20)
assert kept_bytes() == 8 << 20
del engine
assert kept_bytes() == 0
"""


def test_larger_buffers_are_kept_while_a_consumer_lives_up_to_half_of_what_it_queues() -> None:
    subprocess.run([sys.executable, "-c", ONE_CONSUMER], check=True, timeout=60)
