"""`kbroker load` as people run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kbroker.cli.load import _duration, _size
from kbroker.cli.main import main
from kbroker.client import Producer
from kbroker.testing import Broker
from tests.kit.spark.load import create, fill, on_broker, visible


@pytest.fixture
def common(broker: Broker, topic: str, tmp_path: Path) -> list[str]:
    create(broker.bootstrap_servers, topic, 2)
    fill(broker.bootstrap_servers, topic, 2, 100)
    return ["load", "--to", str(tmp_path / "lake"), "-b", broker.bootstrap_servers]


def test_a_load_is_summed_up(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    common: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*common, topic, "--dry-run"]) == 0
    assert "commit 1: about " in capsys.readouterr().out
    assert not (tmp_path / "lake").exists()
    decoding = ["--value-format", "json", "--value-schema", "of LONG"]
    assert main([*common, topic, *decoding]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == [
        "topic",
        "partitions",
        "rows",
        "undecodable",
        "no",
        "record",
        "hours",
        "complete",
        "files",
        "size",
    ]
    assert out[1].split()[:5] == [topic, "2", "200", "200", "0"]
    assert out[2].startswith("commit 1: 200 rows in ")
    assert main([*common, topic, *decoding]) == 0
    assert capsys.readouterr().out == "nothing new\n"
    assert main([*common, topic, "--reload-since", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["commits"] == [2]
    assert visible(tmp_path / "lake") == on_broker(broker.bootstrap_servers, topic)
    assert main([*common, "--verify"]) == 0
    assert capsys.readouterr().out.endswith("all is there\n")
    min((tmp_path / "lake").glob("**/*.parquet")).unlink()
    assert main([*common, "--verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["is_good"] is False


def test_avro_may_stand_there_without_a_schema_s_id(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_many(topic, [b"\x04", b"\x06"]).result(30)
    command = ["load", topic, "--to", str(tmp_path), "-b", broker.bootstrap_servers, "--quiet"]
    avro = ["--value-format", "avro", "--value-schema", '"long"', "--avro-framing"]
    assert main([*command, *avro, "none"]) == 0
    files = tmp_path.glob("**/*.parquet")
    assert sorted(value for file in files for value in pq.read_table(file).column("value").to_pylist()) == [2, 3]
    assert main([*command, *avro, "confluent", "--reload-since", "0"]) == 0
    assert not list(tmp_path.glob("topic=*/**/*.parquet"))  # all in quarantine


def test_what_is_wrong_is_one_line(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    common: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(common) == 2
    assert capsys.readouterr().err == "kbroker load: name topics, or a --pattern\n"
    assert main([*common, topic, "--value-schema", "of LONG"]) == 1
    assert capsys.readouterr().err == "kbroker: --value-format is missing: string, json or avro\n"
    assert main([*common, topic, "--avro-framing", "none"]) == 1
    assert "--value-format is missing" in capsys.readouterr().err
    decoding = [*common, topic, "--value-format", "json"]
    assert main([*decoding, "--dry-run"]) == 1
    assert "option valueSchema is missing" in capsys.readouterr().err
    assert main([*common, f"{topic}-none"]) == 1
    assert f"UNKNOWN_TOPIC_OR_PARTITION; did you mean {topic}?" in capsys.readouterr().err
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake/thesis.txt").touch()
    assert main([*common, topic]) == 1
    assert "is not empty and no lake of kbroker load" in capsys.readouterr().err
    (tmp_path / "lake/thesis.txt").unlink()
    assert main([*common[:-1], "127.0.0.1:1", "--timeout", "1", topic]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert main([*decoding, "--value-schema", "id LNG"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("kbroker: option valueSchema: must be DDL like 'id LONG, name STRING': [")
    assert said.endswith('Unsupported data type "LNG".')


@pytest.mark.parametrize(
    "text, expected", [("1", 1), ("2K", 2048), ("256M", 256 << 20), ("3gb", 3 << 30), ("1TiB", 1 << 40)]
)
def test_sizes(text: str, expected: int) -> None:
    assert _size(text) == expected


def test_times() -> None:
    assert _duration("90s") == 90_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_process_of_its_own(broker: Broker, topic: str, common: list[str], tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kbroker.cli.main",
        *common,
        topic,
        "--master",
        "local[2]",
        "--conf",
        "spark.driver.memory=512m",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout.splitlines()[-1][:20]) == (0, "commit 1: 200 rows in "[:20])
    # Of Spark's log nothing.
    assert [line for line in done.stderr.splitlines() if re.search(r"WARN |log level|log4j", line)] == []
    assert visible(tmp_path / "lake") == on_broker(broker.bootstrap_servers, topic)
