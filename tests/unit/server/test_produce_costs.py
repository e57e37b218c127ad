"""What a Produce may cost others: many batches are appended by a handler, and what is made of them is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import encode_batch
from tests.kit.processors import ProcessorRig


def produced(rig: ProcessorRig, batch: bytes, count: int) -> list[int]:
    """The codes of a request that brings a batch for each of `count` partitions of a topic."""
    parts = [M.ProduceRequest.PartitionProduceData(index=number % 4, records=batch) for number in range(count)]
    topics = [M.ProduceRequest.TopicProduceData(name="orders", partition_data=parts)]
    with rig.connect() as client:
        request = M.ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)
        answer = client.call(ApiKey.PRODUCE, 9, request)
    return [part.error_code for part in answer.responses[0].partition_responses]


@pytest.mark.parametrize("count, handed", [(400, 0), (600, 1)])
def test_many_batches_are_not_appended_by_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, handed: int
) -> None:
    with ProcessorRig(tmp_path) as rig:
        rig.create("orders", 4)
        put = rig.channel.put
        handed_over: list[Any] = []

        def note(request: Any, processor: Any) -> bool:
            handed_over.append(request.correlation_id)
            return put(request, processor)

        monkeypatch.setattr(rig.channel, "put", note)
        produced(rig, encode_batch([(1, None, b"v")]), 4)  # opens the logs
        handed_over.clear()
        assert produced(rig, encode_batch([(1, None, b"v")]), count) == [0] * count
        assert len(handed_over) == handed


def test_what_a_request_becomes_without_its_codec_is_bounded(tmp_path: Path) -> None:
    """Batches that the topic wants without a codec are kept until the last is checked."""
    with ProcessorRig(tmp_path, max_inflated_size=100_000) as rig:
        rig.create("orders", 4, compression=Codec.NONE)
        batch = encode_batch([(1, None, bytes(40_000))], codec=Codec.GZIP)
        assert produced(rig, batch, 4) == [0, 0, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE]
