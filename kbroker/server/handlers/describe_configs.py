"""DescribeConfigs, key 32, versions 0 to 4: settings of topics, groups, this broker and its loggers (KIP-133).

A broker's configs are kbroker's settings.
Leaves out: client metrics.

v0  first
v1  sources and synonyms in place of "is default" (KIP-226)
v2  as v1; the throttle is applied after the response
v3  types and documentation (KIP-569)
v4  flexible
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from kbroker._core.server.request import Request
from kbroker._core.wire.codec import lazily
from kbroker.cluster.broker_configs import ConfigSource
from kbroker.cluster.broker_loggers import logger_levels
from kbroker.cluster.config_entries import (
    ConfigEntry,
    broker_entries,
    default_broker_entries,
    group_entries,
    topic_entries,
)
from kbroker.cluster.image import MetadataImage
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.config_resources import (
    NO_CLIENT_METRICS,
    ResourceType,
    broker_number,
    check_topic_name,
)
from kbroker.server.handlers.shared.naming import each_once
from kbroker.server.handlers.shared.services import Services

Result = M.DescribeConfigsResponse.DescribeConfigsResult
ResultConfig = M.DescribeConfigsResponse.DescribeConfigsResourceResult
ResultSynonym = M.DescribeConfigsResponse.DescribeConfigsSynonym

UNKNOWN_KIND = 0
_Asked = tuple[int, str, frozenset[str] | None]
UNKNOWN_RESOURCE = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)


def handle(services: Services, request: Request, message: M.DescribeConfigsRequest) -> M.DescribeConfigsResponse:
    asked = _asked(message)
    return M.DescribeConfigsResponse(results=lazily(len(asked), _results(services, request, message, asked)))


def _results(
    services: Services, request: Request, message: M.DescribeConfigsRequest, asked: Iterable[_Asked]
) -> Iterator[Result]:
    image = services.cluster.image
    of_groups_without_own: dict[frozenset[str] | None, list[ResultConfig]] = {}
    """The answer for all groups without configs of their own, by the keys asked for: a request may name very many."""
    for resource_type, name, keys in asked:
        result = Result(resource_type=resource_type, resource_name=name, error_message="")
        has_no_own = resource_type == ResourceType.GROUP and name and name not in image.group_configs
        if has_no_own and keys in of_groups_without_own:
            result.configs = of_groups_without_own[keys]
            yield result
            continue
        try:
            entries = _entries(resource_type, name, services, image)
            result.configs = [
                _config(entry, request.api_version, message) for entry in entries if keys is None or entry.name in keys
            ]
            if has_no_own:
                of_groups_without_own[keys] = result.configs
        except ProtocolError as error:
            result.error_code, result.error_message = error.code, error.message or ""
        yield result


def _asked(message: M.DescribeConfigsRequest) -> Collection[_Asked]:
    """The resources asked for, each with the wanted keys (None: all). A resource asked for twice is in it once."""
    return each_once(
        (each.resource_type, each.resource_name, frozenset(each.configuration_keys or ()) or None)
        for each in message.resources
    )


def _entries(resource_type: int, name: str, services: Services, image: MetadataImage) -> Iterable[ConfigEntry]:
    node_id = services.node_id
    if resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        topic = image.topic(name)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        return topic_entries(topic, image, services.broker_configs)
    if resource_type == ResourceType.BROKER:
        if name == "":
            return default_broker_entries(image, services.broker_configs)
        if broker_number(name, "Broker") != node_id:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node_id} or empty string, but received {name}",
            )
        return broker_entries(image, services.broker_configs)
    if resource_type == ResourceType.BROKER_LOGGER:
        if name == "":
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        if broker_number(name, "Broker") != node_id:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id} but received {name}"
            )
        return (_logger_entry(logger, level) for logger, level in logger_levels().items())
    if resource_type == ResourceType.GROUP:
        if name == "":
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return group_entries(name, image, services.broker_configs)
    if resource_type == ResourceType.CLIENT_METRICS:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, NO_CLIENT_METRICS)
    raise ProtocolError(ErrorCode.INVALID_REQUEST, UNKNOWN_RESOURCE)


def _logger_entry(name: str, level: str) -> ConfigEntry:
    return ConfigEntry(name, level, None, ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG, False, False, (), "")


def _config(entry: ConfigEntry, version: int, message: M.DescribeConfigsRequest) -> ResultConfig:
    config = ResultConfig(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        is_sensitive=entry.is_sensitive,
    )
    if version == 0:
        config.is_default = entry.source is ConfigSource.DEFAULT_CONFIG
        return config
    config.config_source = entry.source
    if message.include_synonyms:
        config.synonyms = [
            ResultSynonym(name=synonym.name, value=synonym.value, source=synonym.source) for synonym in entry.synonyms
        ]
    config.config_type = UNKNOWN_KIND if entry.kind is None else entry.kind
    config.documentation = entry.doc if message.include_documentation or entry.kind is None else None
    return config
