"""The loggers of this process as BROKER_LOGGER resources (KIP-412): those of kbroker, and the root logger as "root"."""

from __future__ import annotations

import logging

from kbroker.cluster.config_changes import Op, Wish
from kbroker.errors import ErrorCode, ProtocolError

ROOT = "root"
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def logger_levels() -> dict[str, str]:
    """The effective level of each logger, by name."""
    names = sorted(name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "kbroker")
    return {name: _level_name(_logger(name).getEffectiveLevel()) for name in [ROOT, *names]}


def check_logger_changes(wishes: list[Wish]) -> None:
    """Raise ProtocolError if one of the wishes cannot be carried out."""
    known = logger_levels()
    for name, operation, value in wishes:
        if operation in (Op.APPEND, Op.SUBTRACT):
            operation_name = Op(operation).name
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, f"{operation_name} operation is not allowed for the BROKER_LOGGER resource"
            )
        if name not in known:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
        if operation == Op.SET and value not in _LEVELS:
            raise ProtocolError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(sorted(_LEVELS))}",
            )
        if operation == Op.DELETE and name == ROOT:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")


def change_loggers(wishes: list[Wish]) -> None:
    """Set levels, or with DELETE leave them to the parent logger. `wishes` must have been checked.

    The levels last until the process ends.
    """
    for name, operation, value in wishes:
        _logger(name).setLevel(logging.NOTSET if operation == Op.DELETE else _LEVELS[value or ""])


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == ROOT else logging.getLogger(name)


def _level_name(level: int) -> str:
    """The name of the lowest named level that is not below `level`."""
    return next((name for name, value in _LEVELS.items() if level <= value), "FATAL")
