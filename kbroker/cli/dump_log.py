"""Print what is in the files of a log directory, and what is wrong with them.

Takes files, partition directories and whole log directories; changes nothing. Exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kbroker.cli.log_files import Entry, Problem, is_known, read_file
from kbroker.errors import KbrokerError

EXAMPLES = """examples:
  kbroker dump-log data/views-0/00000000000000000000.log
  kbroker dump-log --records data/views-0/00000000000000000000.log
  kbroker dump-log --problems data                                   only what is wrong, in all of a log directory
  kbroker dump-log --json data/views-0 | jq 'select(.kind == "batch")'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="+", type=Path, help="file or directory")
    parser.add_argument("--records", action="store_true", help="the records of each batch, too")
    parser.add_argument("--problems", action="store_true", help="only what is wrong")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each entry")


def run(arguments: argparse.Namespace) -> int:
    problems = 0
    for path in _files(arguments.path):
        try:
            found = read_file(path, arguments.records)
            if found is None:
                raise KbrokerError(f"{path}: a kind of file that is not known")
            problems += _print_file(path, found, arguments)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise KbrokerError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if problems and not arguments.json:
        print(f"kbroker: {problems} problem{'s' if problems > 1 else ''} found", file=sys.stderr)
    return 1 if problems else 0


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files that are named, and those of known kinds below the directories that are."""
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.is_file() and is_known(file))
        elif path.exists():
            yield path
        else:
            raise KbrokerError(f"{path}: no such file or directory")


def _print_file(path: Path, found: Iterator[Entry | Problem], arguments: argparse.Namespace) -> int:
    problems = 0
    if not arguments.json and not arguments.problems:
        print(f"{path}")
    for item in found:
        if isinstance(item, Problem):
            problems += 1
            if arguments.json:
                _print_line({"file": str(path), "kind": "problem", "position": item.position, "what": item.what})
            else:
                print(f"{path}: {f'byte {item.position}: ' if item.position >= 0 else ''}{item.what}")
        elif arguments.json and not arguments.problems:
            fields = {name: _jsonable(value) for name, value in item.fields.items()}
            _print_line({"file": str(path), "kind": item.kind, "position": item.position, **fields})
        elif not arguments.problems:
            print("  " + _TEXT[item.kind](item))
    return problems


def _print_line(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False))


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}
    if isinstance(value, tuple):
        return [_jsonable(item) for item in value]
    return value


# --- one line of text for each kind of entry --------------------------------------------------------


def _time(milliseconds: int) -> str:
    try:
        return (
            datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def _batch(entry: Entry) -> str:
    fields = entry.fields
    words = [
        f"byte {entry.position}",
        f"size {fields['size']}",
        f"offsets {fields['base_offset']}..{fields['last_offset']}",
        f"records {fields['record_count']}",
        f"times {_time(fields['base_timestamp'])}..{_time(fields['max_timestamp'])}",
        f"codec {fields['codec']}",
        f"epoch {fields['leader_epoch']}",
    ]
    if fields["producer_id"] >= 0:
        words.append(f"producer {fields['producer_id']}/{fields['producer_epoch']} sequence {fields['base_sequence']}")
    words += [name.replace("_", " ") for name in ("log_append_time", "transactional", "control") if fields[name]]
    return "  ".join(words)


def _message(entry: Entry) -> str:
    fields = entry.fields
    return (
        f"byte {entry.position}  size {fields['size']}  offset {fields['base_offset']}  magic {fields['magic']}  "
        f"time {_time(fields['base_timestamp'])}  codec {fields['codec']}"
    )


def _record(entry: Entry) -> str:
    fields = entry.fields
    headers = f"  headers {_short(fields['headers'])}" if fields["headers"] else ""
    key, value = _short(fields["key"]), _short(fields["value"])
    return f"  offset {fields['offset']}  time {_time(fields['timestamp'])}  key {key}  value {value}{headers}"


def _short(value: Any) -> str:
    shown = json.dumps(_jsonable(value), ensure_ascii=False)
    return shown if len(shown) <= 200 else f"{shown[:200]}... ({len(shown)})"


def _plain(entry: Entry) -> str:
    fields = entry.fields
    return "  ".join(f"{name.replace('_', ' ')} {value}" for name, value in fields.items())


_TEXT: dict[str, Callable[[Entry], str]] = {
    "batch": _batch,
    "message": _message,
    "record": _record,
    "index": _plain,
    "time_index": lambda entry: f"time {_time(entry.fields['timestamp'])}  offset {entry.fields['offset']}",
    "aborted_transaction": _plain,
    "producer": _plain,
    "checkpoint": _plain,
    "property": lambda entry: "  ".join(f"{name}={value}" for name, value in entry.fields.items()),
}
