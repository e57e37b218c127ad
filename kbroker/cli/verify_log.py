"""Check the files of log directories, and say at which byte something is wrong.

Takes log directories, directories of partitions and single files; writes nothing. A broker may be running on them: what
it is writing at the moment is no finding. Exit code 0: nothing is wrong; 1: something is. Nothing is repaired: a broker
repairs what it can when it starts.

With --replicas the replicas of each partition are compared with each other instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from kbroker.cli import verify_replicas
from kbroker.inspection.directory_check import Verifier

EXAMPLES = """examples:
  kbroker verify-log data
  kbroker verify-log disk1/data disk2/data           ids must agree over all of them
  kbroker verify-log data/views-0 data/views-1/00000000000000000000.index
  kbroker verify-log --json data | jq .file
  kbroker verify-log --replicas -b broker1:9092 views      what the brokers that run have
  kbroker verify-log --replicas broker1/data broker2/data  what stopped brokers have
"""
WHAT_TO_DO = (
    "a start makes anew what the log tells (indexes, epochs, snapshots) and cuts a log after an unclean stop only;"
    " one that would lose records after a clean stop it refuses, and says what can be done"
)
_EVERY_S = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", nargs="*", metavar="PATH", help="log directory, directory of a partition, or file; see --replicas"
    )
    verify_replicas.configure(parser)
    parser.set_defaults(refuse=parser.error)
    parser.add_argument("--compacted", action="store_true", help="offsets may be missing, whatever the directory tells")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each finding")


def run(arguments: argparse.Namespace) -> int:
    if arguments.replicas:
        return verify_replicas.run(arguments)
    if not arguments.path:
        arguments.refuse("the following arguments are required: PATH")
    progress = ProgressLine()
    verifier = Verifier(has_gaps=arguments.compacted, progress=progress.advance)
    count = 0
    for path in map(Path, arguments.path):
        for finding in verifier.check(path):
            progress.clear()
            count += 1
            if arguments.json:
                print(json.dumps({"file": finding.path, "position": finding.position, "what": finding.what}))
            else:
                print(finding)
    progress.clear()
    if not arguments.json:
        found = "nothing is wrong" if not count else f"{count} problem{'s' if count > 1 else ''} found"
        print(f"kbroker: {found}; {verifier.totals}", file=sys.stderr)
        if count:
            print(f"kbroker: {WHAT_TO_DO}", file=sys.stderr)
    return 1 if count else 0


class ProgressLine:
    """A line with the number of bytes read so far, if stderr is a terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._bytes = 0
        self._started = self._written = time.monotonic()
        self._width = 0

    def advance(self, size: int) -> None:
        self._bytes += size
        now = time.monotonic()
        if self._is_shown and now - self._written >= _EVERY_S:
            self._written = now
            speed = self._bytes / (now - self._started) / 1e9
            text = f"{self._bytes / 1e9:.1f} GB checked, {speed:.1f} GB/s"
            print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def clear(self) -> None:
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
