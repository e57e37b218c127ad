"""Apache Kafka's own codecs in a Java process, the reference for bytes; see `java/KafkaCodec.java`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kbroker.protocol import messages
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import AskedProgram, java
from tests.kit.models.message import kafka_json

SOURCE = Path(__file__).with_name("java") / "KafkaCodec.java"
ARTIFACTS = ("kafka-clients", "kafka-group-coordinator", "kafka-transaction-coordinator")
OLDER, NEWER = "3.9.1", "4.3.1"
OTHERS = (
    "com.fasterxml.jackson.core:jackson-databind:2.16.2",
    "org.slf4j:slf4j-nop:1.7.36",
)


def classpath(release: str = OLDER) -> str:
    return maven.fetch([*(f"org.apache.kafka:{artifact}:{release}" for artifact in ARTIFACTS), *OTHERS])


class Refused(Exception):
    """Kafka's codec has refused the bytes."""


class KafkaCodec(AskedProgram):
    """A Java process of one Kafka release."""

    def __init__(self, release: str = OLDER) -> None:
        self._release = release
        super().__init__([*java(classpath(release)), str(SOURCE)])

    def ask(self, *case: object) -> list[str]:
        """Return the answer to a case. Raises Refused if Kafka refuses it."""
        answer = self.words(*case)
        if answer[0] != "ok":
            raise Refused(answer[1])
        return answer[1:]

    def _version(self, name: str, version: int) -> int:
        """The number in front of a coordinator's key: its version in Kafka 3.9, its API key since 4.0."""
        return 0 if self._release != OLDER and name.endswith("Key") else version

    def encode(self, name: str, version: int, message: messages.Message) -> bytes:
        answer = self.ask("encode", name, self._version(name, version), json.dumps(kafka_json(message, version)))
        return bytes.fromhex(answer[0])

    def decode(self, name: str, version: int, body: bytes) -> tuple[Any, bytes]:
        """Return Kafka's JSON of a body, and the bytes that Kafka encodes what it read into."""
        answer = self.ask("decode", name, self._version(name, version), body.hex())
        assert answer[0] == "0", "Kafka left bytes behind"
        return json.loads(answer[1]), bytes.fromhex(answer[2])

    def refuse(self, key: int, version: int, body: bytes, code: int, text: str | None) -> bytes | None:
        """Return the body of the error response that Kafka builds for a request; None if it builds none."""
        answer = self.ask("refuse", key, version, body.hex(), code, text or "")
        return None if answer[0] == "none" else bytes.fromhex(answer[0])
