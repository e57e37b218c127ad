"""Java clients of any release from 0.10.2 on, in a process that is told what to do: see java/Peer.java."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kit.kafka.java_program import compile_java

# The first releases whose clients have it.
HAS_HEADERS, HAS_ZSTD, HAS_STATIC_MEMBERS, HAS_COOPERATIVE = (0, 11), (2, 1), (2, 3), (2, 4)
HAS_CONSUMER_PROTOCOL = (4, 0)


class JavaPeer:
    """kafka-clients of one release, with one broker."""

    def __init__(self, release: str, address: str, idempotence: bool):
        """`idempotence`: whether its producers ask for idempotence, as producers since Kafka 3.0 do by default."""
        self.release = tuple(map(int, release.split(".")))
        folder = Path(__file__).parent / "java"
        command = compile_java(
            folder, "Peer", release, f"org.apache.kafka:kafka-clients:{release}", options=("-Xmx96m",)
        )
        self._process = subprocess.Popen(
            [*command, address, str(idempotence).lower()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def has(self, since: tuple[int, int]) -> bool:
        return self.release >= since

    def ask(self, do: str, **told: Any) -> Any:
        """Tell the peer to do something and return its answer. Fails where Java fails."""
        self.tell(do, **told)
        return self.answer()

    def tell(self, do: str, **told: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **told}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()[1][-3000:]
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate("", timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
