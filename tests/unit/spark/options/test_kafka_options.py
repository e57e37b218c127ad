"""Options of Java's clients as a job has them for Spark's own connector."""

from __future__ import annotations

import logging
import pickle
import ssl
from pathlib import Path

import pytest

from kbroker.client.config.consumer import CONSUMER
from kbroker.client.config.network import NETWORK
from kbroker.client.config.producer import PRODUCER
from kbroker.spark.errors import WrongOption
from kbroker.spark.options.format_options import SparkOptions, Use
from kbroker.spark.options.kafka_options import check_allowed, client_options
from tests.kit.clients.certificates import Authority

SERVERS = {"bootstrap.servers": "a:9092"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule"
SECRET = "sesame-42"


def sasl(module: str = PLAIN, **more: str) -> dict[str, str]:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.jaas.config": f'{module} required username="me" password="{SECRET}";',
    }
    return SERVERS | options | {name.replace("_", "."): value for name, value in more.items()}


def test_what_our_clients_know_is_passed_on_to_those_that_know_it() -> None:
    given = SERVERS | {"fetch.min.bytes": "7", "linger.ms": "5", "client.id": "x", "isolation.level": "read_committed"}
    assert client_options(given, NETWORK) == SERVERS | {"client.id": "x"}
    assert client_options(given, CONSUMER) == {name: given[name] for name in given if name != "linger.ms"}
    assert client_options(given, PRODUCER) == SERVERS | {"client.id": "x", "linger.ms": "5"}


@pytest.mark.parametrize(("module", "mechanism"), [(PLAIN, ""), (PLAIN, "PLAIN"), (SCRAM, "SCRAM-SHA-512")])
def test_jaas_says_who_to_be(module: str, mechanism: str) -> None:
    given = sasl(module, **({"sasl_mechanism": mechanism} if mechanism else {}))
    found = client_options(given)
    assert (found["sasl.username"], found["sasl.password"]) == ("me", SECRET)
    assert found.get("sasl.mechanism", "") == mechanism
    assert "sasl.jaas.config" not in found


def test_our_own_names_of_it_are_taken_too() -> None:
    given = SERVERS | {"security.protocol": "SASL_SSL", "sasl.username": "me", "sasl.password": SECRET}
    assert client_options(given) == given


def test_what_no_connection_needs_is_not_looked_at() -> None:
    given = sasl(security_protocol="PLAINTEXT", sasl_mechanism="GSSAPI") | {"ssl.truststore.location": "/none"}
    assert client_options(given) == SERVERS | {"security.protocol": "PLAINTEXT"}


def test_stores_become_a_context(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    given = SERVERS | {"security.protocol": "ssl", "ssl.truststore.location": str(authority.certificate)}
    found = client_options(given)
    assert isinstance(found.pop("ssl.context"), ssl.SSLContext)
    assert found == SERVERS | {"security.protocol": "ssl"}


def test_pem_files_by_our_own_names_are_the_clients_to_read() -> None:
    given = SERVERS | {"security.protocol": "SSL", "ssl.ca.location": "ca.pem", "ssl.key.password": SECRET}
    assert client_options(given) == given


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (sasl(sasl_mechanism="GSSAPI"), "option kafka.sasl.mechanism=GSSAPI: not supported; PLAIN, SCRAM-SHA-256 and"),
        (sasl(sasl_mechanism="OAUTHBEARER"), "option kafka.sasl.mechanism=OAUTHBEARER: not supported"),
        (sasl(sasl_mechanism="SCRAM"), "option kafka.sasl.mechanism='SCRAM': must be one of"),
        (sasl(SCRAM), "option kafka.sasl.mechanism is missing: SCRAM-SHA-256 or"),
        (sasl("x.OAuthBearerLoginModule"), "option kafka.sasl.jaas.config: OAuthBearerLoginModule is not supported"),
        (sasl(sasl_jaas_config=SECRET), "option kafka.sasl.jaas.config is not MODULE required"),
        (SERVERS | {"security.protocol": "SASL_SSL"}, "option kafka.sasl.jaas.config is missing"),
        (sasl() | {"sasl.login.callback.handler.class": "a.B"}, "handler.class cannot be used: there is no Java here"),
        (SERVERS | {"fetch.min.bytes": "x"}, "option kafka.fetch.min.bytes='x': must be an integer"),
        (SERVERS | {"security.protocol": "TLS"}, "option kafka.security.protocol='TLS': must be one of"),
        (
            SERVERS | {"security.protocol": "SSL", "ssl.keystore.location": "a", "ssl.ca.location": "b"},
            "options kafka.ssl.ca.location and kafka.ssl.keystore.location are given",
        ),
        (
            SERVERS | {"security.protocol": "SSL", "ssl.truststore.location": "/none.jks"},
            "option kafka.ssl.truststore.location='/none.jks': No such file",
        ),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_is(given: dict[str, str], says: str) -> None:
    with pytest.raises(WrongOption) as caught:
        client_options(given, CONSUMER)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "writing"),
    [
        ("auto.offset.reset", False),
        ("enable.auto.commit", False),
        ("interceptor.classes", False),
        ("key.deserializer", False),
        ("value.deserializer", False),
        ("key.serializer", True),
        ("value.serializer", True),
    ],
)
def test_what_sparks_connector_refuses_is_refused(name: str, writing: bool) -> None:
    with pytest.raises(WrongOption, match=f"option kafka.{name} cannot be set"):
        check_allowed(SERVERS | {name: "x"}, writing=writing)
    check_allowed(SERVERS | {name: "x"}, writing=not writing)


def test_brokers_must_be_named() -> None:
    for given in ({}, {"bootstrap.servers": " "}):
        with pytest.raises(WrongOption, match=r"option kafka.bootstrap.servers is missing"):
            check_allowed(given, writing=False)


@pytest.mark.parametrize(
    ("name", "level", "says"),
    [
        ("partition.assignment.strategy", logging.DEBUG, "is not used"),
        ("metric.reporters", logging.DEBUG, "is not used"),
        ("linger.ms", logging.DEBUG, "is not used"),
        ("ssl.cipher.suites", logging.WARNING, "is not used: TLS 1.2 and 1.3"),
        ("fetch.mim.bytes", logging.WARNING, "is not known and not used; the nearest is kafka.fetch.min.bytes"),
        ("ssl.truststore.locatoin", logging.WARNING, "the nearest is kafka.ssl.truststore.location"),
    ],
)
def test_what_is_of_no_use_is_said(name: str, level: int, says: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kbroker.spark"):
        assert client_options(SERVERS | {name: SECRET}, CONSUMER) == SERVERS
    (record,) = caplog.records
    assert record.levelno == level
    assert record.getMessage().startswith(f"option kafka.{name} ") and says in record.getMessage()
    assert SECRET not in record.getMessage()


def test_options_show_no_secret_even_where_they_have_been_sent() -> None:
    given = {f"kafka.{name}": value for name, value in sasl().items()} | {"subscribe": "t"}
    for options in (found := SparkOptions(given, Use.BATCH_READ), pickle.loads(pickle.dumps(found))):
        assert options.client["sasl.jaas.config"].endswith(f'"{SECRET}";')
        for shown in (repr(options), repr(options.client), str(options.client), f"{vars(options)}"):
            assert SECRET not in shown
