"""Every command line that the help, the README and the documents show is one that the command accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module

import pytest

from kbroker.cli import main as command_line
from tests.kit import build


def command_lines(text: str, indent: int) -> Iterator[str]:
    """Yield the kbroker commands of a text, without the shell's syntax around them and without trailing remarks.

    A line with commands has at least `indent` spaces before them, or begins with a backtick.
    """
    for line in text.splitlines():
        if not re.match(rf"\s{{{indent},}}\S|^`", line):
            continue
        for part in re.split(r"\||;|&&", line):
            found = re.match(r"\s*(?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?(kbroker (?:[a-z]|--).*)", part)
            if found:
                yield re.split(r"\s{3,}| < | > ", found[1].strip())[0]


def everything() -> list[str]:
    documents = [build.ROOT / "README.md", *sorted((build.ROOT / "docs").glob("*.md"))]
    helps = [import_module(f"kbroker.cli.{name.replace('-', '_')}").EXAMPLES for name in command_line.COMMANDS]
    found = {line for text in (command_line.EXAMPLES, *helps) for line in command_lines(text, 2)}
    # In documents lines with two spaces before them go on with the item of a list.
    return sorted(found | {line for path in documents for line in command_lines(path.read_text(), 4)})


def test_there_are_examples_of_every_subcommand() -> None:
    assert {line.split()[1] for line in everything()} >= set(command_line.COMMANDS)


@pytest.mark.parametrize("line", everything())
def test_an_example_is_accepted(line: str) -> None:
    words = shlex.split(line)[1:]
    parser, _ = command_line._parser(words)
    if "SUBCOMMAND" not in words:
        parser.parse_args(words)
