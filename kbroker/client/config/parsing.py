"""Parses what a client was given into its Options.

Names are Kafka's, with dots in a mapping or with underscores as keywords: `Producer({"client.id": "a"})`,
`Producer(client_id="a")`. An unknown name raises TypeError, which suggests the nearest name. A bad value raises
ValueError, which names the option.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kbroker.client.config.option import Option, Options
from kbroker.rules.nearest import nearest


def parse_options(
    table: Mapping[str, Option], config: Mapping[str, Any] | None, keywords: Mapping[str, Any], what: str = "the client"
) -> Options:
    """Parse the options of `config` (names with dots) and `keywords` (with underscores). None leaves the default.

    Raises TypeError for an unknown option or one that is given twice, ValueError for a bad value. `what` names the
    client in messages.
    """
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"{what}'s options are a mapping or keywords, not {type(config).__name__}")
    by_name = {alias: option for option in table.values() for alias in (option.name, *option.aliases)}
    values: dict[str, Any] = {}
    for name, value in [*(config or {}).items(), *keywords.items()]:
        option = by_name.get(name) or (by_name.get(name.replace("_", ".")) if isinstance(name, str) else None)
        if option is None:
            raise TypeError(f"{what} has no option {name!r}{_advice(str(name), by_name, name in keywords)}")
        if option.name in values:
            raise TypeError(f"{option.name} is given twice")
        if value is None:
            continue
        try:
            values[option.name] = option.kind(value)
        except ValueError as error:
            shown = "[hidden]" if option.secret else repr(value)
            raise ValueError(f"{option.name}={shown}: must be {error}") from None
    return Options(table, values)


def require_servers(options: Options) -> None:
    """Raise ValueError when neither bootstrap.servers nor zookeeper.connect is set."""
    if not options["bootstrap.servers"] and not options.get("zookeeper.connect"):
        raise ValueError("bootstrap.servers is missing: HOST:PORT,... of one broker or more")


def _advice(name: str, names: Collection[str], with_underscores: bool) -> str:
    from kbroker.client.config.consumer import CONSUMER
    from kbroker.client.config.producer import PRODUCER

    dotted = name.replace("_", ".")
    for whose, others in (("the producer", PRODUCER), ("the consumer", CONSUMER)):
        if dotted in others:
            return f"; it is one of {whose}"
    like = nearest(dotted, names)
    if like is None:
        return ""
    return f"; the nearest is {(like.replace('.', '_') if with_underscores else like)!r}"
