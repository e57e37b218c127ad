"""Apache Kafka's own codecs in a Java process, the reference for bytes; see `java/KafkaCodec.java`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbroker.protocol import messages
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import java
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


class KafkaCodec:
    """A Java process of one Kafka release.

    Cases are sent in batches, so that neither side waits for each single case.
    """

    def __init__(self, release: str = OLDER) -> None:
        self._release = release
        command = [*java(classpath(release)), str(SOURCE)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def ask(self, cases: Iterable[tuple[Any, ...]]) -> list[list[str] | Refused]:
        """Return the answers to some cases, in order. If Kafka refuses a case, its answer is a `Refused`."""
        assert self.process.stdin and self.process.stdout
        answers: list[list[str] | Refused] = []
        for case in cases:
            self.process.stdin.write("\t".join(map(str, case)) + "\n")
            self.process.stdin.flush()
            words = self.process.stdout.readline().rstrip("\n").split("\t")
            if words == [""]:
                raise AssertionError("Kafka's codec died")
            answers.append(words[1:] if words[0] == "ok" else Refused(words[1]))
        return answers

    def _version(self, name: str, version: int) -> int:
        """The number in front of a coordinator's key: its version in Kafka 3.9, its API key since 4.0."""
        return 0 if self._release != OLDER and name.endswith("Key") else version

    def encode(self, name: str, version: int, message: messages.Message) -> bytes:
        (answer,) = self.ask([("encode", name, self._version(name, version), json.dumps(kafka_json(message, version)))])
        if isinstance(answer, Refused):
            raise answer
        return bytes.fromhex(answer[0])

    def decode(self, name: str, version: int, body: bytes) -> tuple[Any, bytes]:
        """Return Kafka's JSON of a body, and the bytes that Kafka encodes what it read into."""
        (answer,) = self.ask([("decode", name, self._version(name, version), body.hex())])
        if isinstance(answer, Refused):
            raise answer
        assert answer[0] == "0", "Kafka left bytes behind"
        return json.loads(answer[1]), bytes.fromhex(answer[2])

    def refuse(self, key: int, version: int, body: bytes, code: int, text: str | None) -> bytes | None:
        """Return the body of the error response that Kafka builds for a request; None if it builds none."""
        (answer,) = self.ask([("refuse", key, version, body.hex(), code, text or "")])
        if isinstance(answer, Refused):
            raise answer
        return None if answer[0] == "none" else bytes.fromhex(answer[0])
