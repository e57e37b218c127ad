"""What a schema registry says of ids and subjects."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.spark.decoding import schema_registry
from kbroker.spark.decoding.avro_schemas import NotAvro
from kbroker.spark.decoding.schema_registry import RegistryFailed, SchemaRegistry
from tests.kit.spark.schema_registry import SchemaRegistryServer

RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as started:
        yield started


def test_an_id_is_asked_for_once_whether_it_is_known_or_not(server: SchemaRegistryServer) -> None:
    schema_id = server.register("t-value", RECORD)
    registry = SchemaRegistry(server.url + "/")
    for _ in range(3):
        found = registry.schema(schema_id)
        assert found is not None and found["name"] == "R"
        assert registry.schema(77) is None
        assert registry.schema(-1) is None
    assert server.asked == [f"/schemas/ids/{schema_id}", "/schemas/ids/77"]


def test_the_latest_of_a_subject_is_found_whatever_its_name(server: SchemaRegistryServer) -> None:
    server.register("a/b ä-value", '"int"')
    server.register("a/b ä-value", RECORD)
    assert SchemaRegistry(server.url).latest("a/b ä-value").parsed()["name"] == "R"
    with pytest.raises(RegistryFailed, match="has no subject 'none-value'"):
        SchemaRegistry(server.url).latest("none-value")


def test_schemas_that_others_refer_to_come_first(server: SchemaRegistryServer) -> None:
    def record_of(name: str, *fields: str) -> dict[str, object]:
        return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(fields)]}

    server.register("inner", record_of("x.Inner", "int"))
    server.register("middle", record_of("x.Middle", "x.Inner"), references=(("x.Inner", "inner"),))
    references = (("x.Inner", "inner"), ("x.Middle", "middle"))
    schema_id = server.register("t-value", record_of("x.Outer", "x.Inner", "x.Middle"), references=references)
    for found in (SchemaRegistry(server.url).schema(schema_id), SchemaRegistry(server.url).latest("t-value").parsed()):
        assert found is not None
        assert found["fields"][1]["type"]["fields"][0]["type"]["name"] == "x.Inner"


def test_one_that_is_busy_is_asked_again_and_the_next_one_too(
    server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry.time, "sleep", lambda _: None)
    schema_id = server.register("t-value", RECORD)
    server.failures = 2
    assert SchemaRegistry(server.url).schema(schema_id) is not None
    assert SchemaRegistry(f"http://127.0.0.1:1, {server.url}").schema(schema_id) is not None
    server.failures = 1000
    with pytest.raises(RegistryFailed, match=f"the schema registry {server.url} does not answer: HTTP 503"):
        SchemaRegistry(server.url).schema(schema_id)


def test_who_asks_says_so_and_no_message_does() -> None:
    with SchemaRegistryServer(login="me:p@ss") as server:
        schema_id = server.register("t-value", RECORD)
        known = server.url.replace("http://", "http://me:p%40ss@")
        assert SchemaRegistry(known).schema(schema_id) is not None
        with pytest.raises(RegistryFailed, match="refuses: HTTP 401") as caught:
            SchemaRegistry(known.replace("p%40ss", "wrong")).schema(schema_id)
        assert "wrong" not in str(caught.value) and "me" not in str(caught.value).replace("schema", "")


def test_values_that_name_any_id_do_not_keep_a_registry_busy(
    server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry = SchemaRegistry(server.url)
    now = time.monotonic()
    monkeypatch.setattr(schema_registry, "MOST_UNKNOWN", 10)
    monkeypatch.setattr(schema_registry.time, "monotonic", lambda: now)
    first = server.register("t-value", RECORD)
    assert registry.schema(first) is not None
    assert [registry.schema(number) for number in range(1000, 1100)] == [None] * 100
    later = server.register("t-value", RECORD)
    assert registry.schema(first) is not None and registry.schema(later) is None
    assert len(server.asked) == 11
    assert len([each for each in caplog.records if "values name more than 10 schemas" in each.getMessage()]) == 1
    now += schema_registry.UNKNOWN_S
    assert registry.schema(later) is not None


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        {"schema": 5},
        {"schema": '"int"', "references": 5},
        {"schema": '"int"', "references": [{"subject": "x"}]},
        {"schema": '"int"', "references": [{"subject": "x", "version": "y"}]},
        {"schema": '"int"', "references": [{"subject": "gone", "version": 1}]},
    ],
)
def test_what_no_registry_says_is_an_error(
    server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setitem(server._by_id, 1, answer)
    with pytest.raises(RegistryFailed):
        SchemaRegistry(server.url).schema(1)


def test_who_does_not_know_the_api_is_no_registry_that_does_not_know_a_schema(server: SchemaRegistryServer) -> None:
    """All values were bad, of a whole topic, for a slip in the address."""
    schema_id = server.register("t-value", RECORD)
    with pytest.raises(RegistryFailed, match=f"{server.url} refuses: HTTP 404 Not Found for /slip/schemas/ids/1"):
        SchemaRegistry(f"{server.url}/slip").schema(schema_id)


def test_what_is_no_http_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry.time, "sleep", lambda _: None)

    def babble() -> None:
        for _ in range(schema_registry.TRIES):
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-babble\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=babble, daemon=True)
        thread.start()
        with pytest.raises(RegistryFailed, match=r"does not answer: .*babble"):
            SchemaRegistry(f"http://127.0.0.1:{listener.getsockname()[1]}").schema(1)
        thread.join(10)


@pytest.mark.parametrize(("schema", "kind"), [("{}", "PROTOBUF"), ("{}", "JSON"), ("{", "AVRO")])
def test_what_is_no_avro_is_refused(server: SchemaRegistryServer, schema: str, kind: str) -> None:
    schema_id = server.register("t-value", schema, kind)
    with pytest.raises(NotAvro, match=f"schema {schema_id} is (not an Avro schema|{kind}, and not AVRO)"):
        SchemaRegistry(server.url).schema(schema_id)


@pytest.mark.parametrize("addresses", ["", "localhost:8081", "ftp://x", "http://", "a,,b"])
def test_addresses_are_urls(addresses: str) -> None:
    with pytest.raises(ValueError, match=r"http://HOST:PORT,... of a schema registry or more"):
        SchemaRegistry(addresses)
