"""The parser of command lines: argparse with options anywhere, and suggestions for misspelt words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from kbroker.rules.nearest import nearest


class CommandParser(argparse.ArgumentParser):
    """The parser of one command.

    Only a parser without subcommands has positional arguments; options may stand between them. Such a parser refuses
    unknown arguments itself, with its own usage and the nearest known name.
    """

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        self._is_parsing = False

    def commands(self) -> dict[str, CommandParser]:
        """Return the parsers of the subcommands, by name."""
        found = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(found[0] or {}) if found else {}

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if self._is_parsing:
            return super().parse_known_args(args, namespace)
        if self.commands():
            found, unknown = super().parse_known_args(
                self._command_first(list(args or ())), namespace or argparse.Namespace()
            )
            self._refuse(unknown)
            return found, []
        self._is_parsing = True  # argparse's intermixed parsing calls this method again, for each of its two rounds
        try:
            self._refuse(list(self._unknown_names(args or ())))
            found, unknown = self.parse_known_intermixed_args(args, namespace or argparse.Namespace())
        finally:
            self._is_parsing = False
        self._refuse(unknown)
        return found, []

    def error(self, message: str) -> NoReturn:
        if self.commands() and message.startswith("the following arguments are required"):
            message += f": one of {', '.join(self.commands())}"
        super().error(message)

    def _command_first(self, words: list[str]) -> list[str]:
        """Turn `-b HOST:PORT list` into `list -b HOST:PORT`: options before a subcommand are the subcommand's."""
        commands = self.commands()
        if words and words[0].startswith("-") and words[0] not in self._option_string_actions:
            for at, word in enumerate(words):
                if word in commands:
                    return [word, *words[:at], *words[at + 1 :]]
        return words

    def _refuse(self, unknown: Sequence[str]) -> None:
        if unknown:
            # Without the dashes: all names have them, which would make short names look alike.
            options = {each.lstrip("-"): each for each in self._option_string_actions}
            like = nearest(unknown[0].lstrip("-"), options)
            advice = f"; did you mean {options[like]}?" if like else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")

    def _unknown_names(self, words: Sequence[str]) -> Iterator[str]:
        """Yield words that look like a long option, but are not the beginning of a known one."""
        for word in words:
            if word == "--":
                return
            name = word.partition("=")[0]
            is_known = any(known.startswith(name) for known in self._option_string_actions)
            if word.startswith("--") and " " not in word and not is_known:
                yield name

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            like = nearest(str(value), map(str, action.choices or ()))
            error.message += f"; did you mean {like}?" if like else ""
            raise


def add_examples(parser: CommandParser, examples: str, command: str) -> None:
    """End the help of each subcommand with its lines of `examples`. `command` is the parser's name in these lines."""
    parser.epilog = examples
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            purposes = {each.dest: each.help for each in action._choices_actions}
            for name, child in (action.choices or {}).items():
                lines = [line for line in examples.splitlines() if f"{command} {name} " in f"{line} "]
                child.description = child.description or _sentence(purposes.get(name))
                child.epilog = "\n".join(("examples:", *lines)) + "\n"


def _sentence(text: str | None) -> str | None:
    return f"{text[0].upper()}{text[1:]}." if text else None
