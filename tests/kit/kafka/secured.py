"""An Apache Kafka with a listener for every kind of security that clients support."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import free_port
from tests.kit.clients.certificates import Authority
from tests.kit.clients.wire import WireClient
from tests.kit.kafka.process import KafkaInMemory

PASSWORD = "p,=ä"
SALT = b"0123456789"
ITERATIONS = 4096
SCRAM = {1: "sha256", 2: "sha512"}
LISTENERS = ("SSL", "MUTUAL", "OTHER", "SASL_PLAINTEXT", "SASL_SSL")


class SecuredKafka(KafkaInMemory):
    """The Kafka. Its listener MUTUAL asks for a certificate; the certificate of OTHER is for another host."""

    def __init__(self, folder: Path):
        super().__init__()
        self.ports = {name: free_port() for name in LISTENERS}
        controller = free_port()
        self.authority = Authority(folder)
        plain = f'PlainLoginModule required username="b" password="b" user_me="{PASSWORD}";'
        logins = {
            "plain": f"org.apache.kafka.common.security.plain.{plain}",
            "scram-sha-256": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
            "scram-sha-512": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        }
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        self.overrides |= {
            "controller.quorum.voters": f"0@127.0.0.1:{controller}",
            "listeners": ",".join(
                [f"PLAINTEXT://127.0.0.1:{self.port}", f"CONTROLLER://127.0.0.1:{controller}", *listeners]
            ),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,MUTUAL:SSL,OTHER:SSL,"
            "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.authority.issue("broker"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.certificate,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.other.ssl.keystore.type": "PEM",
            "listener.name.other.ssl.keystore.location": self.authority.issue("other", "DNS:elsewhere"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.scram-sha-512.connections.max.reauth.ms": 1500,
            **{
                f"listener.name.{listener}.{mechanism}.sasl.jaas.config": login.replace("ä", "\\u00e4")
                for listener in ("sasl_plaintext", "sasl_ssl")
                for mechanism, login in logins.items()
            },
        }

    def add_user(self) -> None:
        upsertion = M.AlterUserScramCredentialsRequest.ScramCredentialUpsertion
        made = [
            upsertion(
                name="me",
                mechanism=mechanism,
                iterations=ITERATIONS,
                salt=SALT,
                salted_password=hashlib.pbkdf2_hmac(digest, PASSWORD.encode(), SALT, ITERATIONS),
            )
            for mechanism, digest in SCRAM.items()
        ]
        with WireClient("127.0.0.1", self.port) as client:
            for each in made:
                request = M.AlterUserScramCredentialsRequest(upsertions=[each])
                answer = client.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
                assert [result.error_code for result in answer.results] == [0]
