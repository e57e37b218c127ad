"""The description of one setting of the broker. The grammar of values is in `kbroker.rules.config_values`."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.rules.config_values import ANYTHING, INTEGER_RANGE, Kind, Limits, Value, parse_value

MIB = 1024 * 1024
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS


class Alias(NamedTuple):
    """An older name of a setting. `factor` converts the old unit to today's (minutes to milliseconds: 60,000)."""

    name: str
    factor: int = 1


class Setting(NamedTuple):
    """One setting of the broker.

    `default` None: the setting is not set. `kafka_default`: Kafka's default, if ours differs on purpose. `dynamic`: the
    setting may be changed while the broker runs.
    """

    name: str
    kind: Kind
    default: Value | None
    doc: str
    limits: Limits = ANYTHING
    unit: str = ""
    dynamic: bool = False
    aliases: tuple[Alias, ...] = ()
    kafka_default: str = ""
    form: str = ""
    """The form that the text must have, for a setting whose `limits` check it with a function."""

    @property
    def sensitive(self) -> bool:
        return self.kind is Kind.PASSWORD

    def parse(self, text: str) -> Value:
        """Return the value of `text`. Raises ConfigError, in Kafka's words, if it is not one."""
        value = parse_value(self.name, self.kind, text)
        self.limits.check(self.name, value)
        return value

    def allowed(self) -> str:
        """Return, in words, which values the setting may have."""
        limits = self.limits
        if limits.choices:
            words = ", ".join(limits.choices)
            return f"a comma-separated list of {words}" if self.kind is Kind.LIST else f"one of {words}"
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.kind is Kind.LIST:
            return "a comma-separated list"
        if self.kind not in INTEGER_RANGE and self.kind is not Kind.DOUBLE:
            return self.form or "text"
        lowest, highest = INTEGER_RANGE.get(self.kind, (None, None))
        low = lowest if limits.at_least is None else limits.at_least
        high = highest if limits.at_most is None else limits.at_most
        number = "a number" if self.kind is Kind.DOUBLE else "a whole number"
        bounds = "" if low is None else f" from {low}" if high is None else f" from {low} to {high}"
        exceptions = "".join(f" or {value}" for value in limits.also)
        return f"{number}{' of ' + self.unit if self.unit else ''}{bounds}{exceptions}"
