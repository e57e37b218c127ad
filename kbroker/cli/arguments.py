"""Arguments that several subcommands have, and the parsers of their values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from kbroker.errors import KbrokerError

N = TypeVar("N", int, float)
LONGEST_S = 1e9
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "KBROKER_BOOTSTRAP_SERVERS"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    """Add `-b HOST:PORT` and `--timeout`: how a cluster is reached."""
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="any broker of the cluster, or several separated by commas (default: the environment variable "
        f"{BOOTSTRAP_VARIABLE}, else {DEFAULT_BOOTSTRAP})",
    )
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for a broker (default %(default)s)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_execution(parser: argparse.ArgumentParser) -> None:
    """Add `--execute`, without which only a plan is shown, and `--dry-run`."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--execute", action="store_true", help="do it; without this the plan is shown, and nothing done")
    how.add_argument("--dry-run", action="store_true", help="only show the plan, and do not remind of --execute")


def add_producing(parser: argparse.ArgumentParser) -> None:
    """Add `--acks` and `--compression`: how messages are sent."""
    parser.add_argument("--acks", choices=("0", "1", "all"), default="all", help="default: %(default)s")
    parser.add_argument(
        "--compression",
        choices=CODECS,
        default="none",
        help="default: %(default)s",
    )


def number(text: str, kind: type[N]) -> N:
    """Parse a number. Raises ArgumentTypeError if the text is not one of that kind."""
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None


def positive_seconds(text: str) -> float:
    value = number(text, float)
    if not 0 < value < LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and below {LONGEST_S:.0f}")
    return value


def positive(text: str) -> int:
    value = number(text, int)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def setting(text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE`. Raises ArgumentTypeError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def partition_list(text: str) -> list[int]:
    """Parse a list of partitions such as `0,2,5-7`. Raises ArgumentTypeError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part, re.ASCII)
        if match is None or int(match[2] or match[1]) - int(match[1]) > 100_000:
            raise argparse.ArgumentTypeError(f"{part!r} is not a partition or a range of them, as in 0,2,5-7")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def moment(text: str) -> int:
    """Return milliseconds since the epoch. `text` is that number, or an ISO date and time.

    A time without a zone is local. Raises ArgumentTypeError.
    """
    if re.fullmatch(r"\d+", text, re.ASCII):
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither milliseconds nor a time like 2026-01-31T12:00:00"
        ) from None


def require_known_partitions(topic: str, wanted: Sequence[int], known: Sequence[int]) -> None:
    """Check that a topic has the `wanted` partitions. Raises KbrokerError, which names the missing ones."""
    missing = sorted(set(wanted) - set(known))
    if missing:
        raise KbrokerError(f"topic {topic!r} has no partition {', '.join(map(str, missing))}; it has {len(known)}")
