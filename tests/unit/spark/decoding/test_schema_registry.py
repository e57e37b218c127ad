"""What a schema registry says of ids and subjects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.spark.decoding import schema_registry
from kbroker.spark.decoding.schema_registry import RegistryFailed, SchemaRegistry
from tests.kit.schema_registry import SchemaRegistryServer

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
    def of(name: str, *fields: str) -> dict[str, object]:
        return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(fields)]}

    server.register("inner", of("x.Inner", "int"))
    server.register("middle", of("x.Middle", "x.Inner"), references=(("x.Inner", "inner"),))
    references = (("x.Inner", "inner"), ("x.Middle", "middle"))
    schema_id = server.register("t-value", of("x.Outer", "x.Inner", "x.Middle"), references=references)
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


@pytest.mark.parametrize(("schema", "kind"), [("{}", "PROTOBUF"), ("{}", "JSON"), ("{", "AVRO")])
def test_what_is_no_avro_is_refused(server: SchemaRegistryServer, schema: str, kind: str) -> None:
    schema_id = server.register("t-value", schema, kind)
    with pytest.raises(RegistryFailed, match=f"schema {schema_id} is (not an Avro schema|{kind}, and not AVRO)"):
        SchemaRegistry(server.url).schema(schema_id)


@pytest.mark.parametrize("addresses", ["", "localhost:8081", "ftp://x", "http://", "a,,b"])
def test_addresses_are_urls(addresses: str) -> None:
    with pytest.raises(ValueError, match=r"http://HOST:PORT,... of a schema registry or more"):
        SchemaRegistry(addresses)
