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

    def load() -> BrokerConfig:
        if properties is not None and Path(properties).is_dir():
            raise KbrokerError(f"{properties} is a directory, and no file of settings: --data {properties}")
        config = load_config(properties, overrides, data)
        if strict:
            refuse_unknown(config)
        return config

    config = load()
    begin_log(log_level, config["kbroker.log.format"])
    _tell_notices(config)
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


def _tell_notices(config: BrokerConfig) -> None:
    for notice in config.notices:
        LOG.log(logging.WARNING if notice.unknown else logging.INFO, "%s", notice.text)


def open_to_others(config: BrokerConfig) -> list[str]:
    """One line for each listener that others than this machine reach without authentication."""
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
    if signals.has_come:
        broker.give_up_start()
    try:
        broker.start()
        status = _say_ready(config, broker, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
        manager.ready(status)
        if ready_fd is not None:
            _tell_ready(ready_fd, broker)
        broker.load_handlers()
        gc.freeze()
        gc.enable()
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
    """What can be taken of the settings as they are given now. Nothing is, where something is wrong with them."""
    try:
        config = load()
        reading = broker.read_again(config)
    except KbrokerError as error:
        said = "; ".join(line.strip() for line in str(error).splitlines()).replace(":;", ":")
        LOG.error("settings were read again on SIGHUP, and nothing is changed: %s", said)
        return
    _tell_notices(config)
    LOG.info("settings were read again on SIGHUP: %s", ", ".join(reading.taken) or "nothing new that can be taken")
    if reading.waiting:
        LOG.warning("changed settings that are in force after a restart only: %s", ", ".join(reading.waiting))


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


def _say_ready(config: BrokerConfig, broker: Broker, elapsed_s: float) -> str:
    """What it serves."""
    addresses = ", ".join(str(endpoint) for endpoint in broker.endpoints)
    directories = ", ".join(str(Path(directory).absolute()) for directory in config.log_dirs)
    serves = f"serves {addresses}; data in {directories}"
    LOG.info("kbroker %s %s; ready in %.0f ms", __version__, serves, elapsed_s * 1000)
    return serves


class StopSignals:
    """The first Ctrl-C or SIGTERM ends the broker, a later one the process; SIGHUP ends nothing. `wait` has them all.

    Stops that were ignored stay so. Nothing is raised out of a signal: it may come where an exception is lost or a lock
    is held. `wait` reads what the system's handler has written: it misses no signal, not even one that comes just
    before it waits.
    """

    def __init__(self) -> None:
        self.on_first: Callable[[], object] | None = None
        """Called on a thread of its own when the first stop comes."""
        self._first = 0.0
        self._come, told = os.pipe()
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        stops = (signal.SIGINT, signal.SIGTERM)
        self._numbers = [number for number in stops if signal.getsignal(number) != signal.SIG_IGN]
        for number in self._numbers:
            signal.signal(number, self._take)
        # The system's own handler would end the process; that of Python writes to the pipe.
        signal.signal(signal.SIGHUP, lambda *_: None)

    @property
    def has_come(self) -> bool:
        """Whether somebody wants the end."""
        return self._first != 0.0

    def wait(self) -> int:
        """The next signal's number."""
        return os.read(self._come, 1)[0]

    def ignore(self) -> None:
        for number in (*self._numbers, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        if self._first == 0.0:
            self._first = time.monotonic()
            if self.on_first is not None:
                # What it does takes locks, and the code that the signal has come into may hold them.
                _thread.start_new_thread(self.on_first, ())
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
