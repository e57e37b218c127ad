"""Run a broker until Ctrl-C or SIGTERM.

Settings: docs/CONFIG.md. What is not given has a default; without any the broker serves this machine on port 9092.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from kbroker import __version__
from kbroker.config.broker_config import BrokerConfig, load_config, refuse_unknown
from kbroker.errors import KbrokerError
from kbroker.net.endpoints import is_loopback

if TYPE_CHECKING:
    import argparse

    from kbroker.server.broker import Broker

EXAMPLES = """examples:
  kbroker start
  kbroker start --data /var/lib/kbroker --override listeners=PLAINTEXT://0.0.0.0:9092
  kbroker start server.properties --strict
  kbroker start --override log.flush.interval.messages=1      every acknowledged message is on the disk
  KBROKER_HTTP_ADDRESS=127.0.0.1:9464 kbroker start           /metrics, /health and /ready
"""

# Beyond the time that the broker takes for itself (kbroker.stop.timeout.ms).
STOP_GRACE_S = 5.0
# Who sends a signal to a process and to its group, as timeout(1) does, means it once.
SAME_SIGNAL_S = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("properties", nargs="?", metavar="server.properties", help="a file of settings, as Kafka's")
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting that wins over the file and the environment",
    )
    parser.add_argument("-d", "--data", metavar="DIR", help="where the data is kept (log.dirs)")
    parser.add_argument("--strict", action="store_true", help="refuse unknown settings instead of warning")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default: %(default)s"
    )
    parser.add_argument(
        "--ready-fd",
        type=int,
        metavar="FD",
        help="a file descriptor to write the listeners to, one a line, when clients can connect; it is closed then",
    )
    parser.add_argument(
        "--lifeline-fd", type=int, metavar="FD", help="a pipe: the broker is killed when its other end is closed"
    )


def run(arguments: argparse.Namespace) -> int:
    return serve(
        arguments.override,
        properties=arguments.properties,
        data=arguments.data,
        strict=arguments.strict,
        log_level=arguments.log_level,
        ready_fd=arguments.ready_fd,
        lifeline_fd=arguments.lifeline_fd,
    )


def serve(
    overrides: Sequence[str],
    *,
    properties: str | None = None,
    data: str | None = None,
    strict: bool = False,
    log_level: str = "info",
    ready_fd: int | None = None,
    lifeline_fd: int | None = None,
) -> int:
    """The same for who has no command line: kbroker.testing, which does not wait for argparse."""
    started = _process_start()
    if lifeline_fd is not None:
        _hang_on(lifeline_fd)
    gc.disable()  # what a start makes is there to stay
    faulthandler.enable()
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    config = load_config(properties, overrides, data)
    if strict:
        refuse_unknown(config)
    for notice in config.notices:
        print(f"kbroker: {'warning: ' if notice.unknown else ''}{notice.text}", file=sys.stderr)
    for line in open_to_others(config):
        print(f"kbroker: warning: {line}", file=sys.stderr)
    signals = StopSignals()
    try:
        return _serve(config, started, signals, ready_fd)
    finally:
        signals.ignore()  # there is nothing left to stop


def open_to_others(config: BrokerConfig) -> list[str]:
    """One line for each listener that others than this machine reach without authentication."""
    return [
        f"{endpoint} takes everybody who reaches it: there is no authentication"
        for endpoint in config.listeners
        if not is_loopback(endpoint.host)
    ]


def _serve(config: BrokerConfig, started: float, signals: StopSignals, ready_fd: int | None) -> int:
    from kbroker.server.broker import Broker

    broker = Broker(config)
    try:
        broker.start()
        _say_ready(config, broker, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
        if ready_fd is not None:
            _tell_ready(ready_fd, broker)
        broker.load_handlers()
        gc.freeze()
        gc.enable()
        signals.wait()
    except OSError as error:
        raise KbrokerError(f"{error.filename or 'cannot start'}: {(error.strerror or str(error)).lower()}") from error
    finally:
        _bound_stop(config)
        broker.stop()
    return 0


def _tell_ready(ready_fd: int, broker: Broker) -> None:
    with contextlib.suppress(BrokenPipeError), open(ready_fd, "w") as told:
        told.writelines(f"{endpoint}\n" for endpoint in broker.endpoints)


def _hang_on(lifeline_fd: int) -> None:
    """Have the system kill this process when the pipe breaks: at once, and whatever its threads do, stopped or not."""
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline_fd], [], [], 0)[0]:  # it broke before
        os.kill(os.getpid(), signal.SIGKILL)


def _say_ready(config: BrokerConfig, broker: Broker, elapsed_s: float) -> None:
    addresses = ", ".join(str(endpoint) for endpoint in broker.endpoints)
    directories = ", ".join(str(Path(directory).absolute()) for directory in config.log_dirs)
    print(
        f"kbroker {__version__} serves {addresses}; data in {directories}; ready in {elapsed_s * 1000:.0f} ms",
        flush=True,
    )


class StopSignals:
    """The first Ctrl-C, SIGTERM or SIGHUP ends `wait`, a later one the process. What was ignored stays so.

    Nothing is raised out of a signal: it may come where an exception is lost or a lock is held. `wait` reads what the
    system's handler has written: it misses no signal, not even one that comes just before it waits.
    """

    def __init__(self) -> None:
        self._first = 0.0
        self._come, told = os.pipe()
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._numbers = [number for number in stops if signal.getsignal(number) != signal.SIG_IGN]
        for number in self._numbers:
            signal.signal(number, self._take)

    def wait(self) -> None:
        os.read(self._come, 1)

    def ignore(self) -> None:
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        if self._first == 0.0:
            self._first = time.monotonic()
        elif time.monotonic() - self._first > SAME_SIGNAL_S:
            _give_up()


def _bound_stop(config: BrokerConfig) -> None:
    """End the process when the stop that begins now takes too long."""
    timer = threading.Timer(config["kbroker.stop.timeout.ms"] / 1000 + STOP_GRACE_S, _give_up)
    timer.daemon = True
    timer.start()


def _give_up(*_: object) -> None:
    os.write(2, b"kbroker: ended before it had stopped; the next start recovers the logs\n")
    os._exit(1)


def _process_start() -> float:
    """When this process was started, on the boot clock, in seconds; ticks of 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
