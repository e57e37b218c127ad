"""SaslHandshake (key 17), versions 0 and 1: a listener without SASL refuses it, as Apache Kafka's does.

What it leaves out: mechanisms; there is no SASL listener yet.

v0: the tokens follow as bare bytes.
v1: they follow in SaslAuthenticate (KIP-152).
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.server.services import Services


def handle(services: Services, request: Request, message: M.SaslHandshakeRequest) -> M.SaslHandshakeResponse:
    return M.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
