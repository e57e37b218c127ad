"""Kinds of setting and how their text becomes a value; the grammar of Kafka's own configuration parser."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kbroker.errors import ConfigError

Value = bool | int | float | str | tuple[str, ...] | None

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Kind(IntEnum):
    """What a setting holds, by the codes of DescribeConfigs (KIP-569). On the wire. Do not renumber."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


INTEGER_RANGE = {Kind.SHORT: (-(2**15), 2**15 - 1), Kind.INT: (-(2**31), INT32_MAX), Kind.LONG: (-(2**63), INT64_MAX)}


@dataclass(frozen=True, slots=True)
class Alias:
    """An older name of a setting. `factor` turns the old unit into today's (minutes into milliseconds: 60,000)."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the broker. `kafka_default` is Apache Kafka's default where ours differs on purpose."""

    name: str
    kind: Kind
    default: Value
    doc: str
    at_least: int | float | None = None
    at_most: int | float | None = None
    choices: tuple[str, ...] = ()
    also: tuple[int, ...] = ()
    unit: str = ""
    dynamic: bool = False
    aliases: tuple[Alias, ...] = ()
    kafka_default: str = ""

    @property
    def sensitive(self) -> bool:
        return self.kind is Kind.PASSWORD

    def parse(self, text: str) -> Value:
        """The value that `text` stands for; ConfigError says what is wrong with it and what is allowed."""
        text = text.strip()
        problem, value = _parse(self.kind, text)
        if problem is None:
            problem = self._out_of_range(value)
        if problem is not None:
            shown = "[hidden]" if self.sensitive else text
            raise ConfigError(f"{self.name}={shown}: {problem}; allowed: {self.allowed()}")
        return value

    def _out_of_range(self, value: Value) -> str | None:
        if self.choices:
            for item in value if isinstance(value, tuple) else (value,):
                if item not in self.choices:
                    return f"unknown value {item!r}"
        if self.kind is Kind.LIST or isinstance(value, (str, bool, tuple)) or value is None or value in self.also:
            return None
        if self.at_least is not None and value < self.at_least:
            return "too small"
        if self.at_most is not None and value > self.at_most:
            return "too large"
        return None

    def allowed(self) -> str:
        """What may stand behind the equals sign, in words."""
        if self.choices:
            words = ", ".join(self.choices)
            return f"a comma-separated list of {words}" if self.kind is Kind.LIST else f"one of {words}"
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.kind is Kind.LIST:
            return "a comma-separated list"
        if self.kind in (Kind.STRING, Kind.CLASS, Kind.PASSWORD):
            return "text"
        lowest, highest = INTEGER_RANGE.get(self.kind, (None, None))
        low = self.at_least if self.at_least is not None else lowest
        high = self.at_most if self.at_most is not None else highest
        number = "a number" if self.kind is Kind.DOUBLE else "a whole number"
        bounds = ""
        if low is not None and high is not None:
            bounds = f" from {low} to {high}"
        elif low is not None:
            bounds = f" of at least {low}"
        exceptions = "".join(f" or {value}" for value in self.also)
        return f"{number}{' of ' + self.unit if self.unit else ''}{bounds}{exceptions}"


def format_value(value: Value) -> str | None:
    """The text that parses back to `value`, as DescribeConfigs shows it; None for a value that is not set."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _parse(kind: Kind, text: str) -> tuple[str | None, Value]:
    """(problem, value); exactly one of them says something."""
    if kind is Kind.BOOLEAN:
        lowered = text.lower()
        return (None, lowered == "true") if lowered in ("true", "false") else ("not a boolean", None)
    if kind in INTEGER_RANGE:
        # int() also reads 1_000, blanks inside and other scripts' digits; Kafka does not.
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdigit()):
            return "not a whole number", None
        # The longest 64-bit number has 19 digits; int() of millions of digits would take minutes.
        value = int(text) if len(digits.lstrip("0")) <= 19 else INT64_MAX + 1
        lowest, highest = INTEGER_RANGE[kind]
        return (None, value) if lowest <= value <= highest else ("does not fit", None)
    if kind is Kind.DOUBLE:
        try:
            number = float(text)
        except ValueError:
            return "not a number", None
        return ("not a finite number", None) if number != number or abs(number) == float("inf") else (None, number)
    if kind is Kind.LIST:
        return None, tuple(item for item in (part.strip() for part in text.split(",")) if item)
    return None, text
