"""Apache Kafka's own log cleaner in a Java process; see `java/KafkaCleaner.java`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kit.kafka.java_program import java
from tests.kit.kafka.process import KafkaProcess

SOURCE = Path(__file__).with_name("java") / "KafkaCleaner.java"


class KafkaCleaner:
    """One Java process, asked one question after the other. `settings` are the topic's."""

    def __init__(self, settings: dict[str, int]):
        self._settings = ",".join(f"{name}={value}" for name, value in settings.items())
        command = [*java(KafkaProcess.classpath()), str(SOURCE)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def fill(self, directory: Path, batches: Sequence[bytes]) -> int:
        """Append batches, which have their offsets, to the log in `directory`. Return the log's end offset."""
        return self._ask("fill", directory, self._settings, *(batch.hex() for batch in batches))

    def recover(self, directory: Path) -> int:
        """Open the log in `directory` as after a crash, and close it. Return the log's end offset."""
        return self._ask("recover", directory, self._settings)

    def clean(self, directory: Path, now_ms: int, first_dirty_offset: int, map_bytes: int = 1 << 20) -> int:
        """Clean the log in `directory`. Return its next dirty offset."""
        return self._ask("clean", directory, self._settings, now_ms, first_dirty_offset, map_bytes)

    def _ask(self, *words: object) -> int:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().rstrip("\n").split("\t")
        if answer[0] != "ok":
            raise AssertionError(f"Kafka's cleaner: {answer}")
        return int(answer[1])
