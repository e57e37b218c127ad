"""DescribeQuorum, key 55, versions 0 to 2: the voters of the cluster's metadata quorum (KIP-595).

There is no metadata log and no quorum: this broker answers as the only voter. It describes partition 0 of
__cluster_metadata if the request asks for nothing else; every other partition gets UNKNOWN_TOPIC_OR_PARTITION, as in
Kafka. The log end offset is the number of metadata changes since the start.
A member of a cluster does not advertise it, as Kafka in ZooKeeper mode does not, and answers UNSUPPORTED_VERSION.
Leaves out: observers, of which there are none.

v0  first
v1  when a voter last fetched (KIP-836)
v2  directories, endpoints, messages (KIP-853)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.new_topics import METADATA_LOG_TOPIC
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import number_key
from kbroker.protocol import messages as M

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

_Response = M.DescribeQuorumResponse
FIRST_VERSION_WITH_NODES = 2


def handle(services: Services, request: Request, message: M.DescribeQuorumRequest) -> M.DescribeQuorumResponse:
    """Answer the request at once. A partition named twice is answered once."""
    if not services.cluster.is_alone:
        raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, "There is no metadata quorum: the cluster is in ZooKeeper.")
    asked = [(topic.topic_name, part.partition_index) for topic in message.topics for part in topic.partitions]
    if asked == [(METADATA_LOG_TOPIC, 0)]:
        return _described(services, request)
    by_topic: dict[str, dict[bytes, M.DescribeQuorumResponse.PartitionData]] = {
        topic.topic_name: {} for topic in message.topics
    }
    for name, number in asked:
        by_topic[name][number_key(number)] = _Response.PartitionData(
            partition_index=number, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=""
        )
    return _answer(
        [_Response.TopicData(topic_name=name, partitions=[*found.values()]) for name, found in by_topic.items()]
    )


def _described(services: Services, request: Request) -> M.DescribeQuorumResponse:
    end, now_ms = services.cluster.change_count, services.clock.wall_ms()
    voter = _Response.ReplicaState(
        replica_id=services.node_id, log_end_offset=end, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
    )
    partition = _Response.PartitionData(
        partition_index=0,
        error_message="",
        leader_id=services.node_id,
        leader_epoch=services.cluster.controller_epoch,
        high_watermark=end,
        current_voters=[voter],
    )
    answer = _answer([_Response.TopicData(topic_name=METADATA_LOG_TOPIC, partitions=[partition])])
    if request.api_version >= FIRST_VERSION_WITH_NODES:
        here = services.endpoints_for(request.connection)
        listener = _Response.Listener(name=here.listener, host=here.host, port=here.port)
        answer.nodes = [_Response.Node(node_id=services.node_id, listeners=[listener])]
    return answer


def _answer(topics: list[M.DescribeQuorumResponse.TopicData]) -> M.DescribeQuorumResponse:
    return _Response(error_message="", topics=topics)
