"""Apache Kafka's own codecs in a Java process, the last word on bytes: `java/KafkaCodec.java` says what it answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbroker.protocol import messages
from tests.kit import maven
from tests.kit.java_program import java
from tests.kit.message_model import kafka_json

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
    """Kafka's codec does not take it."""


class KafkaCodec:
    """One Java process of one release; cases are sent in batches, so that neither side waits for the other on each."""

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
        """The answers to some cases, in order; what Kafka refuses is a `Refused` in its place."""
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
        """What stands in front of a coordinator's key is its version in 3.9 and its API key since 4.0."""
        return 0 if self._release != OLDER and name.endswith("Key") else version

    def encode(self, name: str, version: int, message: messages.Message) -> bytes:
        (answer,) = self.ask([("encode", name, self._version(name, version), json.dumps(kafka_json(message, version)))])
        if isinstance(answer, Refused):
            raise answer
        return bytes.fromhex(answer[0])

    def decode(self, name: str, version: int, body: bytes) -> tuple[Any, bytes]:
        """Kafka's JSON of a body, and the bytes Kafka makes of what it read."""
        (answer,) = self.ask([("decode", name, self._version(name, version), body.hex())])
        if isinstance(answer, Refused):
            raise answer
        assert answer[0] == "0", "Kafka left bytes behind"
        return json.loads(answer[1]), bytes.fromhex(answer[2])

    def refuse(self, key: int, version: int, body: bytes, code: int, text: str | None) -> bytes | None:
        """The body of the error response that Kafka builds for a request; None when it builds none."""
        (answer,) = self.ask([("refuse", key, version, body.hex(), code, text or "")])
        if isinstance(answer, Refused):
            raise answer
        return None if answer[0] == "none" else bytes.fromhex(answer[0])
