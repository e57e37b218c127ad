"""The unmodified console and admin tools of Apache Kafka 3.9 and 4.3: what their users type works."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.transactional_producer import TransactionalProducer
from tests.kit.clients.wire import WireClient
from tests.kit.kafka.tools import FORMATTER_PROPERTY, READER_PROPERTY, Tools


@pytest.fixture(params=[pytest.param("3.9.1", marks=pytest.mark.slow), "4.3.1"])
def tools(request: pytest.FixtureRequest, broker: BrokerProcess, tmp_path: Path) -> Iterator[Tools]:
    yield Tools(request.param, broker.address, tmp_path)


@pytest.fixture
def topic() -> str:
    return f"tools-{uuid4().hex[:10]}"


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of a tool's output below its line of headings."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    heading = next(number for number, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[heading], line, strict=False)) for line in lines[heading + 1 :]]


def test_topics_are_made_described_extended_and_deleted(tools: Tools, topic: str) -> None:
    made = tools.run(
        "TopicCommand", "--create", "--topic", topic, "--partitions", 2, "--config", "retention.ms=3600000"
    )
    assert f"Created topic {topic}." in made
    again = tools.attempt("TopicCommand", "--create", "--topic", topic)
    assert again.returncode == 1
    assert f"Topic '{topic}' already exists" in again.stdout + again.stderr
    tools.run("TopicCommand", "--alter", "--topic", topic, "--partitions", 4)
    described = tools.run("TopicCommand", "--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\s+TopicId: \S{{22}}\s+PartitionCount: 4\s+ReplicationFactor: 1", described)
    assert "retention.ms=3600000" in described
    assert len(re.findall(r"Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 4
    assert topic in tools.run("TopicCommand", "--list").split()
    tools.run("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tools.run("TopicCommand", "--list").split()


def test_configs_of_topics_and_brokers_are_read_and_altered(tools: Tools, topic: str) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tools.run("TopicCommand", "--create", "--topic", topic)
    tools.run("ConfigCommand", *of_topic, "--alter", "--add-config", "max.message.bytes=2000,cleanup.policy=[delete]")
    described = tools.run("ConfigCommand", *of_topic, "--describe")
    assert "max.message.bytes=2000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000" in described
    everything = tools.run("ConfigCommand", *of_topic, "--describe", "--all")
    assert "retention.ms=" in everything
    tools.run("ConfigCommand", *of_topic, "--alter", "--delete-config", "max.message.bytes")
    assert "max.message.bytes" not in tools.run("ConfigCommand", *of_topic, "--describe")
    wrong = tools.attempt("ConfigCommand", *of_topic, "--alter", "--add-config", "retention.ms=soon")
    assert wrong.returncode == 1
    assert "retention.ms" in wrong.stderr + wrong.stdout
    of_default = ("--entity-type", "brokers", "--entity-default")
    tools.run("ConfigCommand", *of_default, "--alter", "--add-config", "message.max.bytes=1048000")
    assert "message.max.bytes=1048000" in tools.run("ConfigCommand", *of_default, "--describe")
    tools.run("ConfigCommand", *of_default, "--alter", "--delete-config", "message.max.bytes")


@pytest.mark.parametrize("tools", ["4.3.1"], indirect=True)
def test_configs_of_groups_are_read_and_altered(tools: Tools) -> None:
    of_group = ("--entity-type", "groups", "--entity-name", f"tools/{uuid4().hex[:10]}")
    tools.run("ConfigCommand", *of_group, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    described = tools.run("ConfigCommand", *of_group, "--describe")
    assert "consumer.session.timeout.ms=50000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG:" in described
    assert "consumer.heartbeat.interval.ms=5000" in tools.run("ConfigCommand", *of_group, "--describe", "--all")
    wrong = tools.attempt("ConfigCommand", *of_group, "--alter", "--add-config", "consumer.session.timeout.ms=1")
    assert wrong.returncode == 1
    assert "group.consumer.min.session.timeout.ms" in wrong.stderr + wrong.stdout
    tools.run("ConfigCommand", *of_group, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert "timeout" not in tools.run("ConfigCommand", *of_group, "--describe")


def test_log_directories_are_described(tools: Tools, broker: BrokerProcess, topic: str) -> None:
    tools.run("TopicCommand", "--create", "--topic", topic, "--partitions", 2)
    printed = tools.run("LogDirsCommand", "--describe", "--topic-list", topic)
    (described,) = json.loads(printed.splitlines()[-1])["brokers"]
    (directory,) = described["logDirs"]
    assert (directory["logDir"], directory["error"]) == (str(broker.data), None)
    assert sorted(directory["partitions"], key=lambda one: str(one["partition"])) == [
        {"partition": f"{topic}-{number}", "size": 0, "offsetLag": 0, "isFuture": False} for number in range(2)
    ]


def test_the_quorum_is_this_broker(tools: Tools) -> None:
    status = tools.run("MetadataQuorumCommand", "describe", "--status")
    assert re.search(r"CurrentVoters: +\[\{\"id\": 1,.*" + re.escape(tools.address), status)
    assert re.search(r"MaxFollowerLag: +0\n", status)
    assert re.search(
        r"^1\s+\S+\s+\d+\s+0\s+\d+\s+\d+\s+Leader",
        tools.run("MetadataQuorumCommand", "describe", "--replication"),
        re.M,
    )


@pytest.mark.slow
def test_features_are_described_and_stay_as_they_are(tools: Tools) -> None:
    assert re.search(r"Feature: transaction.version.*FinalizedVersionLevel: 2", tools.run("FeatureCommand", "describe"))
    tools.run("FeatureCommand", "upgrade", "--feature", "transaction.version=2")
    for command, feature, why in (
        ("upgrade", "no.such=1", "no such feature"),
        ("downgrade", "transaction.version=1", "transaction.version is always at level 2"),
    ):
        refused = tools.attempt("FeatureCommand", command, "--feature", feature)
        assert refused.returncode == 1
        assert why in refused.stdout


@pytest.mark.slow
def test_no_metrics_of_clients_are_subscribed_to(tools: Tools) -> None:
    for words in (
        ("ClientMetricsCommand", "--list"),
        ("ConfigCommand", "--describe", "--entity-type", "client-metrics"),
    ):
        assert tools.run(*words).strip() == ""
    wished = ("--entity-name", "x", "--alter", "--add-config", "interval.ms=1000")
    refused = tools.attempt("ConfigCommand", "--entity-type", "client-metrics", *wished)
    assert refused.returncode == 1
    assert "metrics of clients are not collected here" in refused.stderr


def test_the_console_producer_and_consumer_pass_lines_on(tools: Tools, topic: str) -> None:
    tools.run("TopicCommand", "--create", "--topic", topic, "--partitions", 3)
    lines = [f"k{number}:line {number} ü" for number in range(500)]
    reader, formatter = READER_PROPERTY[tools.version], FORMATTER_PROPERTY[tools.version]
    tools.run(
        "ConsoleProducer", "--topic", topic, "--compression-codec", "lz4",
        reader, "parse.key=true", reader, "key.separator=:", stdin="".join(f"{one}\n" for one in lines),
    )  # fmt: skip
    read = tools.run(
        "ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", 500, "--timeout-ms", 30000,
        formatter, "print.key=true", formatter, "key.separator=:",
    )  # fmt: skip
    assert sorted(read.splitlines()) == sorted(lines)


def test_offsets_are_found_by_time_and_at_the_ends(tools: Tools, topic: str) -> None:
    tools.run("TopicCommand", "--create", "--topic", topic)
    tools.run("ConsoleProducer", "--topic", topic, stdin="a\nb\n")
    middle_ms = time.time_ns() // 1_000_000 + 1
    tools.run("ConsoleProducer", "--topic", topic, stdin="c\nd\ne\n")

    def offset(at: object) -> str:
        return tools.run("GetOffsetShell", "--topic", topic, "--time", at).strip()

    assert offset(-1) == f"{topic}:0:5"
    assert offset(-2) == f"{topic}:0:0"
    assert offset(middle_ms) == f"{topic}:0:2"
    assert offset("max-timestamp") in {f"{topic}:0:{last}" for last in (2, 3, 4)}


def test_records_are_deleted_up_to_an_offset(tools: Tools, topic: str) -> None:
    tools.run("TopicCommand", "--create", "--topic", topic)
    tools.run("ConsoleProducer", "--topic", topic, stdin="".join(f"{number}\n" for number in range(10)))
    asked = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}
    said = tools.run("DeleteRecordsCommand", "--offset-json-file", tools.file(json.dumps(asked)))
    assert re.search(rf"partition: {topic}-0\s+low_watermark: 4", said)
    read = tools.run(
        "ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", 6, "--timeout-ms", 30000
    )
    assert read.split() == ["4", "5", "6", "7", "8", "9"]


def test_groups_are_listed_described_reset_and_deleted(tools: Tools, topic: str) -> None:
    group = f"g-{topic}"
    tools.run("TopicCommand", "--create", "--topic", topic, "--partitions", 2)
    tools.run("ConsoleProducer", "--topic", topic, stdin="".join(f"{number}\n" for number in range(20)))
    tools.run(
        "ConsoleConsumer", "--topic", topic, "--group", group, "--from-beginning", "--max-messages", 20,
        "--timeout-ms", 30000,
    )  # fmt: skip
    assert group in tools.run("ConsumerGroupCommand", "--list").split()
    rows = table(tools.run("ConsumerGroupCommand", "--describe", "--group", group))
    assert sum(int(row["CURRENT-OFFSET"]) for row in rows if row["CURRENT-OFFSET"] != "-") == 20
    assert {row["LAG"] for row in rows} <= {"0", "-"}
    state = tools.run("ConsumerGroupCommand", "--describe", "--group", group, "--state")
    assert re.search(rf"^{group}\s.*\sEmpty\s+0\s*$", state, re.MULTILINE), state
    tools.run(
        "ConsumerGroupCommand", "--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute"
    )
    rows = table(tools.run("ConsumerGroupCommand", "--describe", "--group", group))
    assert sum(int(row["LAG"]) for row in rows) == 20
    tools.run("ConsumerGroupCommand", "--group", group, "--topic", topic, "--delete-offsets")
    assert "deleted" in tools.run("ConsumerGroupCommand", "--delete", "--group", group).lower()
    assert group not in tools.run("ConsumerGroupCommand", "--list").split()


def test_the_verifiable_producer_and_consumer_agree(tools: Tools, topic: str) -> None:
    count = 5000
    tools.run("TopicCommand", "--create", "--topic", topic, "--partitions", 3)
    with ThreadPoolExecutor() as pool:
        consuming = pool.submit(
            tools.run, "VerifiableConsumer", "--topic", topic, "--group-id", topic, "--max-messages", count,
            "--reset-policy", "earliest", "--enable-autocommit",
        )  # fmt: skip
        produced = tools.run("VerifiableProducer", "--topic", topic, "--max-messages", count, "--acks", -1)
        consumed = consuming.result(90)
    events = [json.loads(line) for line in produced.splitlines() if line.startswith("{")]
    assert sum(event["name"] == "producer_send_success" for event in events) == count
    events = [json.loads(line) for line in consumed.splitlines() if line.startswith("{")]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == count


def test_the_broker_describes_itself(tools: Tools) -> None:
    versions = tools.run("BrokerApiVersionsCommand")
    assert re.search(r"Produce\(0\): \d to \d+ \[usable: \d+\]", versions)
    assert "UNSUPPORTED" in versions  # of what is not served


def test_transactions_are_listed_described_and_those_that_hang_are_aborted(tools: Tools, broker: BrokerProcess) -> None:
    with WireClient("127.0.0.1", broker.port) as client:
        producer = TransactionalProducer(client)
        producer.add(1)
        offset = producer.hang(0)
    where = ("--topic", producer.topic, "--partition", 0)
    listed = [line.split() for line in tools.run("TransactionsCommand", "list").splitlines()]
    assert [producer.id, str(producer.producer_id), "Ongoing"] in [[row[0], row[2], row[3]] for row in listed]
    described = tools.run("TransactionsCommand", "describe", "--transactional-id", producer.id).splitlines()[1].split()
    assert (described[1], described[4], described[-1]) == (producer.id, "Ongoing", f"{producer.topic}-1")
    (known,) = tools.run("TransactionsCommand", "describe-producers", *where).splitlines()[1:]
    assert known.split()[:2] == [str(producer.producer_id), str(producer.epoch)] and known.split()[-1] == str(offset)
    (hanging,) = tools.run("TransactionsCommand", "find-hanging", "--topic", producer.topic).splitlines()[1:]
    assert hanging.split()[:3] == [producer.topic, "0", str(producer.producer_id)]
    tools.run("TransactionsCommand", "abort", *where, "--start-offset", offset)
    assert tools.run("TransactionsCommand", "find-hanging", "--topic", producer.topic).splitlines()[1:] == []
