"""SaslHandshake, key 17, versions 0 to 1: refused, as by a Kafka listener without SASL.

Leaves out: SASL mechanisms; there is no SASL listener.

v0  the client would send its tokens as bare bytes
v1  the client would send its tokens in SaslAuthenticate (KIP-152)
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.SaslHandshakeRequest) -> M.SaslHandshakeResponse:
    return M.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
