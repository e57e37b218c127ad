"""Records what real clients send, for the corpus of the target `frames`.

    python -m tests.fuzz.record_frames [client...]      the clients of tests/compat; writes corpus/frames-recorded.hex

A proxy stands between the client and a broker that advertises the proxy's address. Kept are the smallest frame of each
API and version, and one whole conversation of a group member of each client. To be run again when clients are added.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from kbroker.protocol.api import ApiKey
from tests.compat.clients import CLIENTS, Client
from tests.fuzz.conversation import packed
from tests.fuzz.target import CORPUS
from tests.kit.brokers.process import BrokerProcess
from tests.kit.proxies.dropping import DroppingProxy, Pair

RECORDED = CORPUS / "frames-recorded.hex"
LARGEST_FRAME = 1500
LARGEST_CONVERSATION = 3000
GROUP_COUNT = 20_000
"""Enough for a second member to join before everything is read."""


class RecordingProxy(DroppingProxy):
    """Keeps the frames of each connection, in the order of its connections."""

    def __init__(self, target_port: int):
        super().__init__(target_port)
        self._sent: dict[Pair, bytearray] = {}

    def on_sent(self, pair: Pair, data: bytes) -> None:
        self._sent.setdefault(pair, bytearray()).extend(data)

    @property
    def connections(self) -> list[list[bytes]]:
        return [list(frames_in(sent)) for sent in self._sent.values()]


def frames_in(sent: bytes) -> Iterator[bytes]:
    """Yield the whole frames, without their sizes."""
    at = 0
    while len(sent) >= at + 4 + (size := int.from_bytes(sent[at : at + 4])):
        yield bytes(sent[at + 4 : at + 4 + size])
        at += 4 + size


def converse(client: Client, bootstrap: str) -> None:
    """A bit of everything that the client can do."""
    common = {"bootstrap": bootstrap, "topic": "recorded"}
    produce = {
        **common,
        "first": 0,
        "count": 60,
        "size": 20,
        "headers": True,
        "nulls": False,
        "acks": -1,
        "pause_ms": 0,
    }
    for codec in client.codecs:
        client.run("produce", **produce, codec=codec)
    client.run("produce", **{**produce, "acks": 0, "headers": False}, codec="none")
    if "group" not in client.lacks:
        client.run("produce", **{**produce, "count": GROUP_COUNT, "headers": False}, codec="none")
        group = {"group": f"group-{client.name}", "count": GROUP_COUNT, "assignor": None, "static": False}
        client.run("group", **common, **group, timeout_s=60)
    if "seek" not in client.lacks:
        client.run("seek", **common, partition=0, offset=3, timestamp_ms=0)
    if "admin" not in client.lacks:
        client.run("admin", bootstrap=bootstrap, prefix=f"admin-{client.name}")


def record(client: Client) -> list[list[bytes]]:
    broker = BrokerProcess({"num.partitions": 2})
    with RecordingProxy(broker.port) as proxy:
        broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        with broker:
            converse(client, f"127.0.0.1:{proxy.port}")
        return proxy.connections


def lines_of(client: str, connections: list[list[bytes]], smallest: dict[tuple[int, int], int]) -> Iterable[str]:
    """Frames of API versions that nobody has sent so small yet, and the longest conversation that fits."""
    for frame in sorted((frame for frames in connections for frame in frames), key=len):
        api = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
        if len(frame) <= LARGEST_FRAME and api not in smallest:
            smallest[api] = len(frame)
            yield f"{packed([frame]).hex()} # {client}: {ApiKey(api[0]).label} {api[1]}"
    best: list[bytes] = []
    for frames in connections:
        if not any(int.from_bytes(frame[:2]) == ApiKey.JOIN_GROUP for frame in frames):
            continue
        kept: list[bytes] = []
        for frame in frames:
            again = sum(other[:4] == frame[:4] for other in kept)
            if again < 2 and sum(map(len, kept)) + len(frame) <= LARGEST_CONVERSATION:
                kept.append(frame)
        best = max(best, kept, key=len)
    if best:
        yield f"{packed(best).hex()} # {client}: a member's conversation"


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.fuzz.record_frames", description=__doc__.partition("\n")[0])
    parser.add_argument("clients", nargs="*", help=", ".join(client.name for client in CLIENTS))
    chosen = parser.parse_args().clients
    smallest: dict[tuple[int, int], int] = {}
    lines: list[str] = []
    for client in CLIENTS:
        if not chosen or client.name in chosen:
            try:
                lines += lines_of(client.name, record(client), smallest)
            except (AssertionError, OSError) as error:
                print(f"{client.name} is left out: {error}")
    RECORDED.write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} inputs, {RECORDED.stat().st_size} bytes")


if __name__ == "__main__":
    main()
