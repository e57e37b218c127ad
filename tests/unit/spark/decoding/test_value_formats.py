"""The options of formats: what is wrong with them is named when Spark asks for the schema, as it makes a DataFrame."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from kbroker.spark.errors import WrongOption
from kbroker.spark.source import KbrokerSource

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"valueFormat": "xml"}, "option valueFormat='xml': must be one of 'binary', 'string', 'json', 'avro'"),
        ({"valueFormat": "json"}, "option valueSchema is missing: valueFormat=json needs it"),
        ({"valueFormat": "json", "valueSchema": "{"}, "option valueSchema: must be DDL, or JSON"),
        ({"valueFormat": "avro"}, "option schemaRegistry is missing: valueFormat=avro needs it or valueSchema"),
        ({"valueFormat": "avro", "valueSchema": '"nothing"'}, "option valueSchema: must be an Avro schema: nothing is"),
        ({"valueFormat": "avro", "schemaRegistry": "me:secret@x"}, "option schemaRegistry=[hidden]: must be http"),
        ({"valueSchema": "a INT"}, "option valueSchema is given without valueFormat json or avro"),
        ({"valueFormat": "string", "columnNameOfCorruptRecord": "Offset"}, "there is such a column already"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(WrongOption) as caught:
        KbrokerSource(CaseInsensitiveDict(BASE | options)).schema()
    assert says in str(caught.value)
