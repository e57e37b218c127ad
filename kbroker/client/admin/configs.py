"""Settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kbroker.client.admin.items import call_for_each, missing_answer, value_or_error
from kbroker.client.admin.results import ConfigEntry
from kbroker.client.errors import BrokerError, ClientError, UsageError
from kbroker.client.network.cluster import Cluster
from kbroker.client.network.connection import Connection
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

TOPIC, BROKER, GROUP = 2, 4, 32
RESOURCES = {TOPIC: "topic", BROKER: "broker", GROUP: "group"}
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
DEFAULT, UNKNOWN = "DEFAULT_CONFIG", "UNKNOWN"
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: DEFAULT,
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "CLIENT_METRICS_CONFIG",
    8: "GROUP_CONFIG",
}
OWN = ("DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG", UNKNOWN)
"""Sources of values that were set for a resource itself, in the answers of brokers that only take all settings at once.
"""

Operation = tuple[str, int, str | None]
"""A setting's name, what to do (SET, DELETE, APPEND or SUBTRACT), and its value."""


def operations(
    changes: Mapping[str, str | None] | None, append: Mapping[str, str] | None, subtract: Mapping[str, str] | None
) -> list[Operation]:
    return [
        *(
            (name, DELETE, None) if value is None else (name, SET, str(value))
            for name, value in (changes or {}).items()
        ),
        *((name, APPEND, value) for name, value in (append or {}).items()),
        *((name, SUBTRACT, value) for name, value in (subtract or {}).items()),
    ]


async def describe(
    cluster: Cluster, kind: int, names: Collection[str], only: Collection[str] = ()
) -> dict[str, dict[str, ConfigEntry]]:
    """Return the settings of resources, by the resources' names. `names` must be a single one when `kind` is BROKER.

    `only`: the names of settings; all if there are none.
    """

    async def attempt(left: list[str]) -> dict[str, dict[str, ConfigEntry] | ClientError]:
        return await _described(await _connection(cluster, kind, left[0]), kind, left, only)

    return await call_for_each(cluster, names, attempt)


async def alter(cluster: Cluster, kind: int, name: str, changes: list[Operation], validate_only: bool) -> None:
    async def attempt(_: list[str]) -> dict[str, ClientError | None]:
        connection = await _connection(cluster, kind, name)
        message: M.AlterConfigsRequest | M.IncrementalAlterConfigsRequest
        if connection.serves(ApiKey.INCREMENTAL_ALTER_CONFIGS) or not connection.serves(ApiKey.ALTER_CONFIGS):
            request = M.IncrementalAlterConfigsRequest
            configs = [request.AlterableConfig(name=key, config_operation=how, value=to) for key, how, to in changes]
            resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
            message = request(resources=[resource], validate_only=validate_only)
        else:
            whole = M.AlterConfigsRequest
            settings = (await _with_others(connection, kind, name, changes)).items()
            values = [whole.AlterableConfig(name=key, value=value) for key, value in settings if value is not None]
            changed = whole.AlterConfigsResource(resource_type=kind, resource_name=name, configs=values)
            message = whole(resources=[changed], validate_only=validate_only)
        answer = await connection.call(message)
        return {
            each.resource_name: value_or_error(each.error_code, each.error_message, f"{RESOURCES[kind]} {name!r}", None)
            for each in answer.responses
        }

    await call_for_each(cluster, [name], attempt)


async def _connection(cluster: Cluster, kind: int, name: str) -> Connection:
    """Return a connection to a broker that knows the settings of a resource.

    A broker's settings are known to that broker, all others to any broker, and so are those of all brokers together
    (`name` "").
    """
    return await (cluster.connection(int(name)) if kind == BROKER and name else cluster.any_connection())


async def _described(
    connection: Connection, kind: int, names: list[str], only: Collection[str] = ()
) -> dict[str, dict[str, ConfigEntry] | ClientError]:
    request = M.DescribeConfigsRequest
    resources = [
        request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(only) or None)
        for name in names
    ]
    answer = await connection.call(request(resources=resources))
    return {
        result.resource_name: value_or_error(
            result.error_code,
            result.error_message,
            f"{RESOURCES[kind]} {result.resource_name!r}",
            {each.name: _entry(each) for each in result.configs},
        )
        for result in answer.results
    }


def _entry(config: M.DescribeConfigsResponse.DescribeConfigsResourceResult) -> ConfigEntry:
    # Version 0 has no source; it only tells whether a value is the default.
    source = SOURCES.get(config.config_source, DEFAULT if config.is_default else UNKNOWN)
    return ConfigEntry(
        config.name, config.value, source, source == DEFAULT, bool(config.read_only), bool(config.is_sensitive)
    )


async def _with_others(connection: Connection, kind: int, name: str, changes: list[Operation]) -> dict[str, str | None]:
    """Return all settings of a resource after `changes`, for brokers before Kafka 2.3, which replace them as a whole.

    What somebody else sets between this and the write is lost. Raises BrokerError for APPEND and SUBTRACT, and
    UsageError when a secret setting would be lost.
    """
    before = (await _described(connection, kind, [name])).get(name, missing_answer(f"{RESOURCES[kind]} {name!r}"))
    if isinstance(before, ClientError):
        raise before
    kept = {each.name: each.value for each in before.values() if each.source in OWN and not each.is_read_only}
    for key, how, value in changes:
        if how in (APPEND, SUBTRACT):
            raise BrokerError(
                f"{connection.address} does not serve IncrementalAlterConfigs: {key} can only be set as a whole",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        kept[key] = value
    changed = {key for key, _, _ in changes}
    for each in before.values():
        if each.is_sensitive and each.name in kept and each.name not in changed:
            raise UsageError(
                f"{RESOURCES[kind]} {name!r}: {each.name} is secret, and the broker takes all settings at once only",
                hint=f"give {each.name} too",
            )
    return kept
