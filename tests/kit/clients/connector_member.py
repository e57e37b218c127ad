"""A member of a connector's group in a separate process, which tests hold, kill, and start again.

It prints a line "partition offset value" for each record that it is given; `MemberProcess` starts it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.client import ConsumerConnector
from tests.kit.child_process import ChildProcess

ROOT = Path(__file__).parent.parent.parent.parent


class Given(NamedTuple):
    """A record that a member has printed."""

    partition_id: int
    offset: int
    value: bytes


def main(topic: str, options: dict[str, Any]) -> None:
    (stream,) = ConsumerConnector(**options).create_message_streams({topic: 1})[topic]
    for record in stream:
        print(record.partition, record.offset, (record.value or b"").decode(), flush=True)


class PrintingProcess(ChildProcess):
    """A process that prints records. `records` returns all that it has printed, also before it was started again."""

    def __init__(self, folder: Path, consumer_id: str, command: Sequence[str]):
        self.consumer_id = consumer_id
        self._folder = folder
        self._command = command
        self._printed: list[Path] = []
        self.start()

    def start(self) -> None:
        name = f"{self.consumer_id}.{len(self._printed)}"
        self._printed.append(self._folder / f"{name}.txt")
        with self._printed[-1].open("wb") as output, (self._folder / f"{name}.errors").open("wb") as errors:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=errors, cwd=ROOT)

    @property
    def records(self) -> list[Given]:
        """The records that were printed, without a last line that is incomplete."""
        lines = [line.split(b" ", 2) for path in self._printed for line in path.read_bytes().split(b"\n")[:-1]]
        return [Given(int(partition_id), int(offset), value) for partition_id, offset, value in lines]

    @property
    def values(self) -> set[bytes]:
        return {each.value for each in self.records}

    def hold(self, on: bool) -> None:
        self.process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)


class MemberProcess(PrintingProcess):
    """A member with kbroker's client. `options` must have `consumer_id`."""

    def __init__(self, folder: Path, topic: str, options: dict[str, Any]):
        consumer_id = f"{options['group_id']}_{options['consumer_id']}"
        super().__init__(folder, consumer_id, [sys.executable, "-m", __name__, topic, json.dumps(options)])


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
