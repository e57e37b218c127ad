"""Buffers of frames: kept ones are few, and go back whatever size they had."""

from __future__ import annotations

import struct
from pathlib import Path

from kbroker._core.receive_buffers import kept_buffers
from tests.kit.processors import ProcessorRig, wait_until


def test_a_few_large_buffers_are_kept_and_no_more(tmp_path: Path) -> None:
    with ProcessorRig(tmp_path / "logs") as rig:
        clients = [rig.connect() for _ in range(30)]
        for number, client in enumerate(clients):
            size = 100_000 * (number % 5 + 1) ** 3
            client.socket.sendall(struct.pack(">ihhih", size, 3, 1, number, -1) + bytes(size // 2))
        for client in clients:
            client.close()
        wait_until(lambda: rig.connection_count == 0, "the connections are gone")
        assert 1 <= kept_buffers() <= 8
