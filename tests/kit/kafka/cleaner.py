"""Apache Kafka's own log cleaner in a Java process; see `java/KafkaCleaner.java`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.kit.kafka.java_program import AskedProgram, java
from tests.kit.kafka.process import KafkaProcess

SOURCE = Path(__file__).with_name("java") / "KafkaCleaner.java"


class KafkaCleaner(AskedProgram):
    """One Java process, asked one question after the other. `settings` are the topic's."""

    def __init__(self, settings: dict[str, int]):
        self._settings = ",".join(f"{name}={value}" for name, value in settings.items())
        super().__init__([*java(KafkaProcess.classpath()), str(SOURCE)], is_silent=True)

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
        answer = self.words(*words)
        assert answer[0] == "ok", answer
        return int(answer[1])
