"""How responses leave: file regions, slow readers, cold data, and connections through a transport."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.api import ApiKey
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.logs.home import batch_of
from tests.kit.parts.processors import ProcessorRig, produce_request, wait_until
from tests.kit.parts.stub_transport import BrokenTransport, XorTransport, scrambled
from tests.kit.threads import run_all

SIZES = [0, 1, 100, 5_000, 31_000, 33_000, 70_000, 300_000, 900_000]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ProcessorRig]:
    with ProcessorRig(
        tmp_path / "logs",
        handle=lambda request: request.respond(bytes(request.body)),
        listeners=("PLAINTEXT", "STUB", "BROKEN"),
        transports={"STUB": XorTransport, "BROKEN": BrokenTransport},
    ) as rig:
        rig.create("orders", 3)
        yield rig


def fill(rig: ProcessorRig, partition_id: int = 0, sizes: list[int] = SIZES) -> bytes:
    """Append batches of these value sizes; return what the log holds then."""
    log = rig.logs.get(TopicPartition("orders", partition_id))
    assert log is not None
    for number, size in enumerate(sizes):
        log.append(batch_of([bytes([number % 251]) * size]))
    return (Path(rig.directory) / f"orders-{partition_id}" / f"{0:020}.log").read_bytes()


def forget(rig: ProcessorRig, partition_id: int = 0) -> None:
    """Drop the partition's file from the page cache."""
    path = Path(rig.directory) / f"orders-{partition_id}" / f"{0:020}.log"
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def fetched(client: WireClient, rig: ProcessorRig, **fields: object) -> bytes:
    request = rig.fetch_request("orders", 0, **({"max_bytes": 8 << 20} | fields))  # type: ignore[arg-type]
    part = client.call(ApiKey.FETCH, 11, request).responses[0].partitions[0]
    assert part.error_code == 0
    return bytes(part.records)


@pytest.mark.parametrize("listener", [0, 1])
@pytest.mark.parametrize("max_bytes", [1, 3_000, 20_000, 33_000, 100_000, 8 << 20])
def test_a_fetch_gets_exactly_the_bytes_of_the_log(rig: ProcessorRig, listener: int, max_bytes: int) -> None:
    data = fill(rig)
    client = rig.connect(listener=listener)
    if listener:
        scrambled(client)
    got = fetched(client, rig, max_bytes=max_bytes)
    assert got == data[: len(got)]
    assert len(got) == min(max(max_bytes, len(batch_of([b""]))), len(data))


@pytest.mark.parametrize("listener", [0, 1])
def test_regions_of_several_partitions_and_other_responses_keep_their_order(rig: ProcessorRig, listener: int) -> None:
    data = [fill(rig, number) for number in range(3)]
    client = rig.connect(listener=listener)
    if listener:
        scrambled(client)
    correlation_ids = []
    for turn in range(6):
        request = rig.fetch_request("orders", 0, partition_id=turn % 3, max_bytes=8 << 20)
        correlation_ids.append(client.send(ApiKey.FETCH, 11, request))
        correlation_ids.append(client.send(ApiKey.PRODUCE, 7, produce_request("nowhere", batch_of([b"x"]))))
    for turn in range(6):
        part = client.receive(ApiKey.FETCH, 11, correlation_ids[2 * turn]).responses[0].partitions[0]
        assert part.records == data[turn % 3]
        client.receive(ApiKey.PRODUCE, 7, correlation_ids[2 * turn + 1])


@pytest.mark.parametrize("listener", [0, 1])
def test_a_reader_of_one_byte_after_the_other_disturbs_nobody(rig: ProcessorRig, listener: int) -> None:
    data = fill(rig, sizes=[30_000] * 300)
    slow, quick = rig.connect(listener=listener, small_buffers=True), rig.connect()
    plain = slow.socket
    if listener:
        scrambled(slow)
    slow.send(ApiKey.FETCH, 11, rig.fetch_request("orders", 0, max_bytes=8 << 20))
    got = b"".join(slow._read(1) for _ in range(2000))
    assert fetched(quick, rig) == data[: 8 << 20]
    rest = slow._read(int.from_bytes(got[:4], "big") + 4 - len(got))
    assert data[: 8 << 20] in got + rest
    plain.close()


