"""What tools and consoles ask: DescribeQuorum, UpdateFeatures, GetTelemetrySubscriptions, ListConfigResources."""

from __future__ import annotations

from typing import Any

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, newer_scenario, scenario
from tests.oracle.scenarios.requests import resource

QUORUM, FEATURES, TELEMETRY, RESOURCES = (
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.UPDATE_FEATURES,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.LIST_CONFIG_RESOURCES,
)
METADATA = "__cluster_metadata"
NO_FEATURE, THE_FEATURE = "no.such.feature", "transaction.version"
UNKNOWN, TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 0, 2, 4, 8, 16, 32


# --- DescribeQuorum --------------------------------------------------------------------------------------------------


def quorum(t: Talk, *topics: tuple[str, list[int]]) -> None:
    R = M.DescribeQuorumRequest

    def without_numbers(answer: Any) -> None:
        """Compare whether a cluster's numbers fit together, not the numbers: each cluster has its own."""
        for topic in answer.topics:
            for part in topic.partitions:
                for voter in part.current_voters:
                    voter.log_end_offset -= part.high_watermark
                    voter.last_fetch_timestamp = min(voter.last_fetch_timestamp, 0)
                    voter.last_caught_up_timestamp = min(voter.last_caught_up_timestamp, 0)
                part.leader_epoch, part.high_watermark = min(part.leader_epoch, 1), min(part.high_watermark, 1)
        for node in answer.nodes:
            for listener in node.listeners:
                listener.name, listener.port = "<name>", 1

    wanted = [
        R.TopicData(topic_name=name, partitions=[R.PartitionData(partition_index=number) for number in numbers])
        for name, numbers in topics
    ]
    t.ask(R(topics=wanted), keep=without_numbers)


@scenario(QUORUM)
def the_quorum(t: Talk) -> None:
    quorum(t, (METADATA, [0]))


@scenario(QUORUM)
def quorums_of_what_has_none(t: Talk) -> None:
    quorum(t)
    quorum(t, (METADATA, [1]))
    quorum(t, (METADATA, []))
    quorum(t, (METADATA, [0, 1]))
    quorum(t, (t.name("nowhere"), [0]))
    quorum(t, (METADATA, [0]), (t.topic(), [0, 5]))


@scenario(QUORUM)
def quorums_named_twice(t: Talk) -> None:
    quorum(t, (METADATA, [0, 0]))
    quorum(t, (METADATA, [0]), (METADATA, [0]))


# --- UpdateFeatures --------------------------------------------------------------------------------------------------


def features(t: Talk, *updates: tuple[str, int], **fields: Any) -> None:
    """Update features; `fields` are those of every update. Except in version 0, the request only validates."""
    R = M.UpdateFeaturesRequest
    wanted = [R.FeatureUpdateKey(feature=name, max_version_level=level, **fields) for name, level in updates]
    t.ask(R(feature_updates=wanted, validate_only=t.version > 0))


@scenario(FEATURES)
def features_that_are_not_there(t: Talk) -> None:
    features(t)
    for level in (1, 7, 0, -1, -(2**15), 2**15 - 1):
        features(t, (NO_FEATURE, level))
    features(t, ("", 1), (NO_FEATURE, 1), (NO_FEATURE, 2), (NO_FEATURE, 0))


@scenario(FEATURES)
def the_feature_of_transactions(t: Talk) -> None:
    for level in (0, 1, 2, 3, -1):
        features(t, (THE_FEATURE, level))


@scenario(FEATURES, since=1)
def kinds_of_updates(t: Talk) -> None:
    for kind in (0, 1, 2, 3, 4, -1):
        features(t, (NO_FEATURE, 1), (THE_FEATURE, 1), upgrade_type=kind)


@scenario(FEATURES, until=0)
def downgrades_that_are_allowed(t: Talk) -> None:
    features(t, (NO_FEATURE, 0), (NO_FEATURE + "s", 1), allow_downgrade=True)


# --- GetTelemetrySubscriptions ---------------------------------------------------------------------------------------


def subscriptions(t: Talk, instance: bytes) -> bytes:
    """Return the instance id of the answer."""
    ids: list[bytes] = []

    def without_ids(answer: Any) -> None:
        ids.append(answer.client_instance_id)
        is_new = answer.client_instance_id not in (instance, bytes(16))
        answer.client_instance_id = (b"new" if is_new else b"as asked").ljust(16)
        answer.subscription_id = 0

    t.ask(M.GetTelemetrySubscriptionsRequest(client_instance_id=instance), keep=without_ids)
    return ids[0]


@scenario(TELEMETRY)
def subscriptions_of_new_clients(t: Talk) -> None:
    for _ in range(2):
        subscriptions(t, bytes(16))


@scenario(TELEMETRY)
def subscriptions_asked_for_again(t: Talk) -> None:
    subscriptions(t, subscriptions(t, bytes(16)))


# --- ListConfigResources ---------------------------------------------------------------------------------------------


@scenario(RESOURCES, until=0)
def subscriptions_to_metrics(t: Talk) -> None:
    t.ask(M.ListConfigResourcesRequest())


def listed(t: Talk, *types: int) -> None:
    def only_mine(answer: Any) -> None:
        answer.config_resources = [
            each
            for each in answer.config_resources
            if each.resource_type in (BROKER, BROKER_LOGGER) or each.resource_name.startswith(t.prefix)
        ]

    t.ask(M.ListConfigResourcesRequest(resource_types=list(types)), keep=only_mine)


@newer_scenario(RESOURCES)
def resources_of_every_type(t: Talk) -> None:
    t.topic(), t.topic("other")
    R = M.IncrementalAlterConfigsRequest
    config = R.AlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value="46000")
    group = R.AlterConfigsResource(resource_type=GROUP, resource_name=t.name("g"), configs=[config])
    t.do(R(resources=[group]))
    asked = M.DescribeConfigsRequest(resources=[resource(GROUP, t.name("g"), [config.name])])
    t.until(lambda: t.do(asked).results[0].configs[0].value == config.value, "config of the group")
    listed(t)
    for kind in (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, UNKNOWN, 1, 99, -1):
        listed(t, kind)
    listed(t, GROUP, TOPIC, TOPIC, GROUP)
    listed(t, TOPIC, 99)
