"""`kbroker SUBCOMMAND ...`: finds the subcommand and runs it. `outcome.py` has the exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from kbroker import __version__
from kbroker.cli.outcome import USAGE, outcome
from kbroker.cli.parser import CommandParser, add_examples

COMMANDS = {
    "start": "run a broker",
    "topics": "list, create, describe, alter and delete topics, delete old messages",
    "produce": "write messages from files or the standard input to a topic",
    "consume": "print the messages of a topic",
    "load": "load topics into a lake of Parquet files, with Spark",
    "perf": "measure throughput and latency of a broker",
    "groups": "list, describe and delete consumer groups, move their offsets",
    "transactions": "list and describe transactions, find and abort those that hang",
    "configs": "show and change settings of topics, brokers and groups",
    "reassign": "move replicas to other brokers when brokers come or go",
    "cluster": "show how a cluster is; carry topics and settings into a ZooKeeper, and back",
    "dump-log": "print what is in the files of a log directory",
    "verify-log": "check the files of log directories, and say at which byte something is wrong",
}

EXAMPLES = """examples:
  kbroker start                                    a broker on 127.0.0.1:9092
  kbroker start server.properties --data /var/lib/kbroker
  kbroker topics create views --partitions 4
  echo hello | kbroker produce views
  kbroker consume views --from-beginning --exit
  kbroker groups describe readers --json

`kbroker SUBCOMMAND --help` says more about each.
"""


class Command(Protocol):
    """What the module of a subcommand offers."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the subcommand's arguments to `parser`."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the subcommand and return the exit code."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return the exit code.

    Raises SystemExit for usage errors.
    """
    return outcome(lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    parser, command = _parser(argv)
    arguments = parser.parse_args(argv)
    if command is None:
        parser.print_help()
        return USAGE
    return command.run(arguments)


def _parser(argv: Sequence[str]) -> tuple[argparse.ArgumentParser, Command | None]:
    """Return the parser and the subcommand that `argv` names; None if it names none.

    Only that subcommand is imported and has its arguments; the others are listed.
    """
    parser = CommandParser(
        prog="kbroker",
        description="A message broker that speaks the Kafka protocol, and tools for it.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"kbroker {__version__}")
    subparsers = parser.add_subparsers(title="subcommands", metavar="SUBCOMMAND")
    named = next((word for word in argv if word in COMMANDS), None)
    command: Command | None = None
    for name, purpose in COMMANDS.items():
        module = import_module(f"kbroker.cli.{name.replace('-', '_')}") if name == named else None
        subparser = subparsers.add_parser(
            name,
            help=purpose,
            description=(module.__doc__ or "").partition("\n")[0] if module else None,
        )
        if module is not None:
            command = module
            module.configure(subparser)
            add_examples(subparser, module.EXAMPLES, f"kbroker {name}")
    return parser, command


if __name__ == "__main__":
    raise SystemExit(main())
