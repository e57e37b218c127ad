"""Which features of the protocol are served, by the kind of the cluster's members.

In a cluster of kbrokers everything is. Beside an Apache Kafka 3.9 member only what that one can do: the coordinator of
a group or a transaction may move to it, and it does not know consumer groups of KIP-848 nor the second part of KIP-890.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kbroker.clock import Clock
from kbroker.protocol.api import SERVED, ApiKey, ApiVersions

if TYPE_CHECKING:
    from kbroker.cluster.cluster import Cluster

FEATURE_OF_KAFKA = 1
"""The level of transaction.version beside an Apache Kafka 3.9. Its clients keep their epoch."""

HIGHEST_BESIDE_KAFKA = {
    ApiKey.PRODUCE: 11,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.LIST_CONFIG_RESOURCES: 0,
}
"""The highest versions of Apache Kafka 3.9 where newer ones are for what is not served beside it: transactions of
version 2, configs of groups. A client may have asked for the versions before the Kafka joined. Newer ones are still
answered, but for EndTxn, which closes the connection, so that the client asks again.

ConsumerGroupHeartbeat and ConsumerGroupDescribe are not among them, though Kafka 3.9 has version 0 only: librdkafka
knows no version 0, and waits for ever without a word where there is no other one. In every version they are answered
UNSUPPORTED_VERSION, which all clients tell or go by. WriteTxnMarkers is not either: between kbrokers a transaction of
version 2 that was open when the Kafka joined ends in version 2."""

ONLY_ALONE = frozenset({ApiKey.DESCRIBE_QUORUM})
"""What a member does not serve: as with an Apache Kafka 3.9 in ZooKeeper mode, there is no quorum to describe."""


class Features:
    """The features that are served now. May be used by any thread."""

    def __init__(self, cluster: Cluster, clock: Clock):
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self.epoch = 0
        """Grows with each change of the features: a client believes the broker with the highest epoch."""
        self.encoded: dict[int, bytes] = {}
        """The features as responses to ApiVersions, by version. A change of the features puts an empty dict here. Who
        adds a response has taken the dict before it has looked at the features."""
        if not cluster.is_alone:
            self.kind_changed()
            cluster.on_kind_change(self.kind_changed)

    def kind_changed(self) -> None:
        """Note that `cluster.only_kbrokers` has changed. The epoch is a time, so that brokers need not agree on it."""
        with self._lock:
            self.epoch = max(self.epoch + 1, self._clock.wall_ms() // 1000)
            self.encoded = {}

    @property
    def consumer_groups(self) -> bool:
        """Whether groups of the consumer protocol (KIP-848) are served."""
        return self._cluster.only_kbrokers

    @property
    def transaction_version(self) -> int:
        """The level of transaction.version."""
        from kbroker.rules.transaction import EPOCH_VERSION

        return EPOCH_VERSION if self._cluster.only_kbrokers else FEATURE_OF_KAFKA

    @property
    def not_advertised(self) -> frozenset[ApiKey]:
        """The APIs that are answered, if at all, with UNSUPPORTED_VERSION."""
        return frozenset() if self._cluster.is_alone else ONLY_ALONE

    def versions_of(self, api_key: ApiKey) -> ApiVersions:
        """The versions of an API that are advertised."""
        versions = SERVED[api_key]
        highest = None if self._cluster.only_kbrokers else HIGHEST_BESIDE_KAFKA.get(api_key)
        return versions if highest is None else versions._replace(max=highest)
