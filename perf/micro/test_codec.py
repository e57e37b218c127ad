"""Measures encoding, decoding and making messages. Encoding Metadata may take 5 us, decoding a usual request 2 us."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kbroker.protocol import messages as M


def metadata_response(topics: int = 10, partitions: int = 6) -> M.MetadataResponse:
    Response = M.MetadataResponse
    return Response(
        cluster_id="MkU3OEVBNTcwNTJENDM2Qg",
        controller_id=1,
        brokers=[Response.MetadataResponseBroker(node_id=node, host=f"host{node}", port=9092) for node in range(3)],
        topics=[
            Response.MetadataResponseTopic(
                name=f"topic-{topic}",
                topic_id=bytes(range(16)),
                partitions=[
                    Response.MetadataResponsePartition(
                        partition_index=partition,
                        leader_id=partition % 3,
                        leader_epoch=5,
                        replica_nodes=[0, 1, 2],
                        isr_nodes=[0, 1, 2],
                    )
                    for partition in range(partitions)
                ],
            )
            for topic in range(topics)
        ],
    )


def typical_requests() -> dict[str, tuple[M.Message, int]]:
    Topic, Protocol = M.MetadataRequest.MetadataRequestTopic, M.JoinGroupRequest.JoinGroupRequestProtocol
    CommitTopic = M.OffsetCommitRequest.OffsetCommitRequestTopic
    CommitPartition = M.OffsetCommitRequest.OffsetCommitRequestPartition
    return {
        "Metadata 12, 10 topics": (M.MetadataRequest(topics=[Topic(name=f"topic-{one}") for one in range(10)]), 12),
        "JoinGroup 9": (
            M.JoinGroupRequest(
                group_id="group",
                session_timeout_ms=45000,
                rebalance_timeout_ms=300000,
                member_id="member-0d6a1d1a-91b3-4a0c-8a2e-2f0b3d0f8a10",
                protocol_type="consumer",
                protocols=[Protocol(name=name, metadata=bytes(60)) for name in ("range", "cooperative-sticky")],
            ),
            9,
        ),
        "OffsetCommit 8, 10 partitions": (
            M.OffsetCommitRequest(
                group_id="group",
                generation_id_or_member_epoch=3,
                member_id="member-0d6a1d1a-91b3-4a0c-8a2e-2f0b3d0f8a10",
                topics=[
                    CommitTopic(
                        name=f"topic-{topic}",
                        partitions=[
                            CommitPartition(partition_index=one, committed_offset=1 << 40, committed_metadata="")
                            for one in range(5)
                        ],
                    )
                    for topic in range(2)
                ],
            ),
            8,
        ),
        "Heartbeat 4": (M.HeartbeatRequest(group_id="group", generation_id=3, member_id="member-1"), 4),
    }


def test_encode_metadata_of_10_topics_and_60_partitions(benchmark: BenchmarkFixture) -> None:
    response = metadata_response()
    benchmark(lambda: response.encode(12))


def test_make_metadata_of_10_topics_and_60_partitions(benchmark: BenchmarkFixture) -> None:
    benchmark(metadata_response)


@pytest.mark.parametrize("name", typical_requests())
def test_decode_a_typical_request(benchmark: BenchmarkFixture, name: str) -> None:
    message, version = typical_requests()[name]
    body = message.encode(version)
    cls: Any = type(message)
    benchmark(lambda: cls.decode(body, version))
