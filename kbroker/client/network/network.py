"""What all connections of a client share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.client.config.option import Options
from kbroker.client.network.thread import ClientThread
from kbroker.client.security.sasl import sasl_exchange, uses_sasl
from kbroker.client.security.tls import ssl_context, uses_tls
from kbroker.protocol import messages as M

if TYPE_CHECKING:
    import ssl


class Network:
    """The state that all connections of a client share: its thread, its options, the cluster's features.

    For the client's thread.
    """

    def __init__(self, thread: ClientThread, options: Options):
        """Raises ValueError when the security options do not fit together."""
        self.thread = thread
        self.options = options
        self.client_id: str = options["client.id"]
        self.request_timeout_ms: int = options["request.timeout.ms"]
        self.setup_timeout_s = options.seconds("socket.connection.setup.timeout.ms")
        self.ssl_context: ssl.SSLContext | None = ssl_context(options) if uses_tls(options) else None
        self.features: dict[str, int] = {}
        """Levels of the cluster's finalized features, from the newest ApiVersions response (KIP-584)."""
        self._features_epoch = -1
        self.silent: set[str] = set()
        """Addresses of brokers that do not answer ApiVersions (see broker.version.fallback)."""
        self.uses_sasl = uses_sasl(options)
        if self.uses_sasl:
            sasl_exchange(options)

    def note_features(self, answer: M.ApiVersionsResponse) -> None:
        """Note the features of an ApiVersions response, unless it is from a broker that lags behind (older epoch)."""
        if answer.finalized_features_epoch >= max(self._features_epoch, 0):
            self._features_epoch = answer.finalized_features_epoch
            self.features = {each.name: each.max_version_level for each in answer.finalized_features}
