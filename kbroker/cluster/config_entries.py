"""The settings of topics, brokers and groups as DescribeConfigs and CreateTopics show them: value, source, synonyms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.cluster.broker_configs import BrokerConfigs, ConfigSource, Synonym
from kbroker.cluster.group_configs import GROUP_CONFIGS, group_default
from kbroker.cluster.image import MetadataImage, Topic
from kbroker.cluster.topic_configs import (
    DURABLE_FLUSH_MESSAGES,
    FLUSH_POLICIES,
    TOPIC_CONFIGS,
    TopicConfig,
    broker_default,
)
from kbroker.coordination.paths import DEFAULT_ENTITY
from kbroker.rules.config_values import Kind, format_value


class ConfigEntry(NamedTuple):
    """One config of one resource. `value` is None if it is unset or sensitive."""

    name: str
    value: str | None
    kind: Kind | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]
    doc: str


def topic_entries(topic: Topic, image: MetadataImage, broker: BrokerConfigs) -> Iterator[ConfigEntry]:
    """Every config of a topic, sorted by name."""
    lookup = broker.lookup(image)
    is_durable = _is_durable_by_default(topic, image, broker)
    for config in TOPIC_CONFIGS.values():
        own = topic.configs.get(config.name)
        value = format_value(broker_default(config, lookup)) if own is None else format_value(config.parse(own))
        if is_durable and config.name == "flush.messages":
            value = format_value(DURABLE_FLUSH_MESSAGES)
        synonyms = broker.synonyms(config.synonyms[0].name, image) if config.synonyms else []
        if config.synonyms and config.synonyms[0].name not in broker.settings:
            # kbroker does not have this broker setting of Kafka's: show it with the topic config's default.
            default = format_value(config.default)
            synonyms = [Synonym(config.synonyms[0].name, default, ConfigSource.DEFAULT_CONFIG)]
        if own is not None:
            synonyms.insert(0, Synonym(config.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG))
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        yield ConfigEntry(config.name, value, config.kind, source, False, False, tuple(synonyms), config.doc)


def _is_durable_by_default(topic: Topic, image: MetadataImage, broker: BrokerConfigs) -> bool:
    if not topic.partitions or topic.replication_factor == 1:
        return False
    return all(source_of(each, topic, image, broker) is ConfigSource.DEFAULT_CONFIG for each in FLUSH_POLICIES)


def source_of(config: TopicConfig, topic: Topic, image: MetadataImage, broker: BrokerConfigs) -> ConfigSource:
    """The source of a topic config's value in CreateTopics, where settings in other units count too.

    log.retention.hours is such a setting for retention.ms.
    """
    if config.name in topic.configs:
        return ConfigSource.DYNAMIC_TOPIC_CONFIG
    for source, values in broker.layers(image):
        if any(synonym.name in values for synonym in config.synonyms):
            return source
    return ConfigSource.DEFAULT_CONFIG


def group_entries(group_id: str, image: MetadataImage, broker: BrokerConfigs) -> Iterator[ConfigEntry]:
    """Every config of a group, whether the group exists or not."""
    lookup, own = broker.lookup(image), image.group_configs.get(group_id, {})
    for config in GROUP_CONFIGS.values():
        value = format_value(config.parse(own[config.name]) if config.name in own else group_default(config, lookup))
        synonyms = broker.synonyms(config.synonym, image)
        if config.name in own:
            synonyms.insert(0, Synonym(config.name, value, ConfigSource.DYNAMIC_GROUP_CONFIG))
        source = synonyms[0].source
        yield ConfigEntry(config.name, value, config.kind, source, False, False, tuple(synonyms), config.doc)


def broker_entries(image: MetadataImage, broker: BrokerConfigs) -> Iterator[ConfigEntry]:
    """Every setting of this broker, and dynamic configs with names that kbroker does not know."""
    lookup = broker.lookup(image)
    dynamic = [name for _, values in broker.layers(image)[:2] for name in values if name not in broker.settings]
    for name in [*broker.settings, *dict.fromkeys(dynamic)]:
        yield _broker_entry(
            name, lookup(name), broker.synonyms(name, image, sensitive=_is_sensitive(name, broker)), broker
        )


def default_broker_entries(image: MetadataImage, broker: BrokerConfigs) -> Iterator[ConfigEntry]:
    """The dynamic configs of all brokers."""
    for name, text in image.broker_configs.get(DEFAULT_ENTITY, {}).items():
        everything = broker.synonyms(name, image, sensitive=_is_sensitive(name, broker))
        synonyms = [each for each in everything if each.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG]
        yield _broker_entry(name, text, synonyms, broker)


def _is_sensitive(name: str, broker: BrokerConfigs) -> bool:
    setting = broker.settings.get(name)
    return setting is None or setting.kind is Kind.PASSWORD


def _broker_entry(name: str, text: str | None, synonyms: list[Synonym], broker: BrokerConfigs) -> ConfigEntry:
    setting = broker.settings.get(name)
    is_sensitive = _is_sensitive(name, broker)
    value = None if text is None or is_sensitive else text
    if value is not None and setting is not None:
        value = format_value(setting.parse(value))
    return ConfigEntry(
        name,
        value,
        setting.kind if setting else None,
        synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        setting is not None and not setting.dynamic,
        is_sensitive,
        tuple(synonyms),
        setting.doc if setting else "",
    )
