"""A member of a connector's group in a process of its own, to be held and killed.

It prints a line for each record that it is given; `MemberProcess` starts it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbroker.client import ConsumerConnector

ROOT = Path(__file__).parent.parent.parent


def main(topic: str, options: dict[str, Any]) -> None:
    (stream,) = ConsumerConnector(**options).create_message_streams({topic: 1})[topic]
    for record in stream:
        print((record.value or b"").decode(), flush=True)


class MemberProcess:
    """A context manager; `values` are those that it has printed so far. `consumer.id` is among the options."""

    def __init__(self, folder: Path, topic: str, options: dict[str, Any]):
        self.consumer_id = f"{options['group_id']}_{options['consumer_id']}"
        self.printed = folder / f"{self.consumer_id}.txt"
        command = [sys.executable, "-m", "tests.kit.connector_member", topic, json.dumps(options)]
        with self.printed.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, cwd=ROOT)

    @property
    def values(self) -> set[bytes]:
        """Without the last line, if that is half there."""
        return set(self.printed.read_bytes().split(b"\n")[:-1])

    def hold(self, on: bool) -> None:
        self.process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
