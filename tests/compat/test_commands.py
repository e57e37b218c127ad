"""The commands that talk to any cluster, against Apache Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.kit.kafka.process import Kafka4InMemory, KafkaInMemory

pytestmark = pytest.mark.slow
Run = Callable[..., bytes]


@pytest.fixture(scope="module", params=[KafkaInMemory, Kafka4InMemory], ids=lambda kind: kind.version)
def kbroker(request: pytest.FixtureRequest) -> Iterator[Run]:
    """A function that runs a command against a Kafka and returns what it prints."""
    with request.param({"group.initial.rebalance.delay.ms": 0}) as kafka:

        def run(*words: str, stdin: bytes = b"", code: int = 0) -> bytes:
            command = [sys.executable, "-m", "kbroker.cli.main", *words, "-b", kafka.address]
            done = subprocess.run(command, input=stdin, capture_output=True, timeout=90)
            assert done.returncode == code, done.stderr.decode()
            return done.stderr if code else done.stdout

        yield run


@pytest.fixture
def topic(kbroker: Run) -> str:
    """A topic that keeps records of any age."""
    name = f"t-{uuid4().hex[:12]}"
    kbroker("topics", "create", name, "--partitions", "2", "--config", "retention.ms=-1")
    return name


def of_json(data: bytes) -> Any:
    return json.loads(data)


def test_topics(kbroker: Run, topic: str) -> None:
    assert topic in of_json(kbroker("topics", "list", "--json"))
    (described,) = of_json(kbroker("topics", "describe", topic, "--json"))
    assert described["configs"] == {"retention.ms": "-1"}
    assert [each["partition"] for each in described["partitions"]] == [0, 1]
    kbroker("topics", "alter", topic, "--partitions", "3")
    assert b"TOPIC_ALREADY_EXISTS" in kbroker("topics", "create", topic, code=1)
    kbroker("topics", "create", topic, "--if-not-exists")
    kbroker("topics", "delete", topic)
    assert b"UNKNOWN_TOPIC_OR_PARTITION" in kbroker("topics", "describe", topic, code=1)
    kbroker("topics", "delete", topic, "--if-exists")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages(kbroker: Run, topic: str, codec: str) -> None:
    sent = [{"key": f"k{i}", "value": f"v{i}", "headers": [["h", None]], "timestamp": 1000 + i} for i in range(1000)]
    lines = "\n".join(map(json.dumps, sent)).encode()
    kbroker("produce", topic, "--format", "json", "--compression", codec, stdin=lines)
    printed = kbroker("consume", topic, "--from-beginning", "--exit", "--format", "json")
    found = [json.loads(line) for line in printed.splitlines()]
    got = [{name: each[name] for name in sent[0]} for each in sorted(found, key=lambda each: int(each["timestamp"]))]
    assert got == sent
    assert len(kbroker("consume", topic, "--since", "1990", "--exit").splitlines()) == 10
    assert len(kbroker("consume", topic, "--offset", "-3", "--exit").splitlines()) == 6


def test_groups(kbroker: Run, topic: str) -> None:
    group = f"g-{topic}"
    kbroker("produce", topic, "--partition", "1", stdin=b"1\n2\n3\n")
    words = ["--group", group, "--from-beginning", "--idle", "2"]
    assert kbroker("consume", topic, *words, "--max-messages", "2") == b"1\n2\n"
    (described,) = of_json(kbroker("groups", "describe", group, "--json"))
    rows = {each["partition"]: each for each in described["partitions"]}
    assert (described["state"], rows[1]["offset"], rows[1]["lag"]) == ("Empty", 2, 1)
    assert kbroker("consume", topic, *words) == b"3\n"
    assert group in [each["group"] for each in of_json(kbroker("groups", "list", "--json"))]
    kbroker("groups", "reset-offsets", group, "--topic", f"{topic}:1", "--shift-by", "-2", "--execute")
    assert kbroker("consume", topic, *words) == b"2\n3\n"
    kbroker("groups", "delete", group)
    assert b"there is no group" in kbroker("groups", "describe", group, code=1)


def test_configs(kbroker: Run, topic: str) -> None:
    kbroker("configs", "alter", "topic", topic, "--unset", "retention.ms", "--append", "cleanup.policy=compact")
    found = of_json(kbroker("configs", "describe", "topic", topic, "--json"))
    assert {each["name"]: each["value"] for each in found if each["source"] == "topic"} == {
        "cleanup.policy": "delete,compact"
    }
    (described,) = of_json(kbroker("topics", "describe", topic, "--json"))
    node_id = str(described["partitions"][0]["leader"])
    kbroker("configs", "alter", "broker", node_id, "--set", "log.cleaner.threads=2")
    changed = of_json(kbroker("configs", "describe", "broker", node_id, "--json"))
    assert ("log.cleaner.threads", "2", "broker") in [(c["name"], c["value"], c["source"]) for c in changed]
    assert b"INVALID_CONFIG" in kbroker("configs", "alter", "topic", topic, "--set", "retention.ms=x", code=1)


def test_an_overview(kbroker: Run, topic: str) -> None:
    kbroker("produce", topic, "--partition", "0", stdin=b"1\n2\n3\n")
    (described,) = of_json(kbroker("topics", "describe", topic, "--json"))
    assert [each["messages"] for each in described["partitions"]] == [3, 0]
    assert described["size"] > 0
    status = of_json(kbroker("cluster", "status", "--json"))
    assert status["ready"] and status["partitions"] >= 2 and status["under_replicated_partitions"] == 0
    (directory,) = status["brokers"][0]["log_dirs"]
    assert directory["size"] > 0 and 0 < directory["free"] < directory["total"]
    kbroker("cluster", "status")


def test_records_are_deleted(kbroker: Run, topic: str) -> None:
    kbroker("produce", topic, "--partition", "0", stdin=b"1\n2\n3\n")
    kbroker("topics", "delete-records", topic, "--before-offset", "2")
    assert kbroker("consume", topic, "--from-beginning", "--exit") == b"1\n2\n3\n"
    kbroker("topics", "delete-records", topic, "--before-offset", "2", "--execute")
    assert kbroker("consume", topic, "--from-beginning", "--exit") == b"3\n"


def test_slips(kbroker: Run, topic: str) -> None:
    assert b"did you mean retention.ms?" in kbroker("topics", "create", f"{topic}-2", "-c", "retentionms=5", code=1)
    assert b"did you mean retention.ms?" in kbroker(
        "configs", "alter", "topic", topic, "--set", "retentionms=5", code=1
    )
    assert f"did you mean {topic}?".encode() in kbroker("consume", f"{topic}x", code=1)
    assert b"--new-group makes it" in kbroker("groups", "reset-offsets", "g", "--topic", topic, "--to-latest", code=1)
