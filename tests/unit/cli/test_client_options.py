"""What the arguments and property files of commands are as options of clients."""

from __future__ import annotations

import argparse
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.client_options import add_cluster, client_options, make_client
from kbroker.client import AdminClient
from kbroker.client.config.network import NETWORK
from kbroker.errors import KbrokerError
from kbroker.spark.options.kafka_options import client_options as spark_options
from tests.kit.clients.certificates import Authority

PASSWORD = "geheim"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """With client.p12, trust.p12 and old.jks."""
    made = Authority(tmp_path_factory.mktemp("stores"))
    made.issue("client")
    trust = f"keytool -importcert -noprompt -alias ca -file ca.pem -storepass {PASSWORD} -keystore"
    for command in (
        f"openssl pkcs12 -export -in client.chain.pem -certfile ca.pem -out client.p12 -passout pass:{PASSWORD}",
        f"{trust} trust.p12 -storetype PKCS12",
        f"{trust} old.jks -storetype JKS",
    ):
        subprocess.run(command.split(), cwd=made.folder, check=True, capture_output=True, timeout=60)
    return made


def given(path: Path, lines: str, *words: str) -> dict[str, Any]:
    """What a command finds in a property file and its other words."""
    file = path / "client.properties"
    file.write_text(lines)
    parser = argparse.ArgumentParser()
    add_cluster(parser)
    return client_options(parser.parse_args(["--command-config", str(file), *words]), NETWORK)


def of_stores(stores: Authority, trust: str, key: str) -> str:
    folder = stores.folder
    return (
        f"security.protocol=ssl\nssl.truststore.location={folder / trust}\nssl.truststore.password={PASSWORD}\n"
        f"ssl.keystore.location={folder / key}\nssl.keystore.password={PASSWORD}\n"
    )


@pytest.mark.parametrize(
    ("trust", "key", "types"), [("trust.p12", "client.p12", "PKCS12"), ("ca.pem", "client.chain.pem", "PEM")]
)
def test_stores_of_javas_property_files_are_read(
    stores: Authority, tmp_path: Path, trust: str, key: str, types: str
) -> None:
    lines = of_stores(stores, trust, key) + f"ssl.truststore.type={types}\nssl.keystore.type={types}\n"
    found = given(tmp_path, lines)
    context = make_client(dict, found)["ssl.context"]
    assert isinstance(context, ssl.SSLContext)
    assert context.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}
    make_client(AdminClient, found).close()


def test_loads_leave_them_to_their_tasks(stores: Authority, tmp_path: Path) -> None:
    found = given(tmp_path, of_stores(stores, "trust.p12", "client.p12"))
    assert "ssl.context" not in found
    assert isinstance(spark_options(found)["ssl.context"], ssl.SSLContext)


def test_stores_are_not_looked_at_without_tls(tmp_path: Path) -> None:
    found = given(tmp_path, "ssl.truststore.location=/none.p12\nssl.truststore.password=x\nssl.truststore.type=JKS\n")
    assert not [name for name in make_client(dict, found) if name.startswith("ssl.")]


def test_passwords_are_those_of_our_files_too(tmp_path: Path) -> None:
    lines = "security.protocol=SSL\nssl.certificate.location=/c.pem\nssl.keystore.password=x\nssl.keystore.type=PEM\n"
    found = make_client(dict, given(tmp_path, lines))
    assert found["ssl.certificate.location"] == "/c.pem" and found["ssl.keystore.password"] == "x"
    assert "ssl.context" not in found and "ssl.keystore.type" not in found


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["ssl.truststore.location={}/old.jks"],
            "keytool -importkeystore -srckeystore {}/old.jks",
        ),
        (["ssl.truststore.location=/none.p12"], "ssl.truststore.location='/none.p12': No such file"),
        (["ssl.truststore.password=other"], "ssl.truststore.password does not fit"),
        (["ssl.ca.location=/ca.pem"], "ssl.ca.location and ssl.truststore.location are given: say all in one way"),
    ],
)
def test_what_is_wrong_with_a_store_is_one_line(stores: Authority, tmp_path: Path, words: list[str], says: str) -> None:
    options = [word for each in words for word in ("-X", each.replace("{}", str(stores.folder)))]
    with pytest.raises(KbrokerError) as caught:
        make_client(dict, given(tmp_path, of_stores(stores, "trust.p12", "client.p12"), *options))
    said = str(caught.value)
    assert says.replace("{}", str(stores.folder)) in said and "\n" not in said and PASSWORD not in said
