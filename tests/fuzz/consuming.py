"""What a consumer reads: Fetch responses, and the records of a partition in every form."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker._core.client.consumer.batches import read_chunk
from kbroker._core.client.consumer.fetch_response import decode_fetch
from kbroker._core.client.consumer.records import Records
from kbroker.errors import BadInput
from kbroker.protocol import messages as M
from kbroker.protocol.compression import Codec, inflate
from kbroker.protocol.records import encode_batch
from tests.fuzz.batches import OLD_FORMAT, message_set_seeds
from tests.fuzz.parsers import mend_batches, packed, records_seeds
from tests.fuzz.target import Target

INFLATED_LIMIT = 1 << 16
VERSIONS = 18


def inflated(codec: int, data: memoryview, magic: int) -> bytes:
    return inflate(codec, data, INFLATED_LIMIT, magic=magic)


def consume(data: bytes, position: int, aborted: list[tuple[int, int]] | None) -> None:
    """Read the records as objects, by index, as columns, and in two polls.

    Each way gives records or raises BadInput, and all give the same number of records.
    """
    chunk = read_chunk("t", 0, data, inflated, position=position, aborted=aborted, check_crcs=False)
    assert chunk.next_offset >= position
    records = Records([chunk])
    found = []
    size = 0
    try:
        for record in records:
            found.append(record.offset)
            assert len(record.headers) >= 0
            size += len(record.key or b"") + len(record.value or b"")
        assert (len(found), size >= 0) == (len(records), True)
        assert [records[row].offset for row in range(len(records))] == found
        assert len(records.columns()) == len(records)
        half = Records([chunk], len(records) // 2)
        (behind,) = half.next_offsets().values()
        assert behind >= position
    except BadInput:
        pass


def feed_consumed(data: bytes) -> None:
    """Byte 0: read_committed, and where to begin."""
    first = data[0] if data else 0
    aborted = [(1, 0), (first, 2)] if first & 0x80 else None
    consume(mend_batches(data[1:]), first & 0x1F, aborted)


def consumed_seeds() -> Iterator[bytes]:
    """Batches of every codec, and messages of magic 0 and 1, compressed and not."""
    records = [(5, b"key", b"value"), (6, None, b"x" * 200), (4, b"", None)]
    forms = [packed(encode_batch(records, codec=codec)) for codec in Codec]
    forms += [packed(seed[2:], fixes=OLD_FORMAT) for seed in message_set_seeds()]
    for seed in (*records_seeds(), *forms):
        yield b"\0" + seed
        yield b"\x82" + seed


def feed_fetch_response(data: bytes) -> None:
    """Byte 0: the version."""
    version = data[0] % VERSIONS if data else 0
    try:
        _, _, _, partitions = decode_fetch(version, data[1:])
    except BadInput:
        return
    for partition in partitions:
        consume(partition["records"], 0, partition["aborted"])


def fetch_response_seeds() -> Iterator[bytes]:
    for version in range(VERSIONS):
        batch = encode_batch([(5, b"key", b"value")] * 3)
        answer = M.FetchResponse.PartitionData(partition_index=1, high_watermark=9, records=batch)
        if version >= 4:
            answer.last_stable_offset = 8
            answer.aborted_transactions = [M.FetchResponse.AbortedTransaction(producer_id=5, first_offset=6)]
        if version >= 12:
            answer.current_leader = M.FetchResponse.LeaderIdAndEpoch(leader_id=3, leader_epoch=4)
            answer.diverging_epoch = M.FetchResponse.EpochEndOffset(epoch=3, end_offset=4)
        topic = M.FetchResponse.FetchableTopicResponse(partitions=[answer, answer])
        if version >= 13:
            topic.topic_id = bytes(range(16))
        else:
            topic.topic = "t"
        yield bytes([version]) + M.FetchResponse(responses=[topic]).encode(version)


TARGETS = [
    Target("consumed", feed_consumed, consumed_seeds, 2048, share=2),
    Target("fetch-response", feed_fetch_response, fetch_response_seeds, 1024),
]
