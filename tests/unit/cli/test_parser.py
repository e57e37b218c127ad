"""How command lines are read, without a broker."""

from __future__ import annotations

from importlib import import_module

import pytest

from kbroker.cli.main import COMMANDS, _parser, main
from kbroker.cli.parser import CommandParser


def parsed(*words: str) -> dict[str, object]:
    return vars(_parser(words)[0].parse_args(words))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("produce many -b X file", {"topic": "many", "file": ["file"], "bootstrap_server": "X"}),
        ("produce -b X many --acks 1 file other", {"topic": "many", "file": ["file", "other"], "acks": "1"}),
        ("produce many", {"topic": "many", "file": []}),
        ("produce many -- -file", {"topic": "many", "file": ["-file"]}),
        ("topics create a -p 2 b --if-not-exists c", {"topic": ["a", "b", "c"], "partitions": 2}),
        ("configs alter topic --set a=b t", {"kind": "topic", "name": "t", "set": [("a", "b")]}),
        ("consume --offset -10 t -p 1", {"topic": "t", "offset": -10, "partition": [1]}),
        ("groups reset-offsets --shift-by -2 g --topic t", {"group": "g", "shift_by": -2}),
        ("load a --to x b", {"topic": ["a", "b"], "to": "x"}),
        ("start --strict a.properties -o x=1", {"properties": "a.properties", "override": ["x=1"]}),
        ("dump-log a --json b", {"json": True}),
        ("-b X topics list --json", {"action": "list", "bootstrap_server": "X", "json": True}),
        ("topics -b X --json list", {"action": "list", "bootstrap_server": "X", "json": True}),
    ],
)
def test_options_stand_anywhere(words: str, expected: dict[str, object]) -> None:
    assert parsed(*words.split()).items() >= expected.items()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("topic", "did you mean topics?"),
        ("topics lst", "did you mean list?"),
        ("topics alter views --partitons 4", "unrecognized arguments: --partitons; did you mean --partitions?"),
        ("consume views --form-beginning", "did you mean --from-beginning?"),
        ("produce views --compression zst", "did you mean zstd?"),
        ("perf prodce x", "did you mean produce?"),
        ("--verson", "did you mean --version?"),
        ("configs alter topic t --delete a", "unrecognized arguments: --delete\n"),
        ("topics", "the following arguments are required: ACTION: one of list, create, "),
        ("produce", "the following arguments are required: topic\n"),
    ],
)
def test_a_slip_is_answered_with_the_nearest_right_word(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_usage_that_is_shown_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["topics", "alter", "views", "--partitons", "4"])
    assert capsys.readouterr().err.startswith("usage: kbroker topics alter ")


def leaves() -> list[str]:
    """Each command line that does something, without its arguments."""
    found = []
    for name in COMMANDS:
        parser = CommandParser()
        import_module(f"kbroker.cli.{name.replace('-', '_')}").configure(parser)
        found += [f"{name} {action}" for action in parser.commands()] or [name]
    return found


@pytest.mark.parametrize("command", leaves())
def test_every_help_has_examples_of_its_own_command_and_how_a_broker_is_found(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    examples = text.partition("\nexamples:\n")[2].splitlines()
    assert any(f"kbroker {command}" in line for line in examples)
    assert ("KBROKER_BOOTSTRAP_SERVERS" in text) == ("--bootstrap-server" in text)
