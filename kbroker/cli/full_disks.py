"""Brokers whose disks are full: why what is produced is not taken, and a cluster is not ready."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kbroker.cli.client_options import connect
from kbroker.client.admin_results import LogDirDescription
from kbroker.client.errors import ClientError, TimedOut
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.storage.disk_space import FULL_BELOW

CODES = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""With the latter a topic was not made, perhaps."""


def full_directories(directories: Iterable[LogDirDescription]) -> list[str]:
    """The paths of those whose disks have no room for a large batch, as far as their broker tells."""
    return [each.path for each in directories if 0 <= each.usable_bytes < FULL_BELOW]


@contextmanager
def full_disks_named(arguments: argparse.Namespace) -> Iterator[None]:
    """Where something is produced: what a broker did not write, or not in time, for its disk is full, says so."""
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
    except KbrokerError:  # that is not what the user is to hear of
        return []
    return [
        f"log directory {path} of broker {node_id}"
        for node_id, directories in by_broker.items()
        for path in full_directories(directories)
    ]
