"""The limit on what replicas that move may copy in a second: settings of brokers and topics in Kafka (KIP-73)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kbroker.cli.topic_facts import missing_topics_forgiven, without_missing
from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.admin.results import ConfigEntry, Reassignment, TopicDescription
from kbroker.client.errors import ClientError
from kbroker.errors import KbrokerError
from kbroker.model import TopicPartition

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"
ALL_REPLICAS = "*"
LONGEST_VALUE = 32_767
"""The longest value of a setting that Kafka takes, in bytes."""


def set_throttle(admin: AdminClient, plan: Mapping[TopicPartition, Sequence[int]], bytes_per_second: int) -> None:
    """Limit the copying that `plan` brings: on every broker, from the replicas of now and to the new ones."""
    topics = admin.describe_topics({at.topic for at in plan})
    for topic, settings in throttled_replicas(plan, topics, admin.list_partition_reassignments()).items():
        admin.alter_topic_config(topic, settings)
    for broker in admin.describe_cluster().brokers:
        admin.alter_broker_config(broker.node_id, dict.fromkeys(RATES, str(bytes_per_second)))


def throttled_replicas(
    plan: Mapping[TopicPartition, Sequence[int]],
    topics: Mapping[str, TopicDescription],
    moving: Mapping[TopicPartition, Reassignment],
) -> dict[str, dict[str, str]]:
    """Return the settings of the plan's topics that name the replicas to limit.

    A topic's setting names all of its replicas that are limited, so what moves in the plan's topics already is named
    too. Where they are too many to be named, all replicas of the topic are limited: those that are in sync never wait.
    """
    there = {
        TopicPartition(topic.name, each.partition): each.replicas
        for topic in topics.values()
        for each in topic.partitions
    }
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for at in sorted({*plan, *(each for each in moving if each.topic in topics)}):
        now = there[at]
        replicas: Sequence[int] = plan.get(at, now)
        if at in moving:
            now = tuple(each for each in now if each not in moving[at].adding)
        leaders.setdefault(at.topic, []).extend(f"{at.partition_id}:{each}" for each in now)
        added = [each for each in replicas if each not in now]
        followers.setdefault(at.topic, []).extend(f"{at.partition_id}:{each}" for each in added)
    return {
        topic: {
            name: value
            for name, named in ((LEADERS, leaders[topic]), (FOLLOWERS, followers[topic]))
            if (value := _listed(named))
        }
        for topic in leaders
    }


def _listed(replicas: Iterable[str]) -> str:
    value = ",".join(replicas)
    return value if len(value) <= LONGEST_VALUE else ALL_REPLICAS


def lift_throttle(admin: AdminClient) -> None:
    """Remove the settings of `set_throttle` from all brokers and topics that have them.

    Goes on after an error of a broker or a topic, and raises KbrokerError at the end, which names where settings may
    be left.
    """
    errors: dict[str, ClientError] = {}

    def attempt(what: str, remove: Callable[[], None]) -> None:
        try:
            remove()
        except ClientError as error:
            errors[what] = error

    def of_broker(node_id: int) -> None:
        if given := _own(admin.describe_broker_config(node_id), RATES, "DYNAMIC_BROKER_CONFIG"):
            admin.alter_broker_config(node_id, dict.fromkeys(given))

    def of_topic(topic: str, given: Collection[str]) -> None:
        with missing_topics_forgiven():
            admin.alter_topic_config(topic, dict.fromkeys(given))

    for broker in admin.describe_cluster().brokers:
        attempt(f"broker {broker.node_id}", lambda node_id=broker.node_id: of_broker(node_id))  # type: ignore[misc]
    names = admin.list_topics(internal=True)
    for topic, there in (without_missing(lambda: admin.describe_topic_configs(names)) if names else {}).items():
        if given := _own(there, (LEADERS, FOLLOWERS), "DYNAMIC_TOPIC_CONFIG"):
            attempt(f"topic {topic!r}", lambda topic=topic, given=given: of_topic(topic, given))  # type: ignore[misc]
    if errors:
        what, error = next(iter(errors.items()))
        others = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise KbrokerError(
            f"the throttle may still be on at {what}{others}: {error.message}; kbroker reassign status lifts it"
        )


def _own(settings: Mapping[str, ConfigEntry], names: Iterable[str], source: str) -> list[str]:
    return [name for name in names if name in settings and settings[name].source == source]
