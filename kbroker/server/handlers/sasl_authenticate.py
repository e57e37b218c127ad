"""SaslAuthenticate, key 36, versions 0 to 2: refused, as by a Kafka listener without SASL (KIP-152).

Leaves out: SASL mechanisms; there is no SASL listener.

v0  first
v1  session lifetime (KIP-368)
v2  flexible
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.services import Services

# The text of Kafka's response.
REFUSAL = "SaslAuthenticate request received after successful authentication"


def handle(services: Services, request: Request, message: M.SaslAuthenticateRequest) -> M.SaslAuthenticateResponse:
    return M.SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=REFUSAL)
