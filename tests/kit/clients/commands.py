"""Running `kbroker` commands against a broker: as processes, as people do, or in this process, which is faster."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from kbroker.cli.main import main

Done = subprocess.CompletedProcess[bytes]
Run = Callable[..., Done]
TIMEOUT_S = 60


def command_of(*words: str) -> list[str]:
    return [sys.executable, "-m", "kbroker.cli.main", *words]


def commands_of(address: str) -> Run:
    """Return a function that runs a command as a process, as `kbroker("topics", "list")`; it must exit with `code`."""

    def run(*words: str, stdin: bytes = b"", code: int = 0) -> Done:
        command = command_of(*words, "-b", address)
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S)
        assert done.returncode == code, done.stderr.decode()
        return done

    return run


def commands_here(address: str) -> Run:
    """Do what commands_of does, but run commands in this process. For commands that do not read standard input.

    `code` None: the command may exit with 0 or 1.
    """

    def run(*words: str, code: int | None = 0) -> Done:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
        with (
            mock.patch.dict(os.environ, {"KBROKER_BOOTSTRAP_SERVERS": address}),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                ended = main(words)
            except SystemExit as usage:
                ended = int(usage.code or 0)
        out.flush()
        err.flush()
        done = subprocess.CompletedProcess(
            [*words],
            ended,
            out.buffer.getvalue(),
            err.buffer.getvalue(),  # type: ignore[attr-defined]
        )
        assert done.returncode == code or (code is None and ended in (0, 1)), done.stderr.decode()
        return done

    return run


def on_a_terminal(words: Sequence[str], typed: bytes = b"") -> tuple[int, str]:
    """Run a command on a terminal, with `typed` as its input. Return its exit code and its output, without the echo."""
    master, slave = pty.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    command = command_of(*words)
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as process:
        os.close(slave)
        try:
            os.write(master, typed)
            shown = b""
            with contextlib.suppress(OSError):  # the other side is closed: the process has ended
                while data := os.read(master, 10_000):
                    shown += data
            return process.wait(TIMEOUT_S), shown.decode().replace("\r\n", "\n")
        finally:
            process.kill()
            os.close(master)


def lines(done: Done) -> list[bytes]:
    return done.stdout.splitlines()


def from_json(done: Done) -> Any:
    return json.loads(done.stdout)


def json_lines(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(done)]


def read(kbroker: Run, topic: str, *words: str) -> list[bytes]:
    return lines(kbroker("consume", topic, "--from-beginning", "--exit", *words))
