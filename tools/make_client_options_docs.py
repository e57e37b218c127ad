"""Writes docs/CLIENT_OPTIONS.md and kbroker/client/config/option_types.py from the clients' tables of options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

import generated_page

from kbroker._core.client.producer.partitioner import KINDS as PARTITIONERS
from kbroker.client.config.connector import CONNECTOR
from kbroker.client.config.consumer import CONSUMER, assignors
from kbroker.client.config.encoders import encoder
from kbroker.client.config.kinds import Kind, OneOf, Whole, anything, flag, function, path, servers, texts
from kbroker.client.config.network import NETWORK
from kbroker.client.config.option import Option
from kbroker.client.config.producer import PRODUCER, codec, partitioner
from kbroker.client.config.simple_consumer import SIMPLE_CONSUMER
from kbroker.client.config.zookeeper import ZOOKEEPER
from kbroker.client.handlers import handlers

PAGE = """# Options of the client

Made by `make docs` from the tables in `kbroker/client/`; do not edit. [CLIENT.md](CLIENT.md) is the guide.

Names are Kafka's: with dots in a mapping, `Producer({"client.id": "a"})`, with underscores as keywords,
`Producer(client_id="a")`, or both at once. A mapping takes strings for numbers and flags too, as files have them; None
is as if it was not given. An unknown name is a TypeError that names the nearest one, a value that is not allowed a
ValueError that names the option. Other names for an option, of older clients and other libraries, stand below it. ms:
milliseconds.
"""
MODULE = '''"""The options as keywords, for type checkers and editors: what `**options` of each client may be.

Made by `make docs` (tools/make_client_options_docs.py) from the tables of options; do not edit. A mapping may have the
names with dots, the old names too, and strings for all values.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

from kbroker.client.assignors.assignor import Assignor
from kbroker.client.handlers import ProducerHandler

'''

TABLES = {
    "Every client": NETWORK,
    "Producer": PRODUCER,
    "Consumer": CONSUMER,
    "SimpleConsumer": SIMPLE_CONSUMER,
    "ConsumerConnector": CONNECTOR,
}
SHORT = {"SimpleConsumer": "Those of every client, and of the consumer's: "}
CLASSES: dict[str, tuple[Mapping[str, Option], tuple[str, ...]]] = {
    "NetworkOptions": (NETWORK, ()),
    "ZooKeeperOptions": (ZOOKEEPER, ()),
    "ProducerOptions": (PRODUCER, ("NetworkOptions", "ZooKeeperOptions")),
    "ConsumerOptions": (CONSUMER, ("NetworkOptions",)),
    "SimpleConsumerOptions": (SIMPLE_CONSUMER, ("NetworkOptions",)),
    "ConnectorOptions": (CONNECTOR, ("NetworkOptions", "ZooKeeperOptions")),
}
"""The classes of the module: each with its table, and the classes that it has the rest of its options from."""

KINDS: dict[Kind, tuple[str, str]] = {
    flag: ("bool", "`true`, `false`"),
    path: ("str | os.PathLike[str]", "a path"),
    servers: ("str | Sequence[str]", "HOST:PORT, several with commas or as a list"),
    texts: ("str | Sequence[str]", "strings, with commas or as a list"),
    function: ("Callable[[Any], Any]", "a function"),
    anything: ("ssl.SSLContext", "an `ssl.SSLContext`"),
    partitioner: (
        "Partitioner | Callable[[str, Any, int], int]",
        ", ".join(f"`{name}`" for name in PARTITIONERS) + ", or a function of topic, key and count of partitions",
    ),
    codec: (
        'Literal["none", "gzip", "snappy", "lz4", "zstd"]',
        "`none`, `gzip`, `snappy`, `lz4`, `zstd`, or their numbers as 0.7 has them",
    ),
    encoder: (
        'Literal["bytes", "string", "json"] | Callable[[Any], bytes | str | None]',
        "`bytes`, `string`, `json`, or a function",
    ),
    handlers: ("ProducerHandler | Sequence[ProducerHandler]", "ProducerHandler objects, one or several"),
    assignors: ("str | Assignor | Sequence[str | Assignor]", "names or Assignor objects, one or several"),
}
"""For each kind of value, the type for type checkers, and the words for people.

Not listed are Whole, OneOf and functions that return their argument's type: `allowed_of` asks these themselves.
"""


def allowed_of(kind: Kind) -> tuple[str, str]:
    if isinstance(kind, Whole):
        words = "".join(f'"{word}", ' for word in kind.named)[:-2]
        limits = f"{shown(kind.low)} to {shown(kind.high)}" + "".join(f", `{word}`" for word in kind.named)
        return f"int | Literal[{words}]" if words else "int", limits
    if isinstance(kind, OneOf):
        words = ", ".join(f'"{word}"' for word in kind.words)
        return f"Literal[{words}]", ", ".join(f"`{word}`" if word else "empty" for word in kind.words)
    if kind in KINDS:
        return KINDS[kind]
    returned = inspect.signature(kind).return_annotation
    return {"str": ("str", "a string"), "int": ("int", "an integer")}[returned]


def shown(number: int) -> str:
    """Return a number as text, with large powers of two (or one less) written as powers."""
    for power in (30, 31, 40, 63):
        for less in (0, 1):
            if number == (1 << power) - less:
                return f"2^{power}" + ("-1" if less else "")
    return str(number)


def default_of(option: Option) -> str:
    value = option.default
    if option.kind is assignors:
        value = ",".join(each.name for each in value)
    for name, number in getattr(option.kind, "named", {}).items():
        value = name if value == number else value
    if value in (None, "", ()):
        return "-"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def row(option: Option) -> str:
    named = "<br>".join([f"`{option.name}`", *(f"*{alias}*" for alias in dict.fromkeys(option.aliases))])
    cells = [named, allowed_of(option.kind)[1], default_of(option), option.doc]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> Iterator[str]:
    yield PAGE
    for title, table in TABLES.items():
        yield f"## {title}\n"
        listed = [option for option in table.values() if title == "Every client" or option not in NETWORK.values()]
        if title in SHORT:
            yield SHORT[title] + ", ".join(f"`{option.name}`" for option in listed) + ".\n"
            continue
        yield "| option | allowed | default | what it does |\n|---|---|---|---|"
        yield from map(row, listed)
        yield ""


def module() -> Iterator[str]:
    yield MODULE + "Partitioner = Literal[" + ", ".join(f'"{name}"' for name in PARTITIONERS) + "]"
    for name, (table, bases) in CLASSES.items():
        yield f"\n\nclass {name}({', '.join(bases) or 'TypedDict'}, total=False):"
        inherited = {field for base in bases for field in fields(CLASSES[base][0])}
        yield from (f"    {field}" for field in fields(table) if field not in inherited)


def fields(table: Mapping[str, Option]) -> Iterator[str]:
    """Yield for each option its name as a keyword, and its type."""
    for option in table.values():
        optional = " | None" if option.default is None else ""
        yield f"{option.name.replace('.', '_')}: {allowed_of(option.kind)[0]}{optional}"


if __name__ == "__main__":
    texts = {
        generated_page.DOCS / "CLIENT_OPTIONS.md": "\n".join(page()),
        generated_page.DOCS.parent / "kbroker/client/config/option_types.py": "\n".join(module()) + "\n",
    }
    raise SystemExit(generated_page.write_files(texts))
