"""What a Produce may cost others: a handler appends many batches, and the memory for them is bounded."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import encode_batch
from kbroker.server.batch_compression import inflate
from tests.kit.parts.processors import ProcessorRig


def produced(rig: ProcessorRig, batch: bytes, count: int) -> list[int]:
    """Produce a batch to each of `count` partitions of a topic; return the error codes."""
    parts = [M.ProduceRequest.PartitionProduceData(index=number % 4, records=batch) for number in range(count)]
    topics = [M.ProduceRequest.TopicProduceData(name="orders", partition_data=parts)]
    with rig.connect() as client:
        request = M.ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)
        answer = client.call(ApiKey.PRODUCE, 9, request)
    return [part.error_code for part in answer.responses[0].partition_responses]


def noted(rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the correlation ids of the requests that a handler gets."""
    enqueue = rig.channel.enqueue
    handed_over: list[int] = []

    def note(request: Any, processor: Any) -> bool:
        handed_over.append(request.correlation_id)
        return enqueue(request, processor)

    monkeypatch.setattr(rig.channel, "enqueue", note)
    return handed_over


@pytest.mark.parametrize("count, handed", [(400, 0), (600, 1)])
def test_many_batches_are_not_appended_by_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, handed: int
) -> None:
    with ProcessorRig(tmp_path) as rig:
        rig.create("orders", 4)
        handed_over = noted(rig, monkeypatch)
        produced(rig, encode_batch([(1, None, b"v")]), 4)  # opens the logs
        handed_over.clear()
        assert produced(rig, encode_batch([(1, None, b"v")]), count) == [0] * count
        assert len(handed_over) == handed


@pytest.mark.parametrize(
    "count, size, handed, on_processor",
    [(200, 100, 0, 200), (400, 100, 1, 256), (16, 60_000, 0, 16), (400, 60_000, 1, 18)],
)
def test_small_batches_are_inflated_by_the_processor_up_to_a_limit_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, size: int, handed: int, on_processor: int
) -> None:
    """A request with hundreds of batches once kept a processor busy for as long as 32 MB take."""
    inflated: list[threading.Thread] = []

    def note(*arguments: Any) -> memoryview:
        inflated.append(threading.current_thread())
        return inflate(*arguments)

    monkeypatch.setattr("tests.kit.parts.processors.inflate", note)
    with ProcessorRig(tmp_path) as rig:
        rig.create("orders", 4)
        produced(rig, encode_batch([(1, None, b"v")]), 4)  # opens the logs
        handed_over = noted(rig, monkeypatch)
        assert produced(rig, encode_batch([(1, None, bytes(size))], codec=Codec.GZIP), count) == [0] * count
        assert (len(inflated), len(handed_over)) == (count, handed)
        assert sum(thread in rig.threads for thread in inflated) == on_processor


def test_what_a_request_becomes_without_its_codec_is_bounded(tmp_path: Path) -> None:
    """Batches that the topic stores without a codec are kept until the last one is checked."""
    with ProcessorRig(tmp_path, max_inflated_size=100_000) as rig:
        rig.create("orders", 4, compression=Codec.NONE)
        batch = encode_batch([(1, None, bytes(40_000))], codec=Codec.GZIP)
        assert produced(rig, batch, 4) == [0, 0, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE]
