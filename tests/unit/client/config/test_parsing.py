"""Options of the client, and what is said of wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.client import (
    AdminClient,
    AsyncAdminClient,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
    SimpleConsumer,
)
from kbroker.client.config.kinds import flag, function, one_of, path, whole
from kbroker.client.config.network import NETWORK
from kbroker.client.config.option import Option, Options, table_of
from kbroker.client.config.parsing import nearest, parse_options


def parse(config: dict[str, Any] | None = None, **keywords: Any) -> Options:
    return parse_options(NETWORK, config, keywords)


def test_dots_in_a_mapping_and_underscores_as_keywords_are_the_same() -> None:
    given = parse({"request.timeout.ms": 5, "client_id": "a"}, retry_backoff_ms="7")
    assert (given["request.timeout.ms"], given["client.id"], given["retry.backoff.ms"]) == (5, "a", 7)
    assert given.seconds("request.timeout.ms") == 0.005
    assert given.is_given("client.id")
    assert not given.is_given("metadata.max.age.ms")
    assert dict(given).keys() == NETWORK.keys()


def test_what_is_not_given_or_none_is_the_default() -> None:
    assert parse({"client.id": None})["client.id"] == "kbroker"
    assert parse()["metadata.max.age.ms"] == 300_000


def test_every_default_is_one_that_could_be_given() -> None:
    for option in NETWORK.values():
        if option.name not in ("bootstrap.servers", "ssl.context"):
            assert option.kind(option.default) == option.default


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("bootstrap_server", "bootstrap.servers"),
        ("request.timout.ms", "request.timeout.ms"),
        ("security_protocoll", "security.protocol"),
        ("ssl.ca.file", "ssl.cafile"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=rf"the client has no option '{wrong}'; the nearest is '{right}'"):
        parse({wrong: 1})


def test_a_name_like_nothing_is_refused_without_advice() -> None:
    with pytest.raises(TypeError, match=r"no option 'xyzzy'$"):
        parse(xyzzy=1)
    assert nearest("xyzzy", NETWORK) is None


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(TypeError, match=r"client\.id is given twice"):
        parse({"client.id": "a"}, client_id="b")
    with pytest.raises(TypeError, match=r"bootstrap\.servers is given twice"):
        parse({"bootstrap.servers": "a:1", "metadata.broker.list": "b:1"})


def test_options_are_a_mapping() -> None:
    with pytest.raises(TypeError, match="a mapping or keywords, not str"):
        parse_options(NETWORK, "localhost:9092", {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("request.timeout.ms", 0, "an integer from 1 to"),
        ("request.timeout.ms", "soon", "an integer"),
        ("request.timeout.ms", True, "an integer"),
        ("request.timeout.ms", 1.5, "an integer"),
        ("bootstrap.servers", "", "HOST:PORT"),
        ("bootstrap.servers", "a:b", "'a:b' is not HOST:PORT"),
        ("bootstrap.servers", 9092, "a list of strings"),
        ("security.protocol", "TLS", "one of 'PLAINTEXT', 'SSL'"),
        ("client.id", b"a", "a string"),
        ("ssl.ca.location", 3.0, "a path"),
    ],
)
def test_a_bad_value_is_refused_with_the_name_of_its_option(name: str, value: object, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}=.*{says}"):
        parse({name: value})


def test_servers_are_lists_or_texts() -> None:
    both = (("a", 9092), ("::1", 7))
    assert parse(bootstrap_servers="a, [::1]:7")["bootstrap.servers"] == both
    assert parse(bootstrap_servers=["a:9092", "[::1]:7"])["bootstrap.servers"] == both


def test_secrets_are_shown_to_nobody() -> None:
    given = parse(sasl_password="geheim", sasl_username="me")
    assert "geheim" not in repr(given)
    assert "'me'" in repr(given)
    with pytest.raises(ValueError, match=r"sasl\.password=\[hidden\]"):
        parse(sasl_password=7)


def test_kinds() -> None:
    assert [flag(given) for given in (True, "TRUE", "false")] == [True, True, False]
    assert one_of("all", "none")("ALL") == "all"
    assert whole(-1, 1, named={"all": -1})("all") == -1
    assert path(b"/a") == "/a"
    assert function(len) is len
    for kind, bad in ((flag, "yes"), (flag, 1), (function, 3), (one_of("a"), 3)):
        with pytest.raises(ValueError):
            kind(bad)


def test_another_table_says_whose_options_they_are() -> None:
    table = table_of(Option("linger.ms", whole(0), 0, "waits"))
    with pytest.raises(TypeError, match=r"Producer has no option 'lingerms'; the nearest is 'linger_ms'"):
        parse_options(table, None, {"lingerms": 1}, "Producer")


@pytest.mark.parametrize(
    "kind", [Producer, Consumer, AdminClient, SimpleConsumer, AsyncProducer, AsyncConsumer, AsyncAdminClient]
)
def test_a_client_without_brokers_is_none(kind: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match=r"bootstrap\.servers is missing"):
        kind(client_id="a")
