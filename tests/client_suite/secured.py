"""Apache Kafka of several ages with TLS (client certificates required) and SASL PLAIN, beside a plain listener."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kit.broker import Kafka4InMemory, KafkaProcess, free_port
from tests.kit.certificates import Authority
from tests.kit.zookeeper import Kafka010, Kafka25, KafkaOnZooKeeper

PASSWORD = "geheim"
LISTENERS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
PROTOCOLS = ("PLAINTEXT", *LISTENERS)
LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="b" password="b" user_b="b" user_me="{PASSWORD}";'
)


class Secured(KafkaProcess):
    """Over one of the processes of tests/kit."""

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
            "sasl.enabled.mechanisms": "PLAIN",
        }
        self.login = folder / "jaas.conf"
        self.login.write_text(f"KafkaServer {{\n{LOGIN}\n}};\n")

    def java(self) -> list[str]:
        program, *rest = super().java()
        return [program, f"-Djava.security.auth.login.config={self.login}", *rest]


class Secured010(Secured, Kafka010):
    """SaslHandshake 0."""


class Secured25(Secured, Kafka25):
    """SaslAuthenticate."""


class Secured39(Secured, KafkaOnZooKeeper):
    """The last with ZooKeeper."""


class Secured43(Secured, Kafka4InMemory):
    """KRaft."""

    def secure(self, folder: Path) -> None:
        super().secure(folder)
        controller = free_port()
        self.overrides["listeners"] = f"{self.overrides['listeners']},CONTROLLER://127.0.0.1:{controller}"
        self.overrides["controller.quorum.voters"] = f"0@127.0.0.1:{controller}"
        same = ",".join(f"{name}:{name}" for name in PROTOCOLS)
        self.overrides["listener.security.protocol.map"] = f"{same},CONTROLLER:PLAINTEXT"
