"""Apache Kafka of several ages with TLS (client certificates required), with SASL PLAIN and SCRAM, and with nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
from pathlib import Path

from kazoo.client import KazooClient

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import free_port
from tests.kit.clients.certificates import Authority
from tests.kit.clients.wire import WireClient
from tests.kit.kafka.process import Kafka4InMemory, KafkaProcess
from tests.kit.kafka.zookeeper import Kafka010, Kafka25, KafkaOnZooKeeper

PASSWORD = "geheim"
LISTENERS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
PROTOCOLS = ("PLAINTEXT", *LISTENERS)
LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="b" password="b" user_b="b" user_me="{PASSWORD}";\n'
    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
)
SCRAM = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *SCRAM)
SALT, ITERATIONS = b"0123456789", 4096


class Secured(KafkaProcess):
    """A secured Kafka: a mixin over one of the processes of tests/kit."""

    authority: Authority
    ports: dict[str, int]

    def secure(self, folder: Path) -> None:
        self.heap = "256m"
        self.authority = Authority(folder)
        self.ports = {"PLAINTEXT": self.port, **{name: free_port() for name in LISTENERS}}
        self.authority.issue("broker")
        # Java before Kafka 2.7 reads no PEM.
        subprocess.run(
            "openssl pkcs12 -export -in broker.pem -inkey broker.key -certfile ca.pem -out broker.p12 "
            f"-passout pass:{PASSWORD}".split(),
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        subprocess.run(
            "keytool -importcert -noprompt -alias ca -file ca.pem -keystore trust.p12 -storetype PKCS12 "
            f"-storepass {PASSWORD}".split(),
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        self.overrides |= {
            "listeners": ",".join(listeners),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": folder / "broker.p12",
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": PASSWORD,
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.location": folder / "trust.p12",
            "ssl.truststore.password": PASSWORD,
            "ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        }
        self.login = folder / "jaas.conf"
        self.login.write_text(f"KafkaServer {{\n{LOGIN}\n}};\n")

    def java(self) -> list[str]:
        program, *rest = super().java()
        return [program, f"-Djava.security.auth.login.config={self.login}", *rest]


class SecuredOnZooKeeper(Secured, KafkaOnZooKeeper):
    """A secured Kafka of the last release with ZooKeeper, which stores the SCRAM credentials."""

    def start(self) -> None:
        self.zookeeper.start()
        config = {}
        for mechanism, digest in SCRAM.items():
            key = hashlib.pbkdf2_hmac(digest, PASSWORD.encode(), SALT, ITERATIONS)
            client_key, server_key = (hmac.digest(key, what, digest) for what in (b"Client Key", b"Server Key"))
            fields = {"salt": SALT, "stored_key": hashlib.new(digest, client_key).digest(), "server_key": server_key}
            known = [f"{name}={base64.b64encode(value).decode()}" for name, value in fields.items()]
            config[mechanism] = ",".join([*known, f"iterations={ITERATIONS}"])
        client = KazooClient(self.zookeeper.address)
        client.start()
        client.create("/config/users/me", json.dumps({"version": 1, "config": config}).encode(), makepath=True)
        client.stop()
        client.close()
        super().start()


class Secured010(SecuredOnZooKeeper, Kafka010):
    """Kafka 0.10: it serves SaslHandshake 0."""


class Secured25(SecuredOnZooKeeper, Kafka25):
    """Kafka 2.5: it serves SaslAuthenticate."""


class Secured43(Secured, Kafka4InMemory):
    """Kafka 4.3, in KRaft mode."""

    def secure(self, folder: Path) -> None:
        super().secure(folder)
        controller = free_port()
        self.overrides["listeners"] = f"{self.overrides['listeners']},CONTROLLER://127.0.0.1:{controller}"
        self.overrides["controller.quorum.voters"] = f"0@127.0.0.1:{controller}"
        same = ",".join(f"{name}:{name}" for name in PROTOCOLS)
        self.overrides["listener.security.protocol.map"] = f"{same},CONTROLLER:PLAINTEXT"

    def start(self) -> None:
        super().start()
        made = [
            M.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name="me",
                mechanism=number,
                iterations=ITERATIONS,
                salt=SALT,
                salted_password=hashlib.pbkdf2_hmac(digest, PASSWORD.encode(), SALT, ITERATIONS),
            )
            for number, digest in enumerate(SCRAM.values(), 1)
        ]
        with WireClient("127.0.0.1", self.port) as client:
            for each in made:
                request = M.AlterUserScramCredentialsRequest(upsertions=[each])
                answer = client.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
                assert [result.error_code for result in answer.results] == [0]
