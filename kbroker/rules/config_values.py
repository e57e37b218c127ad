"""Parses and checks the values of settings, with Kafka's error messages.

The grammar is that of Kafka's parser: blanks around a value are ignored, a number is decimal digits with an optional
sign, the items of a list are separated by commas. `ConfigError` has the message that a client sees; it is Kafka's word
for word where tools compare it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from kbroker.errors import ConfigError

Value = bool | int | float | str | tuple[str, ...]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Kind(IntEnum):
    """The type of a setting, by the codes of DescribeConfigs (KIP-569). On the wire. Do not renumber."""

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

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DOUBLE = r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)"
_COMMA = re.compile(r"\s*,\s*")


class Limits(NamedTuple):
    """The values that a setting may have: a range (`also`: single values outside it), `choices`, or a custom check."""

    at_least: int | float | None = None
    at_most: int | float | None = None
    choices: tuple[str, ...] = ()
    also: tuple[int, ...] = ()
    problem: Callable[[str, Value], str | None] | None = None
    """The custom check: (name, value) -> what is wrong with the value, or None."""

    def check(self, name: str, value: Value) -> None:
        """Raise ConfigError if the setting `name` may not have this value."""
        if self.choices:
            for item in value if isinstance(value, tuple) else (value,):
                if item not in self.choices:
                    raise invalid_value(name, item, "String must be one of: " + ", ".join(self.choices))
        if self.problem is not None and (problem := self.problem(name, value)) is not None:
            raise invalid_value(name, value, problem)
        if isinstance(value, (str, bool, tuple)) or value in self.also:
            return
        low, high = self.at_least, self.at_most
        too_low, too_high = low is not None and value < low, high is not None and value > high
        if (too_low or too_high) and self.also:
            also = " or ".join(str(lone) for lone in self.also)
            raise invalid_value(name, value, f"Value must be between {low} and {high} or equal to {also}")
        if too_low:
            raise invalid_value(name, value, f"Value must be at least {low}")
        if too_high:
            raise invalid_value(name, value, f"Value must be no more than {high}")


ANYTHING = Limits()


def invalid_value(name: str, value: Value, problem: str) -> ConfigError:
    """A ConfigError with the message of Kafka's ConfigException."""
    shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else format_value(value)
    return ConfigError(f"Invalid value {shown} for configuration {name}: {problem}")


def parse_value(name: str, kind: Kind, text: str) -> Value:
    """Return the value that `text` stands for. Limits are not checked.

    Raises ConfigError if `text` is not of that kind.
    """
    trimmed = text.strip()
    if kind is Kind.BOOLEAN:
        lowered = trimmed.lower()
        if lowered not in ("true", "false"):
            raise invalid_value(name, text, "Expected value to be either true or false")
        return lowered == "true"
    if kind in INTEGER_RANGE:
        lowest, highest = INTEGER_RANGE[kind]
        # The longest 64-bit number has 19 digits; int() of millions of digits would take minutes.
        if _INTEGER.fullmatch(trimmed) and len(trimmed.lstrip("+-").lstrip("0")) <= 19:
            number = int(trimmed)
            if lowest <= number <= highest:
                return number
        raise invalid_value(name, text, f"Not a number of type {kind.name}")
    if kind is Kind.DOUBLE:
        if not re.fullmatch(_DOUBLE, trimmed, re.ASCII):
            raise invalid_value(name, text, "Not a number of type DOUBLE")
        return float(trimmed.rstrip("fFdD") if trimmed[-1] in "fFdD" else trimmed)
    if kind is Kind.LIST:
        return tuple(_COMMA.split(trimmed)) if trimmed else ()
    return trimmed


def format_value(value: Value) -> str:
    """The text that parses back to `value`, as DescribeConfigs shows it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _java_double(value) if isinstance(value, float) else str(value)


def _java_double(value: float) -> str:
    """The text as which Java prints a double: plain from 1e-3 to below 1e7, else one digit, a point and an exponent."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = repr(value)
        return plain if "e" not in plain else f"{value:f}"
    digits, exponent = f"{value:e}".split("e")
    mantissa, _, _ = repr(value).partition("e")
    significant = mantissa.lstrip("-").replace(".", "").strip("0") or digits
    sign = "-" if value < 0 else ""
    return f"{sign}{significant[0]}.{significant[1:] or '0'}E{int(exponent)}"