@pytest.mark.parametrize("listener, size", [(0, 10), (1, 2000)])
def test_of_many_regions_those_that_have_left_are_not_looked_at_again(
    rig: ProcessorRig, listener: int, size: int
) -> None:
    """A call on the socket takes some regions; each call once began at the first of all."""
    count = 200
    rig.create("many", count)
    for number in range(count):
        log = rig.logs.get(TopicPartition("many", number))
        assert log is not None
        log.append(batch_of([bytes(size)]))
    client = rig.connect(listener=listener)
    if listener:
        scrambled(client)
    request = rig.fetch_request("many", 0)
    request.topics[0].partitions = [
        rig.fetch_request("many", 0, number).topics[0].partitions[0] for number in range(count)
    ]
    before = rig.processors[0].looked_at
    answer = client.call(ApiKey.FETCH, 11, request)
    stored = (rig.directory / "many-0" / f"{0:020}.log").read_bytes()
    assert [part.records for part in answer.responses[0].partitions] == [stored] * count
    assert count < rig.processors[0].looked_at - before < 2 * count


def test_cold_data_is_read_by_another_thread(rig: ProcessorRig) -> None:
    data = fill(rig, sizes=[900_000] * 6)
    forget(rig)
    client = rig.connect()
    assert fetched(client, rig) == data


def test_data_that_gets_cold_while_it_is_sent_is_warmed_again(rig: ProcessorRig) -> None:
    """The file is dropped from the page cache again and again while it is sent; no other client has to wait for it."""
    data = fill(rig, sizes=[900_000] * 30)
    client, other = rig.connect(small_buffers=True), rig.connect()
    is_done = threading.Event()

    def keep_forgetting() -> None:
        while not is_done.is_set():
            forget(rig)

    thread = threading.Thread(target=keep_forgetting)
    thread.start()
    try:
        for _ in range(50):
            client.send(ApiKey.FETCH, 11, rig.fetch_request("orders", 0, max_bytes=50 << 20))
            start = client._read(1000)
            assert data in start + client._read(int.from_bytes(start[:4], "big") + 4 - 1000)
            other.call(ApiKey.PRODUCE, 7, produce_request("orders", batch_of([b"x"]), partition_id=1))
            if rig.cold_reader.regions > 0 or still_resident(rig):
                break
        else:
            pytest.fail("the cold reader was never asked")
    finally:
        is_done.set()
        thread.join()


def still_resident(rig: ProcessorRig) -> bool:
    """Return whether the file system keeps what it is told to drop, as tmpfs does."""
    forget(rig)
    path = Path(rig.directory) / "orders-0" / f"{0:020}.log"
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(1)], 5_000_000, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def test_a_client_that_goes_away_in_the_middle_of_a_region_leaves_nothing(rig: ProcessorRig) -> None:
    fill(rig, sizes=[900_000] * 8)
    for number in range(20):
        client = rig.connect(small_buffers=True)
        client.send(ApiKey.FETCH, 11, rig.fetch_request("orders", 0, max_bytes=8 << 20))
        client._read(100)
        if number % 2:
            forget(rig)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    wait_until(lambda: rig.connection_count == 0, "the connections are gone")


def test_a_long_poll_is_woken_by_an_append_of_another_processor(tmp_path: Path) -> None:
    with ProcessorRig(tmp_path / "logs", processors=2) as rig:
        rig.create("orders")
        producer = rig.connect(0)
        consumers = [rig.connect(number % 2) for number in range(20)]
        for turn in range(30):
            for consumer in consumers:
                consumer.send(ApiKey.FETCH, 11, rig.fetch_request("orders", turn, max_wait_ms=60_000))
            producer.call(ApiKey.PRODUCE, 7, produce_request("orders", batch_of([b"%d" % turn])))
            for consumer in consumers:
                part = consumer.receive(ApiKey.FETCH, 11, consumer.correlation_id).responses[0].partitions[0]
                assert b"%d" % turn in part.records


