"""Apache Kafka's own record batches in a Java process; see `java/KafkaBatches.java`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kbroker.protocol.records import Record
from tests.kit.kafka.codec import classpath
from tests.kit.kafka.java_program import AskedProgram, java

SOURCE = Path(__file__).with_name("java") / "KafkaBatches.java"


class Refused(Exception):
    """Kafka has refused a batch; `code` is the protocol's error code."""

    def __init__(self, code: int, message: str):
        super().__init__(f"{code}: {message}")
        self.code = code


class KafkaBatches(AskedProgram):
    """One Java process, asked one question after the other."""

    def __init__(self) -> None:
        super().__init__([*java(classpath()), str(SOURCE)])

    def ask(self, *words: object) -> list[str]:
        answer = self.words(*words)
        if answer[0] == "error":
            raise Refused(int(answer[1]), answer[2])
        assert answer[0] == "ok", answer
        return answer[1:]

    def produce(
        self,
        batch: bytes,
        *,
        compacted: bool = False,
        log_append_time: bool = False,
        now_ms: int = 0,
        before_max_ms: int = 2**63 - 1,
        after_max_ms: int = 2**63 - 1,
    ) -> tuple[bytes, int]:
        """Return the batch that a broker would append at offset 1000 in epoch 5, and its max timestamp.

        Raises Refused.
        """
        words = self.ask(
            "produce", batch.hex(), int(compacted), int(log_append_time), now_ms, before_max_ms, after_max_ms
        )
        return _unhex(words[0]) or b"", int(words[1])

    def produce_old(self, messages: bytes) -> bytes:
        """Return the batch that a broker appends at offset 1000 in epoch 5 for messages of magic 0 or 1.

        Raises Refused.
        """
        (batch,) = self.ask("produce-old", messages.hex())
        return _unhex(batch) or b""

    def down(self, batches: bytes, magic: int, first_offset: int = 0) -> bytes:
        """Return `batches` as a fetch from `first_offset` on gets them if it knows no magic above `magic`."""
        (messages,) = self.ask("down", magic, first_offset, batches.hex())
        return _unhex(messages) or b""

    def read(self, batches: bytes) -> list[Record]:
        """Return the records that a Java consumer sees."""
        (text,) = self.ask("read", batches.hex())
        found = []
        for record in text.split("|")[:-1]:
            offset, timestamp, key, value, *headers = record.split(" ")
            pairs = [pair.split("=") for pair in headers]
            found.append(
                Record(
                    int(offset),
                    int(timestamp),
                    _unhex(key),
                    _unhex(value),
                    [((_unhex(name) or b"").decode(), _unhex(content)) for name, content in pairs],
                )
            )
        return found

    def write(self, codec: str, records: Sequence[Record], level: int | None = None) -> bytes:
        """Return a batch as Java's producer makes it."""
        text = "|".join(" ".join(_fields(record)) for record in records)
        (batch,) = self.ask("write", codec, "" if level is None else level, text)
        return _unhex(batch) or b""


def _fields(record: Record) -> Iterable[str]:
    yield from (str(record.timestamp), _hex(record.key), _hex(record.value))
    for name, content in record.headers:
        yield f"{name.encode().hex()}={_hex(content)}"


def _hex(data: bytes | None) -> str:
    return "null" if data is None else data.hex() or "empty"


def _unhex(text: str) -> bytes | None:
    return None if text == "null" else b"" if text == "empty" else bytes.fromhex(text)
