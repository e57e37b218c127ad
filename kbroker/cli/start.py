"""Run a broker until Ctrl-C or SIGTERM. SIGHUP makes it read its settings again.

Settings: docs/CONFIG.md. What is not given has a default; without any the broker serves this machine on port 9092.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import fcntl
import gc
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from kbroker import __version__
from kbroker.cli.broker_log import begin_log
from kbroker.cli.outcome import FAILED
from kbroker.cli.service_manager import ServiceManager
from kbroker.config.broker_config import BrokerConfig, load_config, refuse_unknown
from kbroker.errors import KbrokerError
from kbroker.net.endpoints import is_loopback

if TYPE_CHECKING:
    import argparse

    from kbroker.server.broker import Broker

LOG = logging.getLogger(__name__)

EXAMPLES = """examples:
  kbroker start
  kbroker start --data /var/lib/kbroker --override listeners=PLAINTEXT://0.0.0.0:9092
  kbroker start server.properties --strict
  kbroker start --override log.flush.interval.messages=1      every acknowledged message is on the disk
  KBROKER_HTTP_ADDRESS=127.0.0.1:9464 kbroker start           /metrics, /health and /ready
"""

# How long a stop may take beyond kbroker.stop.timeout.ms before the process is ended.
STOP_GRACE_S = 5.0
# Two stop signals within this time count as one: timeout(1) sends one to the process and one to its group.
SAME_SIGNAL_S = 0.5
# The garbage collector's. With Python's own, (700, 10, 10), it looks at everything that a controller knows again and
# again while that decides about thousands of partitions: a quarter of the time was the collector's.
GC_THRESHOLDS = (10_000, 10, 10)


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
    """Run a broker without a command line, and return the exit code. kbroker.testing uses it, to spare argparse."""
    started = _process_start()
    if lifeline_fd is not None:
        _hang_on(lifeline_fd)
    gc.disable()  # the objects that a start makes stay
    faulthandler.enable()

    def load() -> BrokerConfig:
        if properties is not None and Path(properties).is_dir():
            raise KbrokerError(f"{properties} is a directory, and no file of settings: --data {properties}")
        config = load_config(properties, overrides, data)
        if strict:
            refuse_unknown(config)
        return config

    config = load()
    begin_log(log_level, config["kbroker.log.format"])
    _log_notices(config)
    for line in open_to_others(config):
        LOG.warning("%s", line)
    signals = StopSignals()
    try:
        return _serve(config, started, signals, ready_fd, load)
    except KbrokerError as error:
        LOG.error("%s", error)
        return FAILED
    finally:
        signals.ignore()  # there is nothing left to stop


def _log_notices(config: BrokerConfig) -> None:
    for notice in config.notices:
        LOG.log(logging.WARNING if notice.unknown else logging.INFO, "%s", notice.text)


def open_to_others(config: BrokerConfig) -> list[str]:
    """Return a warning for each listener that other machines can reach, without authentication."""
    return [
        f"{endpoint} takes everybody who reaches it: there is no authentication"
        for endpoint in config.listeners
        if not is_loopback(endpoint.host)
    ]


def _serve(
    config: BrokerConfig,
    started: float,
    signals: StopSignals,
    ready_fd: int | None,
    load: Callable[[], BrokerConfig],
) -> int:
    from kbroker.server.broker import Broker

    broker = Broker(config)
    manager = ServiceManager()
    signals.on_first = broker.give_up_start
    broker.on_fatal = lambda: os.kill(os.getpid(), signal.SIGTERM)
    if signals.has_come:
        broker.give_up_start()
    try:
        broker.start()
        status = _log_ready(config, broker, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
        manager.ready(status)
        if ready_fd is not None:
            _write_ready(ready_fd, broker)
        broker.finish_start()
        gc.freeze()
        gc.enable()
        gc.set_threshold(*GC_THRESHOLDS)
        while (number := signals.wait()) == signal.SIGHUP:
            manager.reloading()
            _read_again(broker, load)
            manager.ready(status)
        LOG.info("stopping on %s", signal.Signals(number).name)
    except OSError as error:
        raise KbrokerError(f"{error.filename or 'cannot start'}: {(error.strerror or str(error)).lower()}") from error
    except KbrokerError:
        if not signals.has_come:
            raise
        LOG.info("the start was given up: it was told to stop")
    finally:
        manager.stopping()
        _stop(config, broker)
    return 0


def _stop(config: BrokerConfig, broker: Broker) -> None:
    began = time.monotonic()
    was_ready = broker.is_ready
    _bound_stop(config)
    broker.stop()
    if was_ready:
        LOG.info("stopped in %.0f ms", (time.monotonic() - began) * 1000)


def _read_again(broker: Broker, load: Callable[[], BrokerConfig]) -> None:
    """Read the settings again and take those that a running broker can change. If one is wrong, nothing is changed."""
    try:
        config = load()
        reading = broker.read_again(config)
    except KbrokerError as error:
        said = "; ".join(line.strip() for line in str(error).splitlines()).replace(":;", ":")
        LOG.error("settings were read again on SIGHUP, and nothing is changed: %s", said)
        return
    _log_notices(config)
    LOG.info("settings were read again on SIGHUP: %s", ", ".join(reading.taken) or "nothing new that can be taken")
    if reading.waiting:
        LOG.warning("changed settings that are in force after a restart only: %s", ", ".join(reading.waiting))


def _write_ready(ready_fd: int, broker: Broker) -> None:
    with contextlib.suppress(BrokenPipeError), open(ready_fd, "w") as told:
        told.writelines(f"{endpoint}\n" for endpoint in broker.endpoints)


def _hang_on(lifeline_fd: int) -> None:
    """Have the kernel kill this process as soon as the pipe's other end is closed, even if the process is stopped."""
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline_fd], [], [], 0)[0]:  # it broke before
        os.kill(os.getpid(), signal.SIGKILL)


