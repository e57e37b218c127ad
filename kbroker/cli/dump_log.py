"""Print what is in the files of a log directory, as kafka-dump-log does.

Takes log directories, directories of partitions and single files of every kind; changes nothing. Problems of a file are
printed on standard error, with the byte, and make the exit code 1. `kbroker verify-log` checks more.
"""

from __future__ import annotations

import argparse
import json
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kbroker.cli.arguments import positive
from kbroker.cli.dump_lines import LINES, decode_text, record_line
from kbroker.errors import KbrokerError
from kbroker.inspection import dump
from kbroker.inspection.entries import Entry, Finding, Problem, reason_of
from kbroker.inspection.log_file import LogOptions
from kbroker.inspection.state_records import decode_offsets, decode_transactions

EXAMPLES = """examples:
  kbroker dump-log data/views-0/00000000000000000000.log
  kbroker dump-log --print-data-log --files data/views-0/00000000000000000000.log,data/meta.properties
  kbroker dump-log --offsets-decoder data/__consumer_offsets-7
  kbroker dump-log --json data/views-0 | jq 'select(.kind == "batch")'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="*", type=Path, metavar="PATH", help="file or directory")
    parser.add_argument("--files", metavar="FILE,FILE", default="", help="the same, as kafka-dump-log has it")
    parser.add_argument("--deep-iteration", action="store_true", help="the records of each batch, too")
    parser.add_argument("--print-data-log", action="store_true", help="their keys and values, too")
    parser.add_argument("--offsets-decoder", action="store_true", help="records are those of __consumer_offsets")
    parser.add_argument(
        "--transaction-log-decoder", action="store_true", help="records are those of __transaction_state"
    )
    parser.add_argument("--skip-record-metadata", action="store_true", help="of records only keys and values")
    parser.add_argument("--max-bytes", type=positive, metavar="BYTES", help="only so much of each log")
    # Kafka's limit on what it reads at once; ignored here: a record of any size is read.
    parser.add_argument("--max-message-size", type=positive, help=argparse.SUPPRESS)
    parser.add_argument("--index-sanity-check", action="store_true", help="of indexes, only whether they can be used")
    parser.add_argument("--verify-index-only", action="store_true", help="of indexes, only what is wrong with them")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each entry")


def run(arguments: argparse.Namespace) -> int:
    paths = [*arguments.path, *map(Path, filter(None, arguments.files.split(",")))]
    if not paths:
        print("usage: kbroker dump-log PATH... (or --files FILE,FILE)", file=sys.stderr)
        return 2
    dumper = Dumper(arguments)
    for path in paths:
        try:
            for file in dump.files_of(path):
                dumper.dump(file)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise KbrokerError(f"{error.filename or path}: {reason_of(error)}") from None
    return 1 if dumper.problem_count else 0


class Dumper:
    """Prints files one after the other."""

    def __init__(self, arguments: argparse.Namespace):
        self._arguments = arguments
        self._decoder: Any = decode_text
        if arguments.offsets_decoder:
            self._decoder = decode_offsets
        elif arguments.transaction_log_decoder:
            self._decoder = decode_transactions
        with_data = arguments.print_data_log or self._decoder is not decode_text
        self._options = LogOptions(arguments.deep_iteration or with_data, with_data, arguments.max_bytes)
        self.problem_count = 0

    def dump(self, path: Path) -> None:
        if not self._arguments.json:
            print(f"Dumping {path}")
        try:
            for item in self._items(path):
                if isinstance(item, Problem):
                    self._complain(path, item)
                elif self._arguments.json:
                    self._print_json(path, item)
                elif item.kind == "invalid_bytes":
                    print(f"Found {item.fields['count']} invalid bytes at the end of {path.name}")
                elif item.kind == "record":
                    with_metadata = not self._arguments.skip_record_metadata
                    print(record_line(item, self._decoder, with_metadata=with_metadata))
                else:
                    print(LINES[item.kind](item))
        except BrokenPipeError:
            raise
        except OSError as error:
            self._complain(path, Problem(-1, reason_of(error)))

    def _items(self, path: Path) -> Iterator[Entry | Problem]:
        if not dump.is_index(path):
            yield from dump.read_entries(path, self._options)
        elif self._arguments.index_sanity_check:
            yield from self._told(path, dump.index_sanity(path))
        else:
            is_empty = True
            for item in dump.read_entries(path, self._options):
                is_empty = False
                if isinstance(item, Entry) and not self._arguments.verify_index_only:
                    yield item
            if is_empty and path.suffix == ".index" and not self._arguments.json:
                print(f"{path} is empty.")
            yield from dump.against_its_log(path)

    def _told(self, path: Path, found: Iterable[Entry | Problem]) -> Iterator[Entry | Problem]:
        is_sane = True
        for item in found:
            is_sane = False
            yield item
        if is_sane and not self._arguments.json:
            print(f"{path} passed sanity check.")

    def _complain(self, path: Path, problem: Problem) -> None:
        self.problem_count += 1
        if self._arguments.json:
            _print_line({"file": str(path), "kind": "problem", "position": problem.position, "what": problem.what})
        else:
            sys.stdout.flush()
            print(Finding(str(path), problem.position, problem.what), file=sys.stderr)

    def _print_json(self, path: Path, entry: Entry) -> None:
        fields = dict(entry.fields)
        if "key" in fields and self._decoder is not decode_text:
            fields["key"], fields["value"] = self._decoder(fields["offset"], fields["key"], fields["value"])
        _print_line({"file": str(path), "kind": entry.kind, "position": entry.position, **_jsonable(fields)})


def _print_line(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False))


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value
