"""Options of clients: their tables, and how they are parsed.

Names are Kafka's, with dots in a mapping or with underscores as keywords: `Producer({"client.id": "a"})`,
`Producer(client_id="a")`. An unknown name raises TypeError, which suggests the nearest name. A bad value raises
ValueError, which names the option.

Each kind of client has a table, `{option.name: option}`: NETWORK of this module together with options of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kbroker.errors import KbrokerError
from kbroker.net.addresses import parse_bootstrap
from kbroker.rules.nearest import nearest

Kind = Callable[[Any], Any]


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


# --- kinds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """Parses an integer from `low` to `high`, or a name of `named`."""

    low: int
    high: int
    named: Mapping[str, int]

    def __call__(self, given: Any) -> int:
        if isinstance(given, str):
            if given in self.named:
                return self.named[given]
            try:
                given = int(given)
            except ValueError:
                pass
        if isinstance(given, bool) or not isinstance(given, int) or not self.low <= given <= self.high:
            raise ValueError(f"an integer {self}")
        return given

    def __str__(self) -> str:
        limits = f"from {self.low} to {self.high}" if self.high < (1 << 63) - 1 else f"of at least {self.low}"
        return f"{limits} or one of {', '.join(self.named)}" if self.named else limits


def whole(low: int, high: int = (1 << 63) - 1, *, named: Mapping[str, int] | None = None) -> Whole:
    return Whole(low, high, named or {})


def flag(given: Any) -> bool:
    """Parse a bool: True, False, "true" or "false"."""
    named = {"true": True, "false": False}
    found = named.get(given.lower()) if isinstance(given, str) else given
    if not isinstance(found, bool):
        raise ValueError("true or false")
    return found


def text(given: Any) -> str:
    """Parse a string."""
    if not isinstance(given, str):
        raise ValueError("a string")
    return given


def filled(given: Any) -> str:
    """Parse a string that is not blank."""
    if not text(given).strip():
        raise ValueError("a string that is not empty")
    return given  # type: ignore[no-any-return]


def path(given: Any) -> str:
    """Parse a file's path, given as a string or os.PathLike."""
    import os

    try:
        return os.fsdecode(given)
    except TypeError:
        raise ValueError("a path") from None


@dataclass(frozen=True)
class OneOf:
    """Parses one of `words`, in upper or lower case. `also`: names that older clients and other libraries have."""

    words: tuple[str, ...]
    also: Mapping[str, str]

    def __call__(self, given: Any) -> str:
        for word in self.words:
            if isinstance(given, str) and self.also.get(given.lower(), given).lower() == word.lower():
                return word
        raise ValueError(f"one of {', '.join(map(repr, self.words))}")


def one_of(*words: str, also: Mapping[str, str] | None = None) -> OneOf:
    return OneOf(words, also or {})


def texts(given: Any) -> tuple[str, ...]:
    """Parse strings: a list, or one string with commas."""
    if isinstance(given, str):
        given = given.split(",")
    try:
        parts = tuple(text(part).strip() for part in given)
    except TypeError:
        raise ValueError("a list of strings") from None
    return tuple(part for part in parts if part)


def servers(given: Any) -> tuple[tuple[str, int], ...]:
    """Parse addresses, HOST[:PORT]; several as a list or separated by commas."""
    parts = texts(given)
    if not parts:
        raise ValueError("HOST:PORT,...")
    try:
        return tuple(parse_bootstrap(",".join(parts)))
    except KbrokerError as error:
        raise ValueError(f"HOST:PORT,...: {error}") from None


def anything(given: Any) -> Any:
    """Return anything as it is; the code that uses it checks it."""
    return given


def function(given: Any) -> Any:
    """Parse a callable, or None."""
    if given is not None and not callable(given):
        raise ValueError("a callable")
    return given


# --- parsing ----------------------------------------------------------------------------------------------


