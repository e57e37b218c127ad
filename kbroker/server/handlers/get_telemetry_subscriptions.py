"""GetTelemetrySubscriptions, key 71, version 0: the metrics that a client is to push (KIP-714).

The answer names no metrics: a client gets its instance id and asks again after five minutes. Nothing is remembered of
clients, so one that asks earlier is not throttled.
Leaves out: PushTelemetry, since no client has anything to push.

v0  first
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from kbroker.protocol import messages as M

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

NO_ID = bytes(16)
PUSH_INTERVAL_MS = 300_000
TELEMETRY_MAX_BYTES = 1 << 20
ZSTD, LZ4, GZIP, SNAPPY = 4, 3, 1, 2


def handle(
    services: Services, request: Request, message: M.GetTelemetrySubscriptionsRequest
) -> M.GetTelemetrySubscriptionsResponse:
    known = message.client_instance_id
    return M.GetTelemetrySubscriptionsResponse(
        client_instance_id=uuid.uuid4().bytes if known == NO_ID else known,
        accepted_compression_types=[ZSTD, LZ4, GZIP, SNAPPY],
        push_interval_ms=PUSH_INTERVAL_MS,
        telemetry_max_bytes=TELEMETRY_MAX_BYTES,
        delta_temporality=True,
    )
