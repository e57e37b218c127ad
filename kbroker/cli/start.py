"""Run a broker until Ctrl-C or SIGTERM.

Settings: docs/CONFIG.md. What is not given has a default; without any the broker serves this machine on port 9092.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from kbroker import __version__
from kbroker.config.broker_config import BrokerConfig, load_config, refuse_unknown
from kbroker.errors import KbrokerError
from kbroker.net.endpoints import is_loopback

if TYPE_CHECKING:
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


def run(arguments: argparse.Namespace) -> int:
    started = _process_start()
    faulthandler.enable()
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    config = load_config(arguments.properties, arguments.override, arguments.data)
    if arguments.strict:
        refuse_unknown(config)
    for notice in config.notices:
        print(f"kbroker: {'warning: ' if notice.unknown else ''}{notice.text}", file=sys.stderr)
    for line in open_to_others(config):
        print(f"kbroker: warning: {line}", file=sys.stderr)
    _stop_on_signals()
    return _serve(config, started)


def open_to_others(config: BrokerConfig) -> list[str]:
    """One line for each listener that others than this machine reach without authentication."""
    return [
        f"{endpoint} takes everybody who reaches it: there is no authentication"
        for endpoint in config.listeners
        if not is_loopback(endpoint.host)
    ]


def _serve(config: BrokerConfig, started: float) -> int:
    from kbroker.server.broker import Broker

    broker = Broker(config)
    try:
        broker.start()
        _say_ready(config, broker, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    except OSError as error:
        raise KbrokerError(f"{error.filename or 'cannot start'}: {(error.strerror or str(error)).lower()}") from error
    finally:
        _bound_stop(config)
        broker.stop()
    return 0


def _say_ready(config: BrokerConfig, broker: Broker, elapsed_s: float) -> None:
    addresses = ", ".join(str(endpoint) for endpoint in broker.endpoints)
    directories = ", ".join(str(Path(directory).absolute()) for directory in config.log_dirs)
    print(
        f"kbroker {__version__} serves {addresses}; data in {directories}; ready in {elapsed_s * 1000:.0f} ms",
        flush=True,
    )


def _stop_on_signals() -> None:
    """The first Ctrl-C, SIGTERM or SIGHUP stops the broker, the second ends the process. What was ignored stays so."""
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, _give_up)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)


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
