"""Reading Java `.properties` text, as `java.util.Properties.load` does: escapes, continuations, three separators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kbroker.errors import ConfigError

WHITESPACE = " \t\f"
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One `name=value` of a file. `line` is the number of the line with the name, from 1 on."""

    name: str
    value: str
    line: int


def read_properties(path: str | Path) -> list[Property]:
    """Return the properties of a file, in its order, repeated names included.

    The file is read as UTF-8 or, if it is not valid UTF-8, as ISO-8859-1, Java's encoding of these files. Raises
    ConfigError if it cannot be read.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {(error.strerror or str(error)).lower()}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return parse_properties(text, str(path))


def parse_properties(text: str, where: str) -> list[Property]:
    """Return the properties of `text`. Raises ConfigError, in which `where` is the name of the text."""
    return [_split(line, number, where) for line, number in _logical_lines(text)]


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield logical lines, each with the number of its first line: no comments or blanks, continuations joined."""
    pending, first = "", 0
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        line = raw.lstrip(WHITESPACE)
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield pending + line, first
        pending, first = "", 0
    if first and pending:
        yield pending, first


def _split(line: str, number: int, where: str) -> Property:
    at = 0
    while at < len(line) and line[at] not in "=:" + WHITESPACE:
        at += 2 if line[at] == "\\" else 1
    name, rest = line[:at], line[at:].lstrip(WHITESPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(WHITESPACE)
    return Property(_unescape(name, number, where), _unescape(rest, number, where), number)


def _unescape(text: str, number: int, where: str) -> str:
    if "\\" not in text:
        return text
    units: list[int] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            char = text[at]
            at += 1
            if char == "u":
                digits = text[at : at + 4]
                if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                    raise ConfigError(f"{where}:{number}: \\u{digits} is not four hexadecimal digits")
                units.append(int(digits, 16))
                at += 4
                continue
            char = ESCAPES.get(char, char)
        units.append(ord(char))
    # Java strings are UTF-16: two \u escapes, a surrogate pair, may be one character.
    joined = "".join(map(chr, units))
    return joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
