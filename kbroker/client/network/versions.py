"""Which version of each API this client uses: the highest that both the client and the broker support."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.protocol.api import ApiKey, request_class

HIGHEST = {
    ApiKey.PRODUCE: 12,  # 13 names topics by id
    ApiKey.FETCH: 12,  # 13 names topics by id
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 9,  # 10 names topics by id
    ApiKey.OFFSET_FETCH: 9,  # 10 names topics by id
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,  # 4 and later are for requests between brokers
}

_GROUPS_OF_0_9 = (ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP)
_KAFKA_0_8_2: dict[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (0, 0),
    ApiKey.FETCH: (0, 0),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.METADATA: (0, 0),
    ApiKey.OFFSET_COMMIT: (0, 1),
    ApiKey.OFFSET_FETCH: (0, 1),
    ApiKey.FIND_COORDINATOR: (0, 0),
}
BEFORE_API_VERSIONS: Mapping[str, dict[int, tuple[int, int]]] = {
    "0.9.0": _KAFKA_0_8_2
    | dict.fromkeys((*_GROUPS_OF_0_9, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS), (0, 0))
    | {ApiKey.PRODUCE: (0, 1), ApiKey.FETCH: (0, 1), ApiKey.OFFSET_COMMIT: (0, 2)},
    "0.8.2": _KAFKA_0_8_2,
}
"""The (lowest, highest) versions that brokers older than ApiVersions serve, by release: they cannot be asked."""


def choose(api_key: ApiKey, served: Mapping[int, tuple[int, int]]) -> int:
    """Return the version to use with a broker that serves `served`, (lowest, highest) by API key; -1: none."""
    try:
        message = request_class(api_key)
    except AttributeError:
        return -1
    lowest, highest = served.get(api_key, (0, -1))
    version = min(highest, message.MAX_VERSION, HIGHEST.get(api_key, message.MAX_VERSION))
    return version if version >= max(lowest, message.MIN_VERSION) else -1


def choose_all(served: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Return the version to use by API key, for every API that can be used."""
    chosen = {int(api_key): choose(api_key, served) for api_key in ApiKey if api_key in served}
    return {api_key: version for api_key, version in chosen.items() if version >= 0}
