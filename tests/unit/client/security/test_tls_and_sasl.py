"""TLS and SASL against Apache Kafka, which has both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.client.errors import AuthenticationFailed, ClientError, ConnectionFailed
from kbroker.client.network.cluster import Cluster
from kbroker.client.network.connecting import connect
from kbroker.client.network.connection import Connection
from kbroker.protocol import messages as M
from tests.kit.kafka.process import Kafka4InMemory
from tests.kit.kafka.secured import PASSWORD, SecuredKafka

MakeCluster = Callable[..., Cluster]
pytestmark = pytest.mark.slow


class SecuredKafka4(SecuredKafka):
    """The newest."""

    version = Kafka4InMemory.version


@pytest.fixture(scope="module", params=[SecuredKafka, SecuredKafka4], ids=["3.9", "4.3"])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with request.param(tmp_path_factory.mktemp("certificates")) as started:
        started.add_user()
        yield started


def connected(cluster: Cluster, port: int, host: str = "127.0.0.1") -> Connection:
    return cluster.network.thread.call(connect(cluster.network, host, port), 60)


def asks(cluster: Cluster, connection: Connection) -> Any:
    return cluster.network.thread.call(connection.call(M.MetadataRequest(topics=[])), 60)


def trusting(kafka: SecuredKafka, **options: Any) -> dict[str, Any]:
    return {"security_protocol": "SSL", "ssl_ca_location": kafka.authority.certificate, **options}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_broker_whose_certificate_is_trusted_is_talked_to(
    kafka: SecuredKafka, cluster_of: MakeCluster, host: str
) -> None:
    cluster = cluster_of(**trusting(kafka))
    connection = connected(cluster, kafka.ports["SSL"], host)
    assert asks(cluster, connection).brokers[0].port == kafka.ports["SSL"]
    # Larger than a TLS record in both directions.
    topics = [M.MetadataRequest.MetadataRequestTopic(name=f"no-such-{number:05}") for number in range(5_000)]
    request = M.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    answer = cluster.network.thread.call(connection.call(request), 60)
    assert len(answer.topics) == len(topics)


def test_a_certificate_of_nobody_we_know_is_refused(kafka: SecuredKafka, cluster_of: MakeCluster) -> None:
    cluster = cluster_of(security_protocol="SSL")
    with pytest.raises(AuthenticationFailed, match=r"self-signed|unable to get") as raised:
        connected(cluster, kafka.ports["SSL"])
    assert "ssl.ca.location" in raised.value.hint
    assert not raised.value.retriable


def test_a_certificate_for_another_name_is_refused_unless_names_do_not_matter(
    kafka: SecuredKafka, cluster_of: MakeCluster
) -> None:
    with pytest.raises(AuthenticationFailed, match="not valid for") as raised:
        connected(cluster_of(**trusting(kafka)), kafka.ports["OTHER"])
    assert "ssl.endpoint.identification.algorithm" in raised.value.hint


def test_names_may_be_told_not_to_matter(kafka: SecuredKafka, cluster_of: MakeCluster) -> None:
    cluster = cluster_of(**trusting(kafka, ssl_endpoint_identification_algorithm=""))
    assert asks(cluster, connected(cluster, kafka.ports["OTHER"]))


def test_a_broker_that_asks_for_a_certificate_takes_ours(kafka: SecuredKafka, cluster_of: MakeCluster) -> None:
    chain = kafka.authority.issue("client", password="geheim")
    cluster = cluster_of(**trusting(kafka, ssl_certificate_location=chain, ssl_key_password="geheim"))
    assert asks(cluster, connected(cluster, kafka.ports["MUTUAL"]))
    with pytest.raises(ValueError, match=r"ssl\.key\.password"):
        cluster_of(**trusting(kafka, ssl_certificate_location=chain, ssl_key_password="falsch"))


def test_a_broker_that_misses_our_certificate_is_told_of(kafka: SecuredKafka, cluster_of: MakeCluster) -> None:
    with pytest.raises(ClientError, match=r"certificate|closed") as raised:
        connected(cluster_of(**trusting(kafka)), kafka.ports["MUTUAL"])
    assert isinstance(raised.value, AuthenticationFailed | ConnectionFailed)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_who_knows_the_password_is_let_in(
    kafka: SecuredKafka, cluster_of: MakeCluster, mechanism: str, protocol: str
) -> None:
    options = trusting(kafka, security_protocol=protocol, sasl_mechanism=mechanism, sasl_username="me")
    cluster = cluster_of(**options, sasl_password=PASSWORD)
    assert asks(cluster, connected(cluster, kafka.ports[protocol])).brokers
    with pytest.raises(AuthenticationFailed, match=r"[Aa]uthentication failed") as raised:
        connected(cluster_of(**options, sasl_password="falsch"), kafka.ports[protocol])
    assert not raised.value.retriable
    assert "sasl.password" in str(raised.value)


def test_an_authentication_that_ends_is_renewed(kafka: SecuredKafka, cluster_of: MakeCluster) -> None:
    """The listener lets SCRAM-SHA-512 hold for 1.5 s and closes who asks anything behind that."""
    options = trusting(kafka, security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", sasl_username="me")
    cluster = cluster_of(**options, sasl_password=PASSWORD)
    connection = connected(cluster, kafka.ports["SASL_PLAINTEXT"])
    until = time.monotonic() + 4
    while time.monotonic() < until:
        assert asks(cluster, connection).brokers
    assert not connection.is_closed


def test_a_plain_client_at_a_secured_listener_is_told_what_to_look_at(
    kafka: SecuredKafka, cluster_of: MakeCluster
) -> None:
    with pytest.raises(ClientError, match=r"security\.protocol=PLAINTEXT"):
        connected(cluster_of(request_timeout_ms=10_000), kafka.ports["SSL"])
