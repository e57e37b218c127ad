"""Brokers with full disks: the reason why messages are not taken, or a cluster is not ready."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kbroker.cli.client_options import connect
from kbroker.client.admin.results import LogDirDescription
from kbroker.client.errors import ClientError, TimedOut
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.storage.disk_space import FULL_BELOW

CODES = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Errors that may come from a full disk. UNKNOWN_TOPIC_OR_PARTITION: perhaps the topic could not be made."""


def full_directories(directories: Iterable[LogDirDescription]) -> list[str]:
    """Return the paths of the directories whose disks have no space for a large batch, as far as the broker tells."""
    return [each.path for each in directories if 0 <= each.usable_bytes < FULL_BELOW]


@contextmanager
def full_disks_named(arguments: argparse.Namespace) -> Iterator[None]:
    """A context manager around producing: if an error may come from a full disk, it names the brokers' full disks.

    Raises KbrokerError with them if there are full disks, else the error itself.
    """
    try:
        yield
    except ClientError as error:
        if not isinstance(error, TimedOut) and error.code not in CODES:
            raise
        full = _full_disks(arguments)
        if not full:
            raise
        raise KbrokerError(f"{error.message}; the disk is full: {', '.join(full)}") from None


def _full_disks(arguments: argparse.Namespace) -> list[str]:
    try:
        with connect(arguments) as admin:
            by_broker = admin.describe_log_dirs()
    except KbrokerError:  # the user is to see the first error, not this one
        return []
    return [
        f"log directory {path} of broker {node_id}"
        for node_id, directories in by_broker.items()
        for path in full_directories(directories)
    ]
