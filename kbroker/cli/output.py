"""How subcommands print data: JSON for programs, columns for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

Cell = str | int | float | None


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 message`, `1,234 messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_note(text: str) -> None:
    """Print a line for a person on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def prompt() -> None:
    """Print the prompt for a line that is typed, if stderr is a terminal."""
    if sys.stderr.isatty():
        print("> ", end="", file=sys.stderr, flush=True)


def remind_of_execute() -> None:
    """Tell the user that only a plan was shown."""
    print("kbroker: this is the plan, and nothing is done yet: --execute does it", file=sys.stderr)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print rows under their heads, in aligned columns, numbers to the right. None and empty text are `-`."""
    cells = [["-" if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(heads))]
    widths = [max(len(head), *(len(row[i]) for row in cells)) if cells else len(head) for i, head in enumerate(heads)]
    for row in (list(heads), *cells):
        line = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        print("  ".join(line).rstrip())


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").isdigit()
