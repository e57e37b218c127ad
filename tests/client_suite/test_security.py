"""TLS with client certificates and SASL against Apache Kafka of several ages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.client import AdminClient
from kbroker.client.errors import AuthenticationFailed, ClientError
from tests.client_suite.secured import (
    MECHANISMS,
    PASSWORD,
    Secured,
    Secured010,
    Secured25,
    Secured43,
    SecuredOnZooKeeper,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[Secured010, Secured25, SecuredOnZooKeeper, Secured43])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    process: Secured = request.param()
    process.secure(tmp_path_factory.mktemp("certificates"))
    with process:
        yield process


def admin_of(kafka: Secured, protocol: str, **options: Any) -> AdminClient:
    given: dict[str, Any] = {"bootstrap_servers": f"127.0.0.1:{kafka.ports[protocol]}", "security_protocol": protocol}
    if protocol.endswith("SSL"):
        given["ssl_ca_location"] = kafka.authority.certificate
        given["ssl_certificate_location"] = kafka.authority.issue("client")
    if protocol.startswith("SASL"):
        given |= {"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": PASSWORD}
    return AdminClient(**(given | options))


WAYS = [(protocol, mechanism) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS]


@pytest.mark.parametrize(("protocol", "mechanism"), [("SSL", None), *WAYS])
def test_who_proves_who_he_is_is_let_in(kafka: Secured, protocol: str, mechanism: str | None) -> None:
    options = {"sasl_mechanism": mechanism} if mechanism else {}
    with admin_of(kafka, protocol, **options) as admin:
        (node,) = admin.describe_cluster().brokers
        assert node.port == kafka.ports[protocol]
        name = f"secured-{protocol}-{mechanism}"
        admin.create_topic(name, 1, 1)
        assert name in admin.list_topics()


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_a_wrong_password_is_said_and_not_tried_again(kafka: Secured, protocol: str, mechanism: str) -> None:
    with admin_of(kafka, protocol, sasl_mechanism=mechanism, sasl_password="falsch") as admin:
        with pytest.raises(AuthenticationFailed) as raised:
            admin.list_topics()
        assert not raised.value.retriable
        assert "sasl.password" in str(raised.value)


def test_who_brings_no_certificate_is_not_let_in(kafka: Secured) -> None:
    options = {"ssl_certificate_location": None, "default_api_timeout_ms": 2_000}
    with (
        admin_of(kafka, "SSL", **options) as admin,
        pytest.raises(ClientError, match=r"(?i)certificate|closed"),
    ):
        admin.list_topics()
