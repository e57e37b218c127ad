"""A broker in the process of the tests, for tests that must not start another one. It cannot be killed or paused."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from kbroker.config.broker_config import load_config, refuse_unknown
from kbroker.errors import KbrokerError
from kbroker.server.broker import Broker
from kbroker.testing.broker_failed import BrokerFailed

REFUSED = "a broker inside of the test process cannot be {}; leave out inprocess=True"


class BrokerInprocess:
    """Has the methods of `BrokerProcess`; `kill`, `pause` and `resume` raise RuntimeError.

    All brokers of a process share the logger `kbroker`.
    """

    is_paused = False

    def __init__(self, overrides: Sequence[str], log_path: Path, log_level: str):
        self._overrides = list(overrides)
        self._log_path = log_path
        self._log_level = log_level.upper()
        self._broker: Broker | None = None
        self._handler: logging.Handler | None = None
        self._level_before = logging.NOTSET
        self._switch_interval_before = sys.getswitchinterval()

    @property
    def pid(self) -> None:
        return None

    def start(self, timeout_s: float) -> None:
        self._open_log()
        self._switch_interval_before = sys.getswitchinterval()
        try:
            config = load_config(None, self._overrides, environment={})
            refuse_unknown(config)
            self._broker = Broker(config)
            self._broker.start()
        except BaseException as error:
            self.stop()
            if isinstance(error, (KbrokerError, OSError)):
                log = self._log_path.read_text(errors="replace")
                raise BrokerFailed(f"the broker did not start: {error}", log) from error
            raise

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()
            self._broker = None
        if self._handler is not None:
            logger = logging.getLogger("kbroker")
            logger.removeHandler(self._handler)
            logger.setLevel(self._level_before)
            self._handler.close()
            self._handler = None
        sys.setswitchinterval(self._switch_interval_before)

    def discard(self) -> None:
        """Stop the broker: in one process there is no faster way."""
        self.stop()

    def kill(self) -> None:
        raise RuntimeError(REFUSED.format("killed"))

    def pause(self) -> None:
        raise RuntimeError(REFUSED.format("paused"))

    def resume(self) -> None:
        raise RuntimeError(REFUSED.format("resumed"))

    def check_alive(self) -> None:
        """Do nothing: this broker ends only by `stop`."""

    def check_running(self) -> None:
        """Raise RuntimeError when the broker is stopped."""
        if self._broker is None:
            raise RuntimeError("the broker is not running")

    def _open_log(self) -> None:
        self._handler = logging.FileHandler(self._log_path)
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger = logging.getLogger("kbroker")
        self._level_before = logger.level
        logger.addHandler(self._handler)
        logger.setLevel(self._log_level)
