"""Trust stores and key stores as Java's clients are told of them."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.client.security import java_stores
from tests.kit.clients.certificates import Authority

PASSWORD = "geheim"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """With client.p12 and trust.p12 as keytool and openssl make them, and old.jks."""
    made = Authority(tmp_path_factory.mktemp("stores"))
    made.issue("client")
    made.issue("locked", password=PASSWORD)
    made.issue("broker")
    trust = f"keytool -importcert -noprompt -alias ca -file ca.pem -storepass {PASSWORD} -keystore"
    for command in (
        f"openssl pkcs12 -export -in client.chain.pem -certfile ca.pem -out client.p12 -passout pass:{PASSWORD}",
        f"openssl pkcs8 -topk8 -in client.key -out client.pk8 -passout pass:{PASSWORD}",
        f"{trust} trust.p12 -storetype PKCS12",
        f"{trust} old.jks -storetype JKS",
    ):
        subprocess.run(command.split(), cwd=made.folder, check=True, capture_output=True, timeout=60)
    return made


def handshake(stores: Authority, options: dict[str, str]) -> str:
    """What the broker's side knows of who connects: its common name, or what was wrong."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(stores.folder / "broker.chain.pem")
    server.load_verify_locations(stores.certificate)
    server.verify_mode = ssl.CERT_OPTIONAL
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = java_stores.context(options).wrap_bio(theirs, ours, server_hostname="127.0.0.1")
    broker = server.wrap_bio(ours, theirs, server_side=True)
    for _ in range(4):
        for side in (client, broker):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    found = broker.getpeercert()
    return dict(part[0] for part in found["subject"])["commonName"] if found else "nobody"


def of(stores: Authority, trust: str = "pem", key: str = "") -> dict[str, str]:
    folder, read = stores.folder, lambda name: (stores.folder / name).read_text()
    return {
        "pem": {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(folder / "ca.pem")},
        "text": {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": read("ca.pem").replace("\n", " ")},
        "p12": {"ssl.truststore.location": str(folder / "trust.p12"), "ssl.truststore.password": PASSWORD},
    }[trust] | {
        "": {},
        "pem": {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "client.chain.pem")},
        "locked": {"ssl.keystore.location": str(folder / "locked.chain.pem"), "ssl.key.password": PASSWORD},
        "text": {
            "ssl.keystore.certificate.chain": read("client.pem"),
            "ssl.keystore.key": read("client.pk8").replace("\n", " "),
            "ssl.key.password": PASSWORD,
        },
        "p12": {"ssl.keystore.location": str(folder / "client.p12"), "ssl.keystore.password": PASSWORD},
    }[key]


@pytest.mark.parametrize("trust", ["pem", "text", "p12"])
@pytest.mark.parametrize(
    ("key", "name"), [("", "nobody"), ("pem", "client"), ("locked", "locked"), ("text", "client"), ("p12", "client")]
)
def test_stores_of_every_kind_are_read(stores: Authority, trust: str, key: str, name: str) -> None:
    assert handshake(stores, of(stores, trust, key)) == name


def test_a_broker_of_another_authority_is_refused(stores: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(stores, {"ssl.truststore.location": str(other.certificate)})


def test_names_are_checked_unless_told_otherwise(stores: Authority) -> None:
    assert java_stores.context(of(stores)).check_hostname
    assert not java_stores.context(of(stores) | {java_stores.ALGORITHM: ""}).check_hostname


def test_nothing_of_a_key_is_on_disk(stores: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert handshake(stores, of(stores, "p12", "p12")) == "client"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ssl.truststore.location": "{}/none.p12"}, "ssl.truststore.location='{}/none.p12': No such file"),
        (
            {"ssl.truststore.location": "{}/old.jks"},
            "keytool -importkeystore -srckeystore {}/old.jks -destkeystore {}/old.p12",
        ),
        ({"ssl.truststore.password": "wrong"}, "or ssl.truststore.password does not fit"),
        ({"ssl.truststore.password": None}, "or ssl.truststore.password is missing"),
        ({"ssl.truststore.certificates": "x"}, "ssl.truststore.certificates: no certificate in it"),
        ({"ssl.keystore.password": "wrong"}, "or ssl.keystore.password does not fit"),
        ({"ssl.keystore.location": "{}/trust.p12"}, "ssl.keystore.location='{}/trust.p12': it has no key"),
        ({"ssl.keystore.location": "{}/ca.pem"}, "it has no certificate with the key"),
        (
            {"ssl.keystore.location": "{}/locked.chain.pem", "ssl.key.password": "wrong"},
            "ssl.key.password does not fit",
        ),
        ({"ssl.keystore.key": "x"}, "ssl.keystore.key is given without ssl.keystore.certificate.chain"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(stores: Authority, change: dict[str, str | None], says: str) -> None:
    where = str(stores.folder)
    options = of(stores, "p12", "p12")
    for name, value in change.items():
        if value is None:
            del options[name]
        else:
            options[name] = value.replace("{}", where)
    with pytest.raises(ValueError) as caught:
        java_stores.context(options)
    assert says.replace("{}", where) in str(caught.value)
    assert PASSWORD not in str(caught.value) and "wrong" not in str(caught.value).replace(where, "")
    assert "\n" not in str(caught.value) and caught.value.__cause__ is None


def test_without_cryptography_it_is_said_how_to_get_it(stores: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ValueError, match=r"PKCS12 .* pip install cryptography; or"):
        java_stores.context(of(stores, "p12"))
