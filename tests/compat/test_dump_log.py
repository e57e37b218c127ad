"""`kbroker dump-log` and Kafka's own tool print the same of the same files."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kbroker.groups import consumer_records
from kbroker.rules.consumer_group_member import (
    Change,
    ClassicMetadata,
    Current,
    CurrentChange,
    EpochChange,
    MemberState,
    RegexChange,
    ResolvedRegex,
    Subscription,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
)
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import java
from tests.kit.logs import directory as kit

VERSION, NEWER = "3.9.1", "4.3.1"
TOOL = {VERSION: "kafka.tools.DumpLogSegments", NEWER: "org.apache.kafka.tools.DumpLogSegments"}
# What is printed of a record that cannot be decoded is in our own words.
ERROR = re.compile(r"(Error at offset \d+, skipping\.).*")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = kit.make_log_directory(tmp_path_factory.mktemp("dump") / "data")
    kit.write_state_logs(root)
    values = [(1, None, b"v"), (2, b"\xff\xfe", None), (3, b"", b"")]
    nulls = kit.encode_batch(values, leader_epoch=0, log_append_time=5000)
    kit.write_partition(root, kit.TopicPartition("nulls", 0), [(0, [nulls])])
    home = root / "damaged-0"
    home.mkdir()
    log = (root / "codecs-0" / "00000000000000000000.log").read_bytes()
    (home / "00000000000000000000.log").write_bytes(log[:-7])
    (home / "00000000000000000000.index").write_bytes(struct.pack(">iiii", 3, 0, 5, 220))
    (home / "00000000000000000000.timeindex").write_bytes(struct.pack(">qiqi", 5, 3, 7, 5))
    return root


def kafka(data: Path, *arguments: str, version: str = VERSION) -> str:
    coordinates = [f"org.apache.kafka:kafka_2.13:{version}", f"org.apache.kafka:kafka-tools:{version}"]
    options = ["-Xmx256m", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]
    return _printed([*java(maven.fetch(coordinates), *options), TOOL[version], *arguments], data)


def kbroker(data: Path, *arguments: str) -> str:
    return _printed([sys.executable, "-m", "kbroker.cli.main", "dump-log", *arguments], data)


def _printed(command: Sequence[str], data: Path) -> str:
    done = subprocess.run(
        command, cwd=data, capture_output=True, timeout=90, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    text = done.stdout.decode()
    assert text and b"Traceback" not in done.stderr and b"Exception" not in done.stderr, done.stderr
    return text


def normal(text: str) -> list[str]:
    """Sort the partitions of a transaction, which Kafka prints in the order of a hash set."""

    def in_order(match: re.Match[str]) -> str:
        return f"partitions=[{','.join(sorted(match[1].split(',')))}]"

    return [ERROR.sub(r"\1", re.sub(r"partitions=\[([^]]*)\]", in_order, line)) for line in text.splitlines()]


def files(data: Path, *patterns: str) -> str:
    return ",".join(sorted(str(path.relative_to(data)) for pattern in patterns for path in data.glob(pattern)))


@pytest.mark.parametrize(
    ("options", "patterns"),
    [
        (["--deep-iteration"], ["*/0*.log", "*/0*.*index", "*/0*.snapshot"]),
        (["--print-data-log", "--max-message-size", "100"], ["nulls-0/0*.log", "old-0/0*.log"]),
        (["--print-data-log", "--skip-record-metadata"], ["nulls-0/0*.log"]),
        (["--offsets-decoder"], ["__consumer_offsets-0/0*.log"]),
        (["--transaction-log-decoder"], ["__transaction_state-0/0*.log"]),
        (["--index-sanity-check"], ["codecs-0/0*.index", "codecs-0/0*.timeindex", "empty-0/0*.timeindex"]),
        (["--verify-index-only", "--max-bytes", "500"], ["codecs-0/0*.*index", "codecs-0/0*.log"]),
    ],
)
def test_both_print_the_same(data: Path, options: list[str], patterns: list[str]) -> None:
    arguments = [*options, "--files", files(data, *patterns)]
    assert normal(kbroker(data, *arguments)) == normal(kafka(data, *arguments))


ID = b"\xfb\xff" * 8
CHANGES: list[Change] = [
    SubscriptionChange("m", Subscription("i", "r", "c", "/h", ("a", "b"), "x.*", 1000, "range")),
    SubscriptionChange("n", Subscription(None, None, "", "", (), "", -1, None, ClassicMetadata(6000, (("p", b"\0"),)))),
    SubscriptionChange("o", None),
    CurrentChange("m", Current(3, 2, MemberState.UNREVOKED_PARTITIONS, {ID: {0: 2, 1: 3}}, {bytes(16): {5: 1}})),
    TargetChange("m", {ID: frozenset({0})}),
    TargetEpochChange(7, 99),
    EpochChange(8, -5),
    RegexChange("x.*", ResolvedRegex(frozenset({"xa"}), 3, 4)),
]


def test_records_of_groups_of_the_newer_protocol_are_printed_as_kafka_4_does(tmp_path: Path) -> None:
    records = [(1, *consumer_records.record("g", change)) for change in CHANGES]
    home = kit.TopicPartition("__consumer_offsets", 0)
    kit.write_partition(tmp_path, home, [(0, [kit.encode_batch(records, leader_epoch=0)])])
    arguments = ["--offsets-decoder", "--files", files(tmp_path, "__consumer_offsets-0/0*.log")]
    assert normal(kbroker(tmp_path, *arguments)) == normal(kafka(tmp_path, *arguments, version=NEWER))
