"""Requests between brokers while the handlers are blocked and their channel is full."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._core.server.processor import Processor
from kbroker._core.server.request import Request
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.protocol.messages import Message
from kbroker.server.control_lanes import ControlLanes
from kbroker.server.dispatch import ROUTES, Lane
from tests.kit.clients.wire import WireClient
from tests.kit.parts.processors import ProcessorRig

BETWEEN_BROKERS = [api_key for api_key, route in ROUTES.items() if route.lane is not Lane.HANDLERS]


class BlockedRig(ProcessorRig):
    """One processor whose one handler is blocked, and whose channel is full; requests between brokers have lanes."""

    def __init__(self, directory: Path):
        self.gate = threading.Event()
        self.lanes = ControlLanes()
        super().__init__(directory, handlers=1, queue_size=2, handle=self._wait)

    def _wait(self, request: Request) -> None:
        self.gate.wait(60)
        request.respond(b"served")

    def _on_request(self, request: Request, processor: Processor) -> bool | None:
        if request.api_key in BETWEEN_BROKERS:
            return self.lanes.channels[ROUTES[ApiKey(request.api_key)].lane].enqueue(request, processor)
        return super()._on_request(request, processor)

    def block(self) -> list[WireClient]:
        """Send more than there is room for. Returns the clients, none of which is answered."""
        clients = [self.connect() for _ in range(5)]
        for client in clients:
            client.send_raw(frame(ApiKey.LIST_GROUPS, M.ListGroupsRequest()))
        probe = self.connect()
        probe.send_raw(frame(ApiKey.LIST_GROUPS, M.ListGroupsRequest()))
        while len(self.channel) < 2:
            self.gate.wait(0.01)
        return [*clients, probe]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BlockedRig]:
    rig = BlockedRig(tmp_path)
    rig.lanes.start(lambda request: request.respond(b"lane"))
    with rig:
        yield rig
        rig.gate.set()
        rig.stop()
        assert rig.lanes.stop(10)


def frame(api_key: ApiKey, message: Message, version: int = 0) -> bytes:
    client_id = b"" if (api_key, version) == (ApiKey.CONTROLLED_SHUTDOWN, 0) else struct.pack(">h", -1)
    tags = b"\0" if message.FLEXIBLE_FROM is not None and version >= message.FLEXIBLE_FROM else b""
    body = struct.pack(">hhi", api_key, version, 7) + client_id + tags + message.encode(version)
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("api_key", BETWEEN_BROKERS, ids=lambda key: key.label)
def test_a_request_between_brokers_is_served_while_the_request_channel_is_full(
    rig: BlockedRig, api_key: ApiKey
) -> None:
    broker = rig.connect()  # its connection is there before
    waiting = rig.block()
    for client in (broker, rig.connect()):
        for _ in range(3):
            client.send_raw(frame(api_key, getattr(M, f"{api_key.label}Request")()))
            assert client.read_frame()[-4:] == b"lane"
    rig.gate.set()
    assert all(client.read_frame()[-6:] == b"served" for client in waiting)


def test_a_request_that_comes_in_pieces_is_served_too(rig: BlockedRig) -> None:
    waiting = rig.block()
    broker = rig.connect()
    sent = frame(ApiKey.STOP_REPLICA, M.StopReplicaRequest())
    for at in range(len(sent)):
        broker.send_raw(sent[at : at + 1])
    assert broker.read_frame()[-4:] == b"lane"
    rig.gate.set()
    assert all(client.read_frame()[-6:] == b"served" for client in waiting)


def test_requests_of_clients_wait_until_there_is_room_on_whatever_connection(rig: BlockedRig) -> None:
    waiting = rig.block()
    mixed = rig.connect()
    mixed.send_raw(frame(ApiKey.UPDATE_METADATA, M.UpdateMetadataRequest()))
    assert mixed.read_frame()[-4:] == b"lane"
    mixed.send_raw(frame(ApiKey.LIST_GROUPS, M.ListGroupsRequest()))
    other = rig.connect()
    other.send_raw(frame(ApiKey.ALTER_PARTITION, M.AlterPartitionRequest()))
    assert other.read_frame()[-4:] == b"lane"  # the processor has had its turns
    assert len(rig.channel) == 2
    rig.gate.set()
    assert mixed.read_frame()[-6:] == b"served"
    assert all(client.read_frame()[-6:] == b"served" for client in waiting)


def test_every_request_between_brokers_has_a_lane() -> None:
    keys = {4, 5, 6, 7, 56, 67}
    assert set(BETWEEN_BROKERS) == keys <= set(SERVED)
