"""ApiVersions, key 18, versions 0 to 4: the APIs, their versions and the features that this broker has.

The compiled core answers a version that is not served, with error 35 (UNSUPPORTED_VERSION) in version 0.
Leaves out: nothing.

v0  first
v1  throttle time
v2  as v1; the throttle is applied after the response
v3  flexible; client name and version (KIP-511), features (KIP-584)
v4  features from level 0 on
"""

from __future__ import annotations

import re

from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED
from kbroker.rules.transaction import EPOCH_VERSION, FEATURE, FIRST_VERSION
from kbroker.server.handlers.shared.features import Features
from kbroker.server.handlers.shared.services import Services

FIRST_VERSION_WITH_CLIENT = 3
FIRST_VERSION_WITH_FEATURES = 3
FIRST_VERSION_WITH_ZERO = 4
CLIENT_WORD = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def handle(services: Services, request: Request, message: M.ApiVersionsRequest) -> None:
    version = request.api_version
    if version >= FIRST_VERSION_WITH_CLIENT:
        name, release = message.client_software_name, message.client_software_version
        if not CLIENT_WORD.fullmatch(name) or not CLIENT_WORD.fullmatch(release):
            raise ProtocolError(ErrorCode.INVALID_REQUEST)
        request.connection.session["client software"] = (name, release)
    encoded = services.features.encoded
    body = encoded.get(version)
    if body is None:
        body = encoded[version] = _response(version, services.features).encode(version)
    request.respond(body)


def _response(version: int, features: Features) -> M.ApiVersionsResponse:
    R = M.ApiVersionsResponse
    served = [(key, features.versions_of(key)) for key in sorted(SERVED.keys() - features.not_advertised)]
    answer = R(
        api_keys=[
            R.ApiVersion(api_key=key, min_version=versions.min, max_version=versions.max) for key, versions in served
        ]
    )
    if version >= FIRST_VERSION_WITH_FEATURES:
        name, level = FEATURE, features.transaction_version
        answer.finalized_features_epoch = features.epoch
        answer.finalized_features = [R.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)]
        if version >= FIRST_VERSION_WITH_ZERO:
            answer.supported_features = [
                R.SupportedFeatureKey(name=name, min_version=FIRST_VERSION, max_version=EPOCH_VERSION)
            ]
    return answer
