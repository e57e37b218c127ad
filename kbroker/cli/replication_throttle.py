"""The limit on what replicas that move may copy in a second: settings of brokers and topics in Kafka (KIP-73)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.client.admin.admin_client import AdminClient
from kbroker.model import TopicPartition

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"


def set_throttle(admin: AdminClient, plan: Mapping[TopicPartition, Sequence[int]], bytes_per_second: int) -> None:
    """Limit the copying that `plan` brings: on every broker, from the replicas of now and to the new ones.

    A topic's setting names all of its replicas that are limited, so what moves in the plan's topics already is named
    too.
    """
    topics = admin.describe_topics({at.topic for at in plan})
    moving = {at: move for at, move in admin.list_partition_reassignments().items() if at.topic in topics}
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for at in sorted({*plan, *moving}):
        now = next(each.replicas for each in topics[at.topic].partitions if each.partition == at.partition_id)
        replicas: Sequence[int] = plan.get(at, now)
        if at in moving:
            now = tuple(each for each in now if each not in moving[at].adding)
        leaders.setdefault(at.topic, []).extend(f"{at.partition_id}:{each}" for each in now)
        added = [each for each in replicas if each not in now]
        followers.setdefault(at.topic, []).extend(f"{at.partition_id}:{each}" for each in added)
    for topic in leaders:
        throttled = {LEADERS: ",".join(leaders[topic]), FOLLOWERS: ",".join(followers[topic])}
        admin.alter_topic_config(topic, {name: value for name, value in throttled.items() if value})
    for broker in admin.describe_cluster().brokers:
        admin.alter_broker_config(broker.node_id, dict.fromkeys(RATES, str(bytes_per_second)))


def lift_throttle(admin: AdminClient) -> None:
    """Remove the settings of `set_throttle` from all brokers and topics that have them."""
    for broker in admin.describe_cluster().brokers:
        there = admin.describe_broker_config(broker.node_id)
        given = [name for name in RATES if name in there and there[name].source == "DYNAMIC_BROKER_CONFIG"]
        if given:
            admin.alter_broker_config(broker.node_id, dict.fromkeys(given))
    names = admin.list_topics(internal=True)
    for topic, there in (admin.describe_topic_configs(names) if names else {}).items():
        given = [
            name for name in (LEADERS, FOLLOWERS) if name in there and there[name].source == "DYNAMIC_TOPIC_CONFIG"
        ]
        if given:
            admin.alter_topic_config(topic, dict.fromkeys(given))