def test_a_parked_fetch_of_a_client_that_reset_its_connection_is_given_up(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(10)]
    for client in clients:
        client.send(ApiKey.FETCH, 11, rig.fetch_request("orders", 0, max_wait_ms=600_000))
    wait_until(lambda: rig.logs.logs()[0].state.fetches >= 0, "they are parked")
    for client in clients:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    wait_until(lambda: rig.connection_count == 0, "the connections are gone")
    probe = rig.connect()
    probe.call(ApiKey.PRODUCE, 7, produce_request("orders", batch_of([b"x"])))


# --- transports -----------------------------------------------------------------------------------------


def test_everything_works_through_a_transport(rig: ProcessorRig) -> None:
    client = scrambled(rig.connect(listener=1))
    data = b""
    for number, size in enumerate(SIZES):
        batch = batch_of([bytes([number]) * size])
        answer = client.call(ApiKey.PRODUCE, 7, produce_request("orders", batch))
        assert answer.responses[0].partition_responses[0].base_offset == number
        data += number.to_bytes(8, "big") + batch[8:12] + bytes(4) + batch[16:]
    assert fetched(client, rig) == data
    assert 0 < XorTransport.largest_piece <= 64 << 10


def test_a_transport_sees_requests_in_whatever_pieces_they_come(rig: ProcessorRig) -> None:
    client = scrambled(rig.connect(listener=1))
    frame = struct.pack(">ihhih", 18, 3, 1, 7, -1) + b"somebody"
    for size in (1, 5, 18 + 4):
        for at in range(0, len(frame), size):
            client.socket.sendall(frame[at : at + size])
        assert client.read_frame() == struct.pack(">i", 7) + b"somebody"


def test_a_transport_that_refuses_closes_its_connection(rig: ProcessorRig) -> None:
    client, other = rig.connect(listener=2), rig.connect()
    client.socket.sendall(b"hello")
    with pytest.raises(ConnectionClosed):
        client.read_frame()
    assert rig.why_closed() == ["its transport cannot decrypt"]
    other.call(ApiKey.PRODUCE, 7, produce_request("orders", batch_of([b"x"])))


def test_readers_and_writers_share_two_processors(tmp_path: Path) -> None:
    """Consumers read what many producers write, whichever processor serves them."""
    with ProcessorRig(tmp_path / "logs", processors=2) as rig:
        rig.create("orders", 3)
        expected = [b"%d-%d" % (producer, number) for producer in range(6) for number in range(200)]
        seen: list[bytes] = []
        lock = threading.Lock()

        def produce(producer: int) -> None:
            client = rig.connect()
            for number in range(200):
                batch = batch_of([b"%d-%d" % (producer, number)])
                client.send(ApiKey.PRODUCE, 7, produce_request("orders", batch, partition_id=producer % 3))
            for _ in range(200):
                client.read_frame()

        def consume(partition_id: int) -> None:
            from kbroker.protocol.records import read_batches

            client = rig.connect()
            values: list[bytes] = []
            while len(values) < 400:
                request = rig.fetch_request("orders", len(values), partition_id=partition_id, max_wait_ms=10_000)
                part = client.call(ApiKey.FETCH, 11, request).responses[0].partitions[0]
                for batch in read_batches(bytes(part.records)):
                    values += [record.value for record in batch.records() if record.offset >= len(values)]
            with lock:
                seen.extend(values)

        run_all(*(partial(produce, each) for each in range(6)), *(partial(consume, each) for each in range(3)))
        assert sorted(seen) == sorted(expected)
