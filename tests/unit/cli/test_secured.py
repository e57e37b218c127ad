"""Commands with TLS, client certificates and SASL, against Apache Kafka; and what is said when those are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.kafka.secured import PASSWORD, SecuredKafka

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("certificates")) as started:
        started.add_user()
        yield started


@pytest.fixture
def kbroker(kafka: SecuredKafka) -> Run:
    """`kbroker("SSL", "topics", "list", code=1)`: runs it against that listener; PLAIN is the one without security."""

    def run(listener: str, *words: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        port = kafka.port if listener == "PLAIN" else kafka.ports[listener]
        command = [sys.executable, "-m", "kbroker.cli.main", *words, "-b", f"127.0.0.1:{port}"]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        return done

    return run


def properties(path: Path, **settings: object) -> str:
    """A file as Java's clients have it."""
    path.write_text("".join(f"{name.replace('_', '.')}={text}\n" for name, text in settings.items()))
    return str(path)


def options(**settings: object) -> list[str]:
    return [word for name, text in settings.items() for word in ("-X", f"{name.replace('_', '.')}={text}")]


def test_messages_go_in_and_out_over_tls_with_a_certificate(kafka: SecuredKafka, kbroker: Run, tmp_path: Path) -> None:
    file = properties(
        tmp_path / "client.properties",
        security_protocol="SSL",
        ssl_truststore_type="PEM",
        ssl_truststore_location=kafka.authority.certificate,
        ssl_keystore_type="PEM",
        ssl_keystore_location=kafka.authority.issue("command", password="geheim"),
        ssl_key_password="geheim",
    )
    with_file = ("--command-config", file)
    assert kbroker("MUTUAL", "topics", "create", "tls", *with_file).stderr == ""
    assert kbroker("MUTUAL", "produce", "tls", *with_file, stdin="one\ntwo\n").stderr == ""
    assert kbroker("MUTUAL", "consume", "tls", "--from-beginning", "--exit", *with_file).stdout == "one\ntwo\n"
    loads = ("--messages", "2000", "--warm-up", "0", "--json")
    assert json.loads(kbroker("MUTUAL", "perf", "produce", "tls", *loads, *with_file).stdout)["messages"] == 2000
    assert json.loads(kbroker("MUTUAL", "perf", "consume", "tls", *loads, *with_file).stdout)["messages"] == 2000
    assert kbroker("MUTUAL", "transactions", "list", "--json", *with_file).stdout == "[]\n"


def test_stores_may_be_pkcs12(kafka: SecuredKafka, kbroker: Run, tmp_path: Path) -> None:
    chain, store = kafka.authority.issue("stored"), tmp_path / "stored.p12"
    made = ("openssl", "pkcs12", "-export", "-in", chain, "-out", store, "-passout", "pass:geheim")
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    given = options(
        security_protocol="SSL",
        ssl_truststore_location=kafka.authority.certificate,
        ssl_keystore_type="PKCS12",
        ssl_keystore_location=store,
        ssl_keystore_password="geheim",
    )
    assert kbroker("MUTUAL", "topics", "list", *given).stderr == ""


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_is_that_of_javas_property_files(
    kafka: SecuredKafka, kbroker: Run, tmp_path: Path, mechanism: str
) -> None:
    quoted = PASSWORD.replace("ä", "\\u00e4")
    file = properties(
        tmp_path / "client.properties",
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        ssl_truststore_location=kafka.authority.certificate,
        sasl_jaas_config=f'{SCRAM} required \\\n  username="me" \\\n  password="{quoted}";',
    )
    kbroker("SASL_SSL", "topics", "create", "--if-not-exists", "login", "--command-config", file)
    kbroker("SASL_SSL", "configs", "describe", "topic", "login", "--command-config", file)


def test_a_password_may_be_given_as_an_option(kbroker: Run) -> None:
    given = options(security_protocol="SASL_PLAINTEXT", sasl_username="me", sasl_password=PASSWORD)
    kbroker("SASL_PLAINTEXT", "groups", "list", *given)


WRONG = [
    ("SASL_PLAINTEXT", {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "me", "sasl_password": "x"}, "look at"),
    (
        "SASL_PLAINTEXT",
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_username": "me",
            "sasl_password": "x",
            "sasl_mechanism": "SCRAM-SHA-512",
        },
        "invalid credentials with SASL mechanism SCRAM-SHA-512 (look at sasl.username and sasl.password)",
    ),
    ("SASL_PLAINTEXT", {"security_protocol": "SASL_PLAINTEXT"}, "needs sasl.username"),
    ("SASL_PLAINTEXT", {}, "does its listener speak security.protocol=PLAINTEXT?"),
    ("SSL", {}, "it answers as a TLS listener does (does its listener speak security.protocol=PLAINTEXT?"),
    ("SSL", {"security_protocol": "SSL"}, "set ssl.ca.location"),
    ("SSL", {"security_protocol": "SSL", "ssl_ca_location": "/no/file.pem"}, "ssl.ca.location='/no/file.pem'"),
    ("SSL", {"security_protocol": "SSL", "ssl_ca_location": __file__}, "it must be a PEM file or folder"),
    ("SSL", {"security_protocol": "SSL", "ssl_truststore_location": __file__}, "it is no PEM or PKCS12 file"),
    ("SSL", {"security_protocol": "SSL", "sasl_jaas_config": "x"}, "sasl.jaas.config is not MODULE required"),
    ("OTHER", {"security_protocol": "SSL", "ssl_ca_location": "{ca}"}, "ssl.endpoint.identification.algorithm=none"),
    ("MUTUAL", {"security_protocol": "SSL", "ssl_ca_location": "{ca}"}, "or misses one (ssl.certificate.location)"),
    ("PLAIN", {"security_protocol": "SSL", "ssl_ca_location": "{ca}"}, "is it a TLS listener"),
    ("PLAIN", {"security_protocol": "TLS"}, "security.protocol='TLS'"),
]


@pytest.mark.parametrize(("listener", "given", "says"), WRONG)
def test_what_is_wrong_is_one_line_at_once(
    kafka: SecuredKafka, kbroker: Run, listener: str, given: dict[str, str], says: str
) -> None:
    """Long before the time that would be waited for a broker."""
    words = options(**{name: text.replace("{ca}", str(kafka.authority.certificate)) for name, text in given.items()})
    said = kbroker(listener, "topics", "list", "--timeout", "600", *words, code=1).stderr
    assert said.startswith("kbroker: ") and said.count("\n") == 1 and says in said


@pytest.mark.parametrize("command", [("produce", "t"), ("consume", "t"), ("perf", "produce", "t"), ("groups", "list")])
def test_every_command_says_it(kbroker: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    missing = str(tmp_path / "none.properties")
    said = kbroker("SSL", *command, "--command-config", missing, code=1).stderr
    assert said == f"kbroker: {missing}: cannot read it: no such file or directory\n"
    assert "it answers as a TLS listener does" in kbroker("SSL", *command, code=1).stderr
