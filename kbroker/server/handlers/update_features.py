"""UpdateFeatures, key 57, versions 0 to 1: change the levels of the cluster's features (KIP-584).

Each update has its own result, as in Kafka 3.9. An update that would change something is refused with
INVALID_UPDATE_VERSION. In a cluster only the controller judges; other brokers answer NOT_CONTROLLER.
Leaves out: changes. The only feature, transaction.version, has a level that the kind of the cluster's members decides.

v0  first
v1  the kind of a downgrade, and validation only (KIP-778)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.rules.transaction import EPOCH_VERSION, FEATURE

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

_Response = M.UpdateFeaturesResponse
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


def handle(services: Services, request: Request, message: M.UpdateFeaturesRequest) -> M.UpdateFeaturesResponse:
    """Answer the request at once. A feature named twice is answered once, for its last update."""
    if not services.cluster.is_controller:
        return _Response(error_code=ErrorCode.NOT_CONTROLLER, error_message="")
    updates = {each.feature: each for each in message.feature_updates}
    level = services.features.transaction_version
    results = [_judged(each, request.api_version, level) for each in updates.values()]
    return _Response(error_message="", results=results)


def _judged(
    update: M.UpdateFeaturesRequest.FeatureUpdateKey, version: int, level_now: int
) -> M.UpdateFeaturesResponse.UpdatableFeatureResult:
    problem = _problem(update.feature, update.max_version_level, _kind_of(update, version), level_now)
    return _Response.UpdatableFeatureResult(
        feature=update.feature,
        error_code=ErrorCode.NONE if problem is None else ErrorCode.INVALID_UPDATE_VERSION,
        error_message=problem,
    )


def _kind_of(update: M.UpdateFeaturesRequest.FeatureUpdateKey, version: int) -> int:
    if version == 0:
        return _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
    return update.upgrade_type


def _problem(feature: str, level: int, kind: int, level_now: int) -> str | None:
    """Return why the update is refused; None if nothing would change.

    The text is short, since a request may have many updates.
    """
    if kind not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        return f"no upgrade type {kind}"
    if level < 0:
        return "below level 0"
    if feature != FEATURE:
        return "no such feature" if level > 0 else None
    if level == level_now:
        return None
    beside = "" if level_now == EPOCH_VERSION else " beside an Apache Kafka 3.9"
    return f"{feature} is always at level {level_now}{beside}"
