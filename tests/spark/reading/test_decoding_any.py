"""Any JSON text of any schema: what Spark's from_json makes of it, ours does, and what it calls corrupt is bad."""

from __future__ import annotations

import json
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kbroker.spark.decoding.decoders import JsonDecoder
from kbroker.testing import Broker
from tests.spark.reading.test_decoding import decoded, send

SCALARS: list[DataType] = [
    ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType(), BooleanType(), StringType(),
    BinaryType(), DateType(), TimestampType(), TimestampNTZType(), DecimalType(10, 2), DecimalType(38, 18),
]  # fmt: skip
NAMES = ["a", "b", "ä", "a b", "A", "c.d", ""]
TOKENS = {
    "number": ["0", "-0", "1", "-1", "127", "300", "-129", "32768", "2147483648", "9223372036854775808", "1.0", "1.5",
               "-2.675", "0.1", "1e3", "1E-7", "123456.785", "1e400", "16777217", "1700000000", "-1e-400"],
    "word": ["true", "false", "null", "NaN", "-Infinity", "Infinity"],
    "text": ['""', '"x"', '"1.5"', '"NaN"', '"-INF"', '"+Infinity"', '"true"', '"aGk="', '"aGk"', '"\\u00e9\\n"',
             '"a\\/b"', "'single'", '"2024-02-29"', '"2023-02-29"', '"2024-2-9"', '"2024-01-02T03:04:05.678901Z"',
             '"2024-01-02 03:04:05"', '"2024-01-02T03:04:05+01:30"', '"2024"', '"2024-13-01"', '"0001-01-01"',
             '"1969-12-31T23:59:59.999999"', '"2024-01-02T25:00:00"', '"\U0001f600"'],
}  # fmt: skip


def any_type(random: Random, depth: int = 0) -> DataType:
    kind = random.choice(["scalar", "scalar", "array", "map", "struct"]) if depth < 3 else "scalar"
    if kind == "array":
        return ArrayType(any_type(random, depth + 1))
    if kind == "map":
        return MapType(StringType(), any_type(random, depth + 1))
    return any_struct(random, depth + 1) if kind == "struct" else random.choice(SCALARS)


def any_struct(random: Random, depth: int = 0) -> StructType:
    names = random.sample([each for each in NAMES if each != "A"], random.randint(1, 5))
    return StructType([StructField(name, any_type(random, depth)) for name in names])


def any_token(random: Random) -> str:
    return random.choice(TOKENS[random.choice(list(TOKENS))])


def any_text(random: Random, kind: DataType) -> str:
    """Return a random text, more often than not of the type `kind`."""
    if random.random() < 0.03:
        return "null"
    if isinstance(kind, StringType):  # what is no string stays as it stands; from_json writes it anew
        return random.choice(TOKENS["text"])
    if random.random() < 0.08:
        return any_token(random)
    blank = random.choice(["", "", "", " "])
    if isinstance(kind, StructType):
        fields = [(each.name, any_text(random, each.dataType)) for each in kind if random.random() < 0.7]
        if random.random() < 0.2:
            fields.append(("other", any_text(random, any_type(random))))
        random.shuffle(fields)
        return "{" + ",".join(f"{blank}{json.dumps(name)}:{blank}{value}" for name, value in fields) + "}"
    if isinstance(kind, MapType):
        names = random.sample(NAMES, random.randint(0, 3))
        return "{" + ",".join(f'"{each}":{blank}{any_text(random, kind.valueType)}' for each in names) + "}"
    if isinstance(kind, ArrayType):
        return "[" + f",{blank}".join(any_text(random, kind.elementType) for _ in range(random.randint(0, 3))) + "]"
    if isinstance(kind, BooleanType):
        return random.choice(["true", "false"])
    is_text = isinstance(kind, (BinaryType, DateType, TimestampType, TimestampNTZType))
    return random.choice(TOKENS["text" if is_text else "number"])


def damaged(random: Random, text: str) -> str:
    """Cut, or with a letter that is another."""
    place = random.randrange(1, max(len(text), 2))
    return text[:place] + random.choice(["", random.choice('{}[]:,"x0 -') + text[place + 1 :]])


def has_bytes_behind(text: str) -> bool:
    """Which from_json does not look at."""
    try:
        return json.JSONDecoder().raw_decode(text)[1] < len(text)
    except ValueError:
        return False


def rows(frame: DataFrame, names: list[str]) -> list[tuple[list[str | None], bool]]:
    """The fields as text, for there are times that Python has not, and whether the value is bad."""
    fields = F.array(*(F.col("value").getField(name).cast("string") for name in names))
    found = frame.select("offset", fields.alias("texts"), "bad").orderBy("offset").collect()
    return [(row.texts, row.bad is not None) for row in found]


def is_same(mine: tuple[list[str | None], bool], its: tuple[list[str | None], bool]) -> bool:
    """Compare two results. Of bad values, one may have kept more than the other: they count as the same."""
    values = zip(mine[0], its[0], strict=True)
    return mine[1] == its[1] and all(a == b or (mine[1] and None in (a, b)) for a, b in values)


def corrupt_of(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField("corrupt", StringType())])


@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 40))])
def test_any_json_is_what_from_json_makes_of_it(spark: SparkSession, broker: Broker, topic: str, seed: int) -> None:
    random = Random(seed)
    schema = any_struct(random)
    texts = [any_text(random, schema) for _ in range(400)]
    texts = [damaged(random, text) if random.random() < 0.1 else text for text in texts]
    texts = [text for text in texts if not has_bytes_behind(text)]
    send(broker, topic, [text.encode() for text in texts])
    given = {"valueFormat": "json", "valueSchema": schema.json()}
    ours = decoded(spark, broker, topic, **given, columnNameOfCorruptRecord="bad")
    text = F.col("value").cast("string")
    kept = F.from_json(text, corrupt_of(schema), {"columnNameOfCorruptRecord": "corrupt"})
    theirs = decoded(spark, broker, topic)
    theirs = theirs.select("offset", F.from_json(text, schema).alias("value"), kept["corrupt"].alias("bad"))
    mine, its = rows(ours, schema.names), rows(theirs, schema.names)
    different = [(each, a, b) for each, a, b in zip(texts, mine, its, strict=True) if not is_same(a, b)]
    assert not different, (schema.simpleString(), different[:3])
    assert 0 < sum(bad for _, bad in mine) < len(texts)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))])
def test_of_any_json_the_same_fails_fast(spark: SparkSession, broker: Broker, topic: str, seed: int) -> None:
    random = Random(seed)
    schema = any_struct(random)
    texts = [any_text(random, schema).encode() for _ in range(100)]
    bad = JsonDecoder(to_arrow_type(schema, timezone="UTC")).decode(pa.array(texts, pa.binary())).bad.to_pylist()
    good = [text for text, wrong in zip(texts, bad, strict=True) if not wrong]
    for values, fails in ((good, False), ([*good, texts[bad.index(True)]], True)):
        name = f"{topic}-{fails}"
        send(broker, name, values)
        ours = decoded(spark, broker, name, valueFormat="json", valueSchema=schema.json(), mode="FAILFAST")
        text = F.col("value").cast("string")
        theirs = decoded(spark, broker, name).select(F.from_json(text, schema, {"mode": "FAILFAST"}))
        for frame in (ours, theirs):
            if fails:
                with pytest.raises(Exception, match=r"FAILFAST|BadRecord"):
                    frame.write.format("noop").mode("overwrite").save()
            else:
                frame.write.format("noop").mode("overwrite").save()
