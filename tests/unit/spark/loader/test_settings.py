"""What a load is told: mistakes are named before anything is done."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kbroker.spark.errors import WrongOption
from kbroker.spark.lakes import load
from kbroker.spark.loader.run import Loader
from kbroker.spark.loader.settings import Settings
from kbroker.spark.loader.tasks.spark_tasks import SparkTasks
from kbroker.spark.options.kafka_options import READ_COMMITTED

CLIENT = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pattern": re.compile("u")}, "topics and pattern: only one of them may say what is loaded"),
        ({"time": "evnt"}, "time='evnt': must be one of event, arrival"),
        ({"data_loss": "ignore"}, "data_loss='ignore': must be one of fail, continue"),
        ({"compression": "zst"}, "compression='zst': must be one of none, snappy"),
        ({"start": "earliest"}, "start='earliest': must be a whole number, -2 or more"),
        ({"reload_since_ms": 1.5}, "reload_since_ms=1.5: must be a whole number, 0 or more"),
        ({"topics": (re.compile("u"),)}, "topics=re.compile('u'): must be names, or one compiled pattern"),
        ({"pattern": "u.*", "topics": ()}, "pattern='u.*': must be a compiled pattern"),
        ({"headers": "no"}, "headers='no': must be true or false"),
        ({"group": 5}, "group=5: must be a name"),
        ({"audit_topic": True}, "audit_topic=True: must be a name"),
        ({"formats": "json"}, "formats='json': must be a mapping"),
        ({"task_bytes": 0}, "task_bytes=0: must be a whole number, 1 or more"),
        ({"lateness_ms": -1}, "lateness_ms=-1: must be a whole number, 0 or more"),
    ],
)
def test_a_mistake_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongOption, match=re.escape(says)):
        Settings("lake", CLIENT, **{"topics": ("t",), **given})


@pytest.mark.parametrize(
    ("topics", "lake", "says"),
    [(5, "lake", "topics=5: must be names"), ("t", None, "lake=None: must be a path or a URI")],
)
def test_a_load_of_what_is_no_topic_or_no_lake_is_a_mistake(topics: Any, lake: Any, says: str) -> None:
    with pytest.raises(WrongOption, match=re.escape(says)):
        load(topics, lake, bootstrap_servers="127.0.0.1:1")


def test_isolation_is_the_consumers_however_it_is_written() -> None:
    """A load that read committed records took itself for one of all: open transactions held no hours up."""
    assert Settings("lake", CLIENT | {"isolation.level": "READ_COMMITTED"}).isolation == READ_COMMITTED
    assert Settings("lake", CLIENT).isolation == "read_uncommitted"
    with pytest.raises(WrongOption, match=r"option kafka.isolation.level='all': must be one of"):
        assert Settings("lake", CLIENT | {"isolation.level": "all"}).isolation


def test_defaults_are_no_mistake() -> None:
    assert Settings("lake", CLIENT).reload_since_ms is None
    assert Settings("lake", CLIENT, pattern=re.compile("u"), start=-1, reload_since_ms=0).pattern is not None


@pytest.mark.parametrize(
    ("formats", "says"),
    [
        ({"valueFormt": "json"}, "formats: valueFormt is none of valueFormat, valueSchema"),
        ({"valueSchema": "a LONG"}, "formats: valueFormat is missing"),
        ({"valueFormat": "jsn"}, "option valueFormat='jsn': must be one of"),
        ({"valueFormat": "json"}, "option valueSchema is missing"),
        ({"valueFormat": "avro"}, "option schemaRegistry is missing"),
    ],
)
def test_a_mistake_in_formats_is_named_before_spark_starts(formats: dict[str, str], says: str) -> None:
    def session() -> SparkSession:
        raise AssertionError("nothing is to be run")

    with pytest.raises(WrongOption, match=re.escape(says)):
        Loader(Settings("lake", CLIENT, ("t",), formats=formats), SparkTasks(session))
