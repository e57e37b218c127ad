"""What is served beside an Apache Kafka member, and how clients hear of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.server.handlers import end_txn
from kbroker.server.handlers.shared.features import Features
from kbroker.server.handlers.shared.services import Services
from tests.kit.logs.home import ManualClock
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.handlers import Call, Caller, call, services_on


class Kind:
    """A cluster of which only the kind of its members is asked."""

    only_kbrokers = True
    is_alone = True


class Bench:
    def __init__(self, services: Services):
        self.kind, self.clock, self.services = Kind(), ManualClock(), services
        services.features = Features(cast(Any, self.kind), self.clock)

    def join(self, is_kafka: bool) -> None:
        """Have a Kafka join, or the last one leave."""
        self.kind.only_kbrokers = not is_kafka
        self.services.features.kind_changed()

    def api_versions(self, version: int = 3) -> Any:
        asked = M.ApiVersionsRequest(client_software_name="test", client_software_version="1")
        return call(self.services, ApiKey.API_VERSIONS, version, asked)

    def highest(self) -> dict[int, int]:
        return {each.api_key: each.max_version for each in self.api_versions().api_keys}

    def levels(self, version: int = 3) -> list[tuple[str, int, int]]:
        told = self.api_versions(version).finalized_features
        return [(each.name, each.min_version_level, each.max_version_level) for each in told]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    cluster = Cluster(tmp_path)
    yield Bench(services_on(cluster))
    cluster.close()


def test_among_kbrokers_everything_is_served(bench: Bench) -> None:
    assert bench.highest() == {key: versions.max for key, versions in SERVED.items()}
    assert bench.levels() == bench.levels(4) == [("transaction.version", 2, 2)]
    assert bench.highest().keys() == SERVED.keys()


def test_beside_a_kafka_clients_keep_their_epochs_and_ask_for_no_configs_of_groups(bench: Bench) -> None:
    """ConsumerGroupHeartbeat stays as it is: librdkafka asks only where there is version 1, and hears of no error."""
    bench.join(is_kafka=True)
    changed = {key: top for key, top in bench.highest().items() if top != SERVED[ApiKey(key)].max}
    assert changed == {
        ApiKey.PRODUCE: 11,
        ApiKey.END_TXN: 4,
        ApiKey.TXN_OFFSET_COMMIT: 4,
        ApiKey.LIST_CONFIG_RESOURCES: 0,
    }
    assert bench.levels() == [("transaction.version", 1, 1)]
    bench.join(is_kafka=False)
    assert bench.levels() == [("transaction.version", 2, 2)]


def test_a_client_hears_of_each_change_by_a_higher_epoch(bench: Bench) -> None:
    epochs = [bench.api_versions().finalized_features_epoch]
    for is_kafka in (True, False, True, False):
        bench.join(is_kafka)
        epochs.append(bench.api_versions().finalized_features_epoch)
    bench.clock.set_by_ms = -3_600_000
    bench.join(is_kafka=True)
    epochs.append(bench.api_versions().finalized_features_epoch)
    assert epochs == sorted(set(epochs)) and epochs[0] == 0


def test_beside_a_kafka_there_are_no_consumer_groups(bench: Bench) -> None:
    bench.join(is_kafka=True)
    beat = M.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
    asked = M.ConsumerGroupDescribeRequest(group_ids=["g"])
    for version in (0, 1):
        told = call(bench.services, ApiKey.CONSUMER_GROUP_HEARTBEAT, version, beat)
        assert told.error_code == ErrorCode.UNSUPPORTED_VERSION
        (described,) = call(bench.services, ApiKey.CONSUMER_GROUP_DESCRIBE, version, asked).groups
        assert described.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_who_ends_a_transaction_as_among_kbrokers_has_to_ask_for_versions_again(bench: Bench) -> None:
    """A Kafka that leads a partition would take the next transaction for part of this one: both have the new epoch."""
    bench.join(is_kafka=True)
    request = Call(5, Caller())
    asked = M.EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, committed=True)
    end_txn.handle(bench.services, cast(Any, request), asked)
    assert request.closed == ["EndTxn 5 is not served any more: a Kafka is a member of the cluster"]
    assert request.answers == []


def test_the_level_is_not_to_be_changed(bench: Bench) -> None:
    def update(level: int) -> ErrorCode:
        wanted = M.UpdateFeaturesRequest.FeatureUpdateKey(
            feature="transaction.version", max_version_level=level, upgrade_type=1
        )
        asked = M.UpdateFeaturesRequest(feature_updates=[wanted])
        (result,) = call(bench.services, ApiKey.UPDATE_FEATURES, 1, asked).results
        return ErrorCode(result.error_code)

    assert [update(1), update(2)] == [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NONE]
    bench.join(is_kafka=True)
    assert [update(1), update(2)] == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]


def test_a_member_has_no_quorum_to_describe(bench: Bench) -> None:
    bench.kind.is_alone = False
    assert bench.highest().keys() == SERVED.keys() - {ApiKey.DESCRIBE_QUORUM}
