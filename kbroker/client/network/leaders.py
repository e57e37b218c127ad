"""Which broker leads which partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kbroker.client.errors import partition_refusal, raise_for
from kbroker.client.network.cluster import Cluster
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition


async def by_leader(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Return node ids, each with those of `partitions` that it leads.

    Raises BrokerError when a partition has no leader now, or does not exist.
    """
    wanted = list(dict.fromkeys(partitions))
    topics = {partition.topic for partition in wanted}
    if cluster.add_topics(topics) or any(cluster.leader(*partition) is None for partition in wanted):
        try:
            await cluster.refresh()
        except BaseException:
            cluster.remove_topics(topics)
            raise
    cluster.remove_topics(topics)
    found: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition in wanted:
        view = cluster.view.partition(*partition)
        topic = cluster.view.topics.get(partition.topic)
        if view is None:
            code = topic.error_code if topic is not None else 0
            count = len(topic.partitions) if topic is not None else 0
            raise partition_refusal(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partition, count)
        if view.leader_id < 0:
            raise_for(view.error_code or ErrorCode.LEADER_NOT_AVAILABLE, None, str(partition))
        else:
            found[view.leader_id].append(partition)
    return found
