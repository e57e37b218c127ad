"""A broker in a subprocess: what `kbroker start` runs, with a pipe by which it says that it serves."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import kbroker
from kbroker.testing.broker_failed import BrokerFailed
from kbroker.testing.pausing import stop_threads

STOP_TIMEOUT_S = 30.0
ABORT_TIMEOUT_S = 5.0
OWN_ENVIRONMENT = ("KBROKER_", "NOTIFY_SOCKET")
"""Prefixes of environment variables that the subprocess does not get: they are not meant for the broker of a test."""
# The subprocess runs without `site`, the most expensive part of an interpreter's start. The parent's paths come behind
# the standard library, so that no module of a test hides a standard one.
CHILD = (
    "import gc, sys; gc.disable(); sys.path += {paths!r}; from kbroker.cli import outcome, start; "
    "sys.exit(outcome.outcome(lambda: start.serve(**{arguments!r})))"
)


class BrokerProcess:
    """A broker in a subprocess, which can be started and stopped repeatedly. Its output is appended to `log_path`.

    The broker does not outlive this process, however that ends, and not even while it is paused: the kernel kills it
    when the pipe whose other end is held here breaks.
    """

    def __init__(self, overrides: Sequence[str], log_path: Path, log_level: str):
        self._arguments = {"overrides": [*overrides], "strict": True, "log_level": log_level}
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self.is_paused = False

    @property
    def pid(self) -> int | None:
        """The id of the broker's process; None while it is stopped."""
        return None if self._process is None else self._process.pid

    def start(self, timeout_s: float) -> None:
        """Start the broker, and return when it serves requests.

        Raises BrokerFailed when that takes longer than `timeout_s` seconds, or when the process ends.
        """
        ready, tells = os.pipe()
        lifeline, self._lifeline = os.pipe()
        try:
            command = _command({**self._arguments, "ready_fd": tells, "lifeline_fd": lifeline})
            with self._log_path.open("ab") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._log_path.parent,
                    env={name: value for name, value in os.environ.items() if not name.startswith(OWN_ENVIRONMENT)},
                    pass_fds=(tells, lifeline),
                    process_group=0,  # Ctrl-C goes to the tests alone, which then stop the broker
                )
        except BaseException:
            os.close(ready)
            self._cut_lifeline()
            raise
        finally:
            os.close(tells)
            os.close(lifeline)
        try:
            self._await_ready(ready, timeout_s)
        except BaseException:
            self.discard()
            raise
        finally:
            os.close(ready)

    def _await_ready(self, ready: int, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise self._failed(f"the broker did not start within {timeout_s:g} s")
        if not os.read(ready, 1):
            raise self._failed(f"the broker did not start (exit code {self._running().wait()})")

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end.

        Raises BrokerFailed when the broker had ended before, does not end within STOP_TIMEOUT_S, or ends with an error;
        RuntimeError when it is not running.
        """
        process = self._running()
        ended_before = process.poll()
        if ended_before is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # it prints the stack of every thread
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ABORT_TIMEOUT_S)
                self.discard()
                raise self._failed(f"the broker did not stop within {STOP_TIMEOUT_S:g} s") from None
        self._forget()
        if ended_before is not None:
            raise self._failed(f"the broker had ended by itself ({_cause(ended_before)})")
        if process.returncode:
            raise self._failed(f"the broker did not stop cleanly ({_cause(process.returncode)})")

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would. Raises RuntimeError when it is not running."""
        self._running()
        self.discard()

    def discard(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def pause(self) -> None:
        """Send SIGSTOP, and return when every thread of the process is stopped."""
        stop_threads(self._running())
        self.is_paused = True

    def resume(self) -> None:
        """Send SIGCONT: a paused process goes on."""
        self._running().send_signal(signal.SIGCONT)
        self.is_paused = False

    def check_alive(self) -> None:
        """Raise BrokerFailed when the broker has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise self._failed(f"the broker has ended by itself ({_cause(self._process.returncode)})")

    def check_running(self) -> None:
        """Raise RuntimeError when the broker is stopped, BrokerFailed when it has ended by itself."""
        self._running()
        self.check_alive()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process

    def _forget(self) -> None:
        self._process = None
        self.is_paused = False
        self._cut_lifeline()

    def _cut_lifeline(self) -> None:
        os.close(self._lifeline)
        self._lifeline = -1

    def _failed(self, what: str) -> BrokerFailed:
        return BrokerFailed(what, self._log_path.read_text(errors="replace"))


def _command(arguments: Mapping[str, object]) -> list[str]:
    """Return the command line of the subprocess; `arguments` are the keywords for `cli.start.serve`."""
    paths = [str(Path(kbroker.__file__).parents[1]), *(path for path in sys.path if path)]
    flags = ["-I", "-S", *(["-B"] if sys.dont_write_bytecode else [])]
    return [sys.executable, *flags, "-c", CHILD.format(paths=list(dict.fromkeys(paths)), arguments=arguments)]


def _cause(returncode: int) -> str:
    if returncode < 0:
        return f"signal {signal.Signals(-returncode).name}"
    return f"exit code {returncode}"
