"""valueFormat and keyFormat: decoded columns, compared with what Spark's own functions make of the same bytes."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kbroker.client import AdminClient, Producer
from kbroker.testing import Broker
from tests.kit.spark.reading import last_line, load
from tests.kit.spark.schema_registry import SchemaRegistryServer

DDL = (
    "i INT, l LONG, s STRING, d DOUBLE, b BOOLEAN, dec DECIMAL(10,2), day DATE, t TIMESTAMP, tn TIMESTAMP_NTZ, "
    "bin BINARY, list ARRAY<INT>, m MAP<STRING, DOUBLE>, `a b` STRUCT<x: TINYINT, y: ARRAY<STRUCT<z: STRING>>>"
)
JSON = [
    {"i": 1, "l": 1 << 40, "s": "ä", "d": 1.5, "b": True, "dec": 12.345, "day": "2024-02-29", "bin": "aGk="},
    {"t": "2024-01-02T03:04:05.678901+01:30", "tn": "2024-01-02 03:04:05", "list": [1, None], "m": {"a": 1, "b": None}},
    {"t": "2024-01-02", "day": "1969-12-31T12:00:00", "a b": {"x": 7, "y": [{"z": "q"}, {}, None]}},
    {"t": 1700000000, "d": "NaN", "unknown": {"i": [1]}, "dec": "-0.005"},
    {"i": "no", "l": 1.0, "s": {"a": [1, 2]}, "d": "1", "b": 0, "dec": 1e12, "day": "2024-02-30", "t": "soon"},
    {"i": 1 << 31, "list": [1, "x"], "m": {"a": "x"}, "a b": {"x": 300, "y": [{"z": 1}, 5]}, "s": 1.5},
    {"list": {}, "m": [], "a b": [], "bin": 1, "s": True, "d": 1 << 70},
    {"i": None, "list": [], "m": {}, "a b": {}},
    {},
]
# What is no string is kept in a string as it stands; from_json has it without blanks.
TEXTS = [json.dumps(each, separators=(",", ":")).encode() for each in JSON]
TEXTS += [json.dumps(JSON[2], indent=2).encode(), b"", b"  ", b"null", b'{"i": 1', b"[1]", b"17", b"no", b"{'i': 5}"]
TEXTS += [b'{"d": NaN}', b'{"i": 1, "i": 2}', b'{"s": "\\u20ac\\ud83d\\ude00\\n"}', b'{"list": [1,2,]}', b'{"i": 01}']

VIEW = {
    "type": "record",
    "name": "View",
    "fields": [
        {"name": "member", "type": "long"},
        {"name": "page", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "attributes", "type": {"type": "map", "values": ["null", "double"]}},
        {"name": "either", "type": ["int", "string"]},
        {"name": "number", "type": ["null", "int", "long"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}


def views(count: int) -> Iterator[dict[str, Any]]:
    for i in range(count):
        yield {
            "member": i << 33,
            "page": None if i % 3 == 0 else f"/p/{i}",
            "at": 1_700_000_000_000 + i,
            "tags": ["x"] * (i % 4),
            "kind": "AB"[i % 2],
            "attributes": {"a": None, "b": i / 2},
            "either": i if i % 2 else str(i),
            "number": [None, i, 1 << 40][i % 3],
            "price": (i * 7 - 50).to_bytes(4, "big", signed=True),
        }


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    plain = json.loads(json.dumps(schema).replace('"logicalType"', '"not"'))
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), value)
    return out.getvalue()


def send(broker: Broker, topic: str, values: list[bytes | None], keys: list[bytes] | None = None) -> None:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 1)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_many(topic, values, keys=keys).result(30)


def decoded(spark: SparkSession, broker: Broker, topic: str, **options: Any) -> DataFrame:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    return load(spark, **given, **options)


def values(frame: DataFrame) -> list[str]:
    """In order of their offsets; NaN is not equal to itself, but its text is."""
    return [repr(row.value) for row in frame.select("offset", "value").orderBy("offset").collect()]


def test_json_is_what_from_json_makes_of_it(spark: SparkSession, broker: Broker, topic: str) -> None:
    send(broker, topic, [*TEXTS, None])
    ours = decoded(spark, broker, topic, valueFormat="json", valueSchema=DDL)
    theirs = decoded(spark, broker, topic).withColumn("value", F.from_json(F.col("value").cast("string"), DDL))
    assert ours.schema["value"].dataType == theirs.schema["value"].dataType
    assert [field.name for field in ours.schema] == [field.name for field in theirs.schema]
    for text, mine, its in zip([*TEXTS, None], values(ours), values(theirs), strict=True):
        assert mine == its, text


def test_json_schemas_are_taken_as_json_too(spark: SparkSession, broker: Broker, topic: str) -> None:
    send(broker, topic, [b'{"a": 1, "b": {"c": "x"}}'])
    inner = StructType([StructField("c", StringType(), nullable=False)])
    schema = StructType([StructField("a", LongType(), nullable=False), StructField("b", inner)])
    frame = decoded(spark, broker, topic, valueFormat="json", valueSchema=schema.json())
    assert frame.schema["value"].dataType == schema.toNullable()
    assert [row.asDict(True) for row in frame.select("value.*").collect()] == [{"a": 1, "b": {"c": "x"}}]


def test_avro_is_what_from_avro_makes_of_it(spark: SparkSession, broker: Broker, topic: str) -> None:
    send(broker, topic, [encoded(VIEW, each) for each in views(50)] + [None, b"\x02"])
    schema = json.dumps(VIEW)
    ours = decoded(spark, broker, topic, valueFormat="avro", valueSchema=schema, avroFraming="none")
    theirs = decoded(spark, broker, topic).withColumn("value", from_avro("value", schema, {"mode": "PERMISSIVE"}))
    assert ours.schema["value"].dataType.simpleString() == theirs.schema["value"].dataType.simpleString()
    assert values(ours) == values(theirs)


def test_a_registry_says_what_values_were_written_with(spark: SparkSession, broker: Broker, topic: str) -> None:
    later = json.loads(json.dumps(VIEW))
    later["fields"] = [{"name": "added", "type": "string", "default": "?"}, *later["fields"][:3]]
    rows = list(views(6))
    with SchemaRegistryServer(login="me:secret") as server:
        old, new = server.register(f"{topic}-value", VIEW), server.register(f"{topic}-value", later)
        written = [b"\0" + old.to_bytes(4, "big") + encoded(VIEW, each) for each in rows[:3]]
        written += [b"\0" + new.to_bytes(4, "big") + encoded(later, each | {"added": "now"}) for each in rows[3:]]
        send(broker, topic, [*written, b"\0\0\0\0\x63" + encoded(VIEW, rows[0]), b"no header", None])
        url = server.url.replace("http://", "http://me:secret@")
        frame = decoded(spark, broker, topic, valueFormat="avro", schemaRegistry=url, columnNameOfCorruptRecord="bad")
        assert frame.schema["value"].dataType.names == ["added", "member", "page", "at"]
        server.register(f"{topic}-value", VIEW)  # comes too late for this DataFrame
        found = frame.select("value.*", "bad").orderBy("offset").collect()
        assert [row.added for row in found] == ["?"] * 3 + ["now"] * 3 + [None] * 3
        assert [row.member for row in found][:6] == [row["member"] for row in rows]
        assert [row.bad for row in found[6:]] == [b"\0\0\0\0\x63" + encoded(VIEW, rows[0]), b"no header", None]
        assert "secret" not in frame._jdf.queryExecution().toString()
    with pytest.raises(Exception) as caught:
        decoded(spark, broker, topic, valueFormat="avro", schemaRegistry=url)
    assert f"RegistryFailed: the schema registry {server.url} does not answer" in last_line(caught.value)


def test_bad_records_are_treated_as_mode_says(spark: SparkSession, broker: Broker, topic: str) -> None:
    good = b'{"i": 1}'
    send(broker, topic, [good, b"{", None, b'{"i": "x"}', good] * 2000)
    options = {"valueFormat": "json", "valueSchema": "i INT", "columnNameOfCorruptRecord": "bad"}
    frame = decoded(spark, broker, topic, **options)
    found = frame.where("offset < 5").orderBy("offset").collect()
    assert [(row.value and row.value.i, row.bad) for row in found] == [
        (1, None), (None, b"{"), (None, None), (None, b'{"i": "x"}'), (1, None),
    ]  # fmt: skip
    assert frame.where("bad is not null").count() == 4000
    dropped = decoded(spark, broker, topic, mode="dropmalformed", **options)
    kept = Counter(row.offset % 5 for row in dropped.select("offset").collect())
    assert kept == {0: 2000, 2: 2000, 4: 2000}
    with pytest.raises(Exception) as caught:
        decoded(spark, broker, topic, mode="FAILFAST", **options).count()
    assert f"BadRecord: {topic}-0, offset 1: the value cannot be decoded: it is malformed" in last_line(caught.value)


def test_strings_are_text_and_keys_are_decoded_as_values_are(spark: SparkSession, broker: Broker, topic: str) -> None:
    send(broker, topic, ["ä".encode(), b"\xff", None], keys=[b'{"id": 1}', b'{"id": 2}', b"x"])
    frame = decoded(spark, broker, topic, valueFormat="string", keyFormat="json", keySchema="id LONG")
    assert [kind for _, kind in frame.dtypes][:2] == ["struct<id:bigint>", "string"]
    found = frame.orderBy("offset").collect()
    assert [(row.key.id, row.value) for row in found] == [(1, "ä"), (2, None), (None, None)]
    keys = decoded(spark, broker, topic, keyFormat="string", columnNameOfCorruptRecord="bad")  # which is of values
    assert [(row.key, "bad" in row) for row in keys.where("offset = 2").collect()] == [("x", False)]
    kept = decoded(spark, broker, topic, valueFormat="string", mode="DROPMALFORMED")
    assert [row.value for row in kept.collect()] == ["ä", None]


def test_streams_are_decoded_as_batches_are(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    send(broker, topic, [b'{"i": %d}' % i for i in range(100)] + [b"{"])
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest",
        "valueFormat": "json", "valueSchema": "i INT", "mode": "DROPMALFORMED",
    }  # fmt: skip
    stream = spark.readStream.format("kbroker").options(**options).load().select("offset", "value.i").writeStream
    stream = stream.format("memory").queryName("decoded").option("checkpointLocation", str(tmp_path))
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorted(tuple(row) for row in spark.table("decoded").collect()) == [(i, i) for i in range(100)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"valueFormat": "json", "valueSchema": "{"}, "option valueSchema: must be DDL, or JSON"),
        ({"valueFormat": "json", "valueSchema": "a INTERVAL DAY"}, "a is of type duration[us], which nothing is"),
        ({"valueFormat": "json", "valueSchema": "a MAP<INT, INT>"}, "the keys of a map are strings in JSON"),
        ({"valueFormat": "avro", "schemaRegistry": "me:secret@x"}, "option schemaRegistry=[hidden]: must be http"),
    ],
)
def test_what_is_wrong_is_named(
    spark: SparkSession, broker: Broker, topic: str, options: dict[str, str], says: str
) -> None:
    """Spark shows what the source says. The JVM reads DDL, so its types are known later than all else is.

    What else is wrong is named without Spark: tests/unit/spark/decoding/test_value_formats.py.
    """
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 1)
    with pytest.raises(Exception) as caught:
        decoded(spark, broker, topic, **options).count()
    assert says in last_line(caught.value)