def _log_ready(config: BrokerConfig, broker: Broker, elapsed_s: float) -> str:
    """Log that the broker is ready; return its addresses and directories as text."""
    addresses = ", ".join(str(endpoint) for endpoint in broker.endpoints)
    directories = ", ".join(str(Path(directory).absolute()) for directory in config.log_dirs)
    serves = f"serves {addresses}; data in {directories}"
    LOG.info("kbroker %s %s; ready in %.0f ms", __version__, serves, elapsed_s * 1000)
    return serves


class StopSignals:
    """Takes the signals of a broker's process; `wait` returns them.

    The first Ctrl-C or SIGTERM stops the broker, a later one ends the process; SIGHUP does neither. A stop signal that
    was ignored when the process started stays ignored. The handlers raise nothing: an exception could be lost, or leave
    a lock held. `wait` reads a pipe that the C-level handler writes to, so it misses no signal, not even one that comes
    just before it waits.
    """

    def __init__(self) -> None:
        self.on_first: Callable[[], object] | None = None
        """Called, on a thread of its own, at the first stop signal."""
        self._first = 0.0
        self._come, told = os.pipe()
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        stops = (signal.SIGINT, signal.SIGTERM)
        self._numbers = [number for number in stops if signal.getsignal(number) != signal.SIG_IGN]
        for number in self._numbers:
            signal.signal(number, self._on_signal)
        # The default action would end the process; with a Python handler, the signal is written to the pipe.
        signal.signal(signal.SIGHUP, lambda *_: None)

    @property
    def has_come(self) -> bool:
        """Whether a stop signal has come."""
        return self._first != 0.0

    def wait(self) -> int:
        """Wait for the next signal and return its number."""
        return os.read(self._come, 1)[0]

    def ignore(self) -> None:
        for number in (*self._numbers, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._first == 0.0:
            self._first = time.monotonic()
            if self.on_first is not None:
                # On another thread: it takes locks that the interrupted code may hold.
                _thread.start_new_thread(self.on_first, ())
        elif time.monotonic() - self._first > SAME_SIGNAL_S:
            _give_up()


def _bound_stop(config: BrokerConfig) -> None:
    """End the process if the stop that begins now takes longer than kbroker.stop.timeout.ms and STOP_GRACE_S."""
    timer = threading.Timer(config["kbroker.stop.timeout.ms"] / 1000 + STOP_GRACE_S, _give_up)
    timer.daemon = True
    timer.start()


def _give_up(*_: object) -> None:
    os.write(2, b"kbroker: ended before it had stopped; the next start recovers the logs\n")
    os._exit(1)


def _process_start() -> float:
    """Return when this process was started, in seconds of CLOCK_BOOTTIME, to 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