def table_of(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}


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
    from kbroker.client.consumer.options import CONSUMER
    from kbroker.client.producer.options import PRODUCER

    dotted = name.replace("_", ".")
    for whose, others in (("the producer", PRODUCER), ("the consumer", CONSUMER)):
        if dotted in others:
            return f"; it is one of {whose}"
    like = nearest(dotted, names)
    if like is None:
        return ""
    return f"; the nearest is {(like.replace('.', '_') if with_underscores else like)!r}"


# --- the network's ----------------------------------------------------------------------------------------

MS = whole(0, 1 << 40)
NETWORK = table_of(
    Option("bootstrap.servers", servers, (), "brokers to begin with, HOST:PORT,...", ("metadata.broker.list",)),
    Option(
        "client.dns.lookup",
        one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "use_all_dns_ips",
        "all addresses of a name are tried, one after the other; the second: bootstrap servers are connected to by the "
        "names that their addresses have",
    ),
    Option("client.id", text, "kbroker", "what brokers log and count this client as"),
    Option("request.timeout.ms", whole(1, 1 << 31), 30_000, "how long a broker may take to answer"),
    Option("default.api.timeout.ms", MS, 60_000, "how long a call may take, retries included"),
    Option(
        "socket.connection.setup.timeout.ms",
        whole(1, 1 << 31),
        10_000,
        "how long connecting to one broker may take, TLS and authentication not included",
    ),
    Option(
        "connections.max.idle.ms",
        whole(-1, 1 << 40),
        540_000,
        "connections that have carried nothing for so long are closed, sooner than brokers do it; -1: never",
    ),
    Option(
        "broker.version.fallback",
        one_of("", "0.9.0", "0.8.2"),
        "",
        "what a broker is taken for that does not say within socket.connection.setup.timeout.ms what it serves: those "
        "before Kafka 0.10 cannot",
    ),
    Option("reconnect.backoff.ms", MS, 50, "wait before a broker is connected to again, doubled with each failure"),
    Option("reconnect.backoff.max.ms", MS, 1_000, "the longest such wait"),
    Option("retry.backoff.ms", MS, 100, "wait before a refused request is tried again, doubled with each failure"),
    Option("retry.backoff.max.ms", MS, 1_000, "the longest such wait"),
    Option("metadata.max.age.ms", whole(1, 1 << 40), 300_000, "metadata older than this is asked for again"),
    Option("receive.message.max.bytes", whole(1_000, 1 << 30), 100_000_000, "largest response that is believed"),
    Option("send.buffer.bytes", whole(-1, 1 << 30), -1, "SO_SNDBUF; -1 the system's", ("socket.send.buffer.bytes",)),
    Option(
        "receive.buffer.bytes", whole(-1, 1 << 30), -1, "SO_RCVBUF; -1 the system's", ("socket.receive.buffer.bytes",)
    ),
    Option(
        "security.protocol",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "PLAINTEXT",
        "whether connections are encrypted, and whether who connects says who he is",
    ),
    Option(
        "sasl.mechanism",
        one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        "PLAIN",
        "how to authenticate",
        ("sasl.mechanisms",),
    ),
    Option("sasl.username", text, "", "who to be", ("sasl.plain.username",)),
    Option("sasl.password", text, "", "and how to prove it", ("sasl.plain.password",), secret=True),
    Option(
        "ssl.ca.location",
        path,
        "",
        "PEM file or folder of certificates that brokers' may be signed by; the system's if not given",
        ("ssl.cafile", "ssl.truststore.location"),
    ),
    Option(
        "ssl.certificate.location",
        path,
        "",
        "PEM file of the client's certificate and its chain",
        ("ssl.certfile", "ssl.keystore.location"),
    ),
    Option("ssl.key.location", path, "", "PEM file of its key, unless that is in the same file", ("ssl.keyfile",)),
    Option("ssl.key.password", text, "", "of that key", ("ssl.keystore.password",), secret=True),
    Option(
        "ssl.endpoint.identification.algorithm",
        one_of("https", "none", ""),
        "https",
        "https: a broker's certificate must be for the name it is connected to by; none or empty: for any",
    ),
    Option("ssl.context", anything, None, "an ssl.SSLContext to use instead of the other ssl options"),
)
