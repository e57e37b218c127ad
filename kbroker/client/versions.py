"""Which version of each API this client uses: of those it knows how to fill in the highest the broker serves."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.protocol.api import ApiKey, request_class

HIGHEST = {
    ApiKey.PRODUCE: 12,  # 13 names topics by id
    ApiKey.FETCH: 12,  # the same
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 9,  # 10 names topics by id
    ApiKey.OFFSET_FETCH: 9,  # the same
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,  # from 4 on it is between brokers
}


def choose(api_key: ApiKey, served: Mapping[int, tuple[int, int]]) -> int:
    """The version to use with a broker that serves these (lowest, highest); -1: none."""
    try:
        message = request_class(api_key)
    except AttributeError:
        return -1
    lowest, highest = served.get(api_key, (0, -1))
    version = min(highest, message.MAX_VERSION, HIGHEST.get(api_key, message.MAX_VERSION))
    return version if version >= max(lowest, message.MIN_VERSION) else -1


def choose_all(served: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """API key -> version to use, of those that can be used."""
    chosen = {int(api_key): choose(api_key, served) for api_key in ApiKey if api_key in served}
    return {api_key: version for api_key, version in chosen.items() if version >= 0}
