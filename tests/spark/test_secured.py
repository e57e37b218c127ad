"""Jobs on secured clusters: what Spark's own connector is told is all that ours needs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kbroker.client import AdminClient, Producer
from tests.kit.kafka.secured import PASSWORD, SecuredKafka
from tests.kit.spark.reading import last_line, load

STORE_PASSWORD = "geheim"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """With a topic, and client.p12, client.pk8 and trust.p12 beside its certificates."""
    with SecuredKafka(tmp_path_factory.mktemp("certificates")) as started:
        started.add_user()
        started.authority.issue("client")
        for command in (
            f"openssl pkcs12 -export -in client.pem -inkey client.key -out client.p12 -passout pass:{STORE_PASSWORD}",
            f"openssl pkcs8 -topk8 -in client.key -out client.pk8 -v1 PBE-SHA1-3DES -passout pass:{STORE_PASSWORD}",
            "keytool -importcert -noprompt -alias ca -file ca.pem -keystore trust.p12 -storetype PKCS12 "
            f"-storepass {STORE_PASSWORD}",
        ):
            subprocess.run(command.split(), cwd=started.authority.folder, check=True, capture_output=True, timeout=60)
        servers = f"127.0.0.1:{started.port}"
        with AdminClient(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
            admin.create_topic("events", 2)
            producer.send_many("events", [b"%d" % i for i in range(100)]).result(30)
        yield started


def options(kafka: SecuredKafka, listener: str, protocol: str, **more: Any) -> dict[str, Any]:
    return {
        "kafka.bootstrap.servers": f"127.0.0.1:{kafka.ports[listener]}",
        "kafka.security.protocol": protocol,
        "subscribe": "events",
        **{"kafka." + name.replace("_", "."): value for name, value in more.items()},
    }


def jaas(module: str, password: str = PASSWORD) -> str:
    return f'{module} required username="me" password="{password}";'


def trust(kafka: SecuredKafka, kind: str = "pem") -> dict[str, Any]:
    folder = kafka.authority.folder
    if kind == "pem":
        return {"ssl_truststore_type": "PEM", "ssl_truststore_location": folder / "ca.pem"}
    if kind == "text":
        return {"ssl_truststore_type": "PEM", "ssl_truststore_certificates": (folder / "ca.pem").read_text()}
    return {
        "ssl_truststore_type": "PKCS12",
        "ssl_truststore_location": folder / "trust.p12",
        "ssl_truststore_password": STORE_PASSWORD,
    }


def key(kafka: SecuredKafka, kind: str) -> dict[str, Any]:
    folder = kafka.authority.folder
    if kind == "text":
        return {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_certificate_chain": (folder / "client.pem").read_text(),
            "ssl_keystore_key": (folder / "client.pk8").read_text(),
            "ssl_key_password": STORE_PASSWORD,
        }
    return {
        "ssl_keystore_type": "PKCS12",
        "ssl_keystore_location": folder / "client.p12",
        "ssl_keystore_password": STORE_PASSWORD,
        "ssl_key_password": STORE_PASSWORD,
    }


def cases(kafka: SecuredKafka) -> dict[str, dict[str, Any]]:
    scram = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_jaas_config": jaas(SCRAM)}
    return {
        "plain": options(
            kafka, "SASL_PLAINTEXT", "SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=jaas(PLAIN)
        ),
        "scram-512": options(
            kafka, "SASL_PLAINTEXT", "SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=jaas(SCRAM)
        ),
        "scram-256 over TLS": options(kafka, "SASL_SSL", "SASL_SSL", **scram, **trust(kafka)),
        "TLS, PKCS12": options(kafka, "SSL", "SSL", **trust(kafka, "p12")),
        "both sides, PKCS12": options(kafka, "MUTUAL", "SSL", **trust(kafka, "p12"), **key(kafka, "p12")),
        "both sides, in place": options(kafka, "MUTUAL", "SSL", **trust(kafka, "text"), **key(kafka, "text")),
        "another's name": options(kafka, "OTHER", "SSL", **trust(kafka), ssl_endpoint_identification_algorithm=""),
    }


@pytest.mark.parametrize(
    "case",
    [
        "plain",
        "scram-256 over TLS",
        "both sides, PKCS12",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("scram-512", "TLS, PKCS12", "both sides, in place")),
        pytest.param("another's name", marks=pytest.mark.slow),
    ],
)
def test_one_word_changes(spark: SparkSession, kafka: SecuredKafka, case: str) -> None:
    found = [load(spark, form, **cases(kafka)[case]).collect() for form in ("kbroker", "kafka")]
    assert len(found[0]) == 100
    assert sorted(found[0]) == sorted(found[1])


@pytest.mark.parametrize(
    ("case", "change", "says"),
    [
        ("plain", {"kafka.sasl.jaas.config": jaas(PLAIN, "wrong")}, "AuthenticationFailed"),
        ("TLS, PKCS12", {"kafka.ssl.truststore.password": "wrong"}, "kafka.ssl.truststore.location="),
        ("another's name", {"kafka.ssl.endpoint.identification.algorithm": "https"}, "certificate"),
        ("both sides, PKCS12", {"kafka.ssl.keystore.location": "/none.p12"}, "kafka.ssl.keystore.location='/none.p12'"),
        ("scram-512", {"kafka.sasl.mechanism": "GSSAPI"}, "option kafka.sasl.mechanism=GSSAPI: not supported"),
    ],
)
def test_what_is_wrong_is_in_the_last_line(
    spark: SparkSession, kafka: SecuredKafka, case: str, change: dict[str, str], says: str
) -> None:
    given = cases(kafka)[case] | change
    for name in ("request.timeout.ms", "default.api.timeout.ms"):
        given[f"kafka.{name}"] = 5000
    with pytest.raises(Exception) as caught:
        load(spark, **given).count()
    assert says in last_line(caught.value)
    for secret in (PASSWORD, STORE_PASSWORD, "wrong"):
        assert secret not in str(caught.value)


def test_a_plan_shows_no_secret(spark: SparkSession, kafka: SecuredKafka) -> None:
    frame = load(spark, **cases(kafka)["both sides, in place"])
    shown = frame._jdf.queryExecution().toString() + repr(frame)
    assert STORE_PASSWORD not in shown and "PRIVATE KEY" not in shown


def test_files_are_read_where_the_client_is(spark: SparkSession, kafka: SecuredKafka, tmp_path: Path) -> None:
    """Files are read as with Java: on the driver to plan, and by each task."""
    given = cases(kafka)["TLS, PKCS12"]
    copy = tmp_path / "trust.p12"
    copy.write_bytes(Path(given["kafka.ssl.truststore.location"]).read_bytes())
    frame = load(spark, **given | {"kafka.ssl.truststore.location": str(copy)})
    assert frame.count() == 100
    copy.unlink()
    with pytest.raises(Exception, match=r"kafka\.ssl\.truststore\.location='.*trust.p12': No such file"):
        load(spark, **given | {"kafka.ssl.truststore.location": str(copy)}).count()
