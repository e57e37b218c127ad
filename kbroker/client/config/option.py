"""An option of a client, tables of options, and the values that a client was given.

A table is `{option.name: option}`. Names are Kafka's, with dots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kbroker.client.config.kinds import Kind


@dataclass(frozen=True)
class Option:
    """One option. `kind` parses what was given, or raises ValueError with a message that says what is allowed."""

    name: str
    kind: Kind
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()
    secret: bool = False


class Options(Mapping[str, Any]):
    """The option values of a client; an option that was not given has its default. Immutable."""

    def __init__(self, table: Mapping[str, Option], values: Mapping[str, Any]):
        self._table = table
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        value = self._values.get(name, self)
        return self._table[name].default if value is self else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def is_given(self, name: str) -> bool:
        """Return whether the caller has set the option."""
        return name in self._values

    def seconds(self, name: str) -> float:
        """Return the value of an option in milliseconds as seconds."""
        value: int = self[name]
        return value / 1000

    def __repr__(self) -> str:
        shown = {name: "[hidden]" if self._table[name].secret else value for name, value in self._values.items()}
        return f"Options({shown})"


def table_of(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}
