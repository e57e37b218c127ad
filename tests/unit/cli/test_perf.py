"""`kbroker perf` against a real broker: what it sends and reads, what it tells, what it refuses."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kbroker.cli.main import main
from kbroker.cli.perf_latency import OneByOne
from kbroker.cli.perf_payload import Payload, values_of
from kbroker.cli.progress import Progress
from kbroker.client import AdminClient, Consumer, Producer, TopicPartition
from kbroker.testing import Broker

Perf = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(faults=True) as started:
        yield started


@pytest.fixture
def topic(broker: Broker) -> str:
    """The name of one that is not there."""
    broker.faults.clear()
    return f"t-{uuid4().hex[:8]}"


@pytest.fixture
def perf(broker: Broker, topic: str, capsys: pytest.CaptureFixture[str]) -> Perf:
    """What `kbroker perf LOAD topic ... --json` tells."""

    def run(load: str, *words: str) -> dict[str, Any]:
        assert main(["perf", load, topic, *words, "--json", "-b", broker.bootstrap_servers]) == 0
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert (told["load"], told["topic"]) == (load, topic)
        return told

    return run


def start(broker: Broker, *words: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "kbroker.cli.main", "perf", *words, "-b", broker.bootstrap_servers]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end_offsets(broker: Broker, topic: str, partitions: int) -> list[int]:
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        found = consumer.end_offsets([TopicPartition(topic, each) for each in range(partitions)])
    return list(found.values())


def test_so_many_messages_are_written_and_read_again(broker: Broker, topic: str, perf: Perf) -> None:
    words = ["--messages", "20000", "--size", "50", "--partitions", "3"]
    told = perf("produce", *words, "--warm-up", "0")
    assert (told["messages"], told["bytes"]) == (20_000, 1_000_000)
    assert told["messages_per_second"] == pytest.approx(20_000 / told["seconds"], rel=0.01)
    assert told["bytes_per_second"] == pytest.approx(1_000_000 / told["seconds"], rel=0.01)
    assert told["cpu_us_per_message"] == pytest.approx(told["cpu_seconds"] / 20_000 * 1e6, rel=0.01)
    latency = list(told["latency_ms"].values())[1:]
    assert list(told["latency_ms"]) == ["mean", "p50", "p90", "p99", "p99.9", "max"]
    assert latency == sorted(latency) and latency[0] > 0 and latency[-1] <= told["seconds"] * 1000
    ends = end_offsets(broker, topic, 3)
    assert sum(ends) == 20_000 and min(ends) > 5000

    told = perf("produce", *words, "--producers", "2", "--acks", "1", "--compression", "zstd")
    warm = sum(end_offsets(broker, topic, 3)) - 40_000
    assert told["messages"] == 20_000 and 0 < warm <= 2000

    for way in ("records", "arrow"):
        read = perf("consume", "--read", way)
        assert (read["messages"], read["bytes"]) == (40_000 + warm, (40_000 + warm) * 50)
        assert "latency_ms" not in read
    assert perf("consume", "--messages", "777")["messages"] == 777


def test_a_rate_is_kept_and_counted_from_when_messages_were_due(broker: Broker, topic: str, perf: Perf) -> None:
    told = perf("produce", "--rate", "1000", "--messages", "300", "--warm-up", "0", "--partitions", "1")
    assert told["seconds"] >= 0.299 and told["rate"] == 1000
    assert (told["messages"], told["not_sent"]) == (300, 0)
    broker.faults.delay("Produce", 0.5, times=1)
    # All messages wait for the first in their partition; the last of them is due 0.1 s after it.
    told = perf("produce", "--rate", "1000", "--messages", "100", "--warm-up", "0", "--acks", "1",
                "-X", "max.in.flight.requests.per.connection=1")  # fmt: skip
    assert told["latency_ms"]["p50"] >= 400 and told["seconds"] >= 0.5


def test_a_stall_is_in_the_latency_of_all_that_it_holds_up() -> None:
    stalled = threading.Event()

    def send(value: bytes) -> None:
        if not stalled.is_set():
            stalled.wait(0.3)
            stalled.set()

    progress = Progress(None, False)
    finding = OneByOne(send, Payload([b"x"], 1), 1000.0).run(100, None, progress)
    latency = finding.latency
    assert latency is not None and latency.count == finding.messages == 100
    assert latency.percentile(1) >= 200_000_000 and latency.largest >= 300_000_000
    assert (progress.messages, progress.size) == (100, 100)


def test_what_could_not_be_sent_at_the_rate_is_told(
    broker: Broker, topic: str, perf: Perf, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["latency", topic, "--rate", "1000000", "--seconds", "0.2", "--warm-up", "0", "--partitions", "1"]
    assert main(["perf", *words, "-b", broker.bootstrap_servers]) == 0
    assert "the rate was not reached: " in capsys.readouterr().out
    told = perf(words[0], *words[2:])
    assert told["messages"] + told["not_sent"] == 200_000 and told["not_sent"] > 0
    assert told["messages"] < 200_000


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_one_message_at_a_time(broker: Broker, topic: str, perf: Perf, acks: str) -> None:
    told = perf("latency", "--messages", "50", "--partitions", "2", "--acks", acks, "--warm-up", "0")
    assert told["messages"] == 50 and told["latency_ms"]["p50"] > 0
    told = perf("latency", "--messages", "50", "--end-to-end", "--acks", acks, "--warm-up", "0")
    assert told["messages"] == 50
    assert end_offsets(broker, topic, 2) == [50, 50]


def test_end_to_end_waits_for_its_own_message(broker: Broker, topic: str, perf: Perf) -> None:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 1)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as other:
        ended = threading.Event()

        def write() -> None:
            while not ended.is_set():
                other.send(topic, b"of another").result(10)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            told = perf("latency", "--messages", "3", "--end-to-end", "--warm-up", "0", "-X", "linger.ms=300")
        finally:
            ended.set()
            writer.join()
    assert told["messages"] == 3 and told["latency_ms"]["p50"] >= 300


def test_uncommitted_messages_are_left_out_if_wanted(broker: Broker, topic: str, perf: Perf) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send_many(topic, [b"x"] * 10).result(10)
            end()
    assert perf("consume")["messages"] == 20
    assert perf("consume", "--committed")["messages"] == 10


def test_a_file_is_the_payload(broker: Broker, topic: str, perf: Perf, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\r\nthree")
    perf("produce", "--payload", str(path), "--messages", "7", "--partitions", "1", "--warm-up", "0")
    with Consumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        found = [record.value for record in islice(consumer, 7)]
    assert found == [b"one", b"two\r", b"three", b"one", b"two\r", b"three", b"one"]


def test_the_payload_goes_round_and_is_the_same_each_time() -> None:
    payload = Payload([b"a", b"b", b"c"], 7)
    assert [b"".join(payload.next_values(count)) for count in (2, 7, 1, 4)] == [b"ab", b"cabcabc", b"a", b"bcab"]
    arguments = argparse.Namespace(payload=None, size=None)
    values = values_of(arguments)
    assert values == values_of(arguments) and {len(value) for value in values} == {100}
    assert len(set(values)) == len(values) and set(b"".join(values[:1000])) == set(range(ord("A"), ord("Z") + 1))
    assert len(values_of(argparse.Namespace(payload=None, size=20 << 20))) == 1


def test_people_are_told_in_lines_and_see_how_far_it_is(
    broker: Broker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--messages", "1000", "--partitions", "1", "--progress", "-b", broker.bootstrap_servers]
    assert main(["perf", "produce", topic, *words]) == 0
    told = capsys.readouterr()
    first, rate, latency, since, cpu = told.out.splitlines()
    assert first.startswith("1,000 messages, 100.0 kB, in ") and " messages/s, " in rate
    assert latency.startswith("  latency  mean ") and "p99.9" in latency and "acknowledged" in since
    assert cpu.endswith("of a core")
    assert told.err.endswith("/s\n") or "100%  1,000 messages, 100.0 kB" in told.err
    assert main(["perf", "consume", topic, "-b", broker.bootstrap_servers]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("load", ["produce", "latency"])
def test_ctrl_c_ends_a_load_and_what_was_measured_is_told(broker: Broker, topic: str, load: str) -> None:
    words = ["--partitions", "1", "--seconds", "3000", "--rate", "200", "--warm-up", "0", "--progress", "--json"]
    with start(broker, load, topic, *words) as process:
        assert process.stderr is not None
        said = b""
        while not re.search(rb"[1-9]\d* messages", said):
            said += os.read(process.stderr.fileno(), 1000)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    told = json.loads(output)
    assert process.returncode == 130 and told["interrupted"]
    (end,) = end_offsets(broker, topic, 1)
    assert 0 < told["messages"] <= end and told["bytes"] == 100 * told["messages"]
    assert told["messages_per_second"] == pytest.approx(told["messages"] / told["seconds"], rel=0.01)
    assert told["latency_ms"]["max"] > 0


def test_ctrl_c_ends_reading_too(broker: Broker, topic: str, perf: Perf) -> None:
    perf("produce", "--messages", "10", "--partitions", "1", "--warm-up", "0")
    fault = broker.faults.delay("Fetch", 3000)
    with start(broker, "consume", topic, "--warm-up", "0") as process:
        while not fault.struck:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == b""
    assert output.startswith(b"0 messages, 0 B, in ") and b" s, until it was interrupted\n" in output


def test_a_warm_up_that_is_interrupted_tells_nothing(broker: Broker, topic: str) -> None:
    fault = broker.faults.delay("Produce", 3000)
    with start(broker, "produce", topic, "--partitions", "1", "--timeout", "3000") as process:
        while not fault.struck:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["produce", "{t}-none"], "topic '{t}-none': UNKNOWN_TOPIC_OR_PARTITION"),
        (["produce", "{t}-none"], "did you mean {t}?; --partitions N makes a topic"),
        (["latency", "{t}-none"], "; --partitions N makes a topic"),
        (["produce", "{t}", "--partitions", "3"], "topic '{t}' has 1 partitions, not 3"),
        (["consume", "{t}"], "topic '{t}' has no messages to read"),
        (["produce", "{t}", "--messages", "3", "--size", "3000000"], "{t}-0: MESSAGE_TOO_LARGE"),
        (["latency", "{t}", "--messages", "3", "--size", "3000000"], "{t}-0: MESSAGE_TOO_LARGE"),
        (["latency", "{t}", "--messages", "3", "--size", "3000000", "--end-to-end"], "{t}-0: MESSAGE_TOO_LARGE"),
        (["produce", "{t}", "--payload", "/nowhere/file"], "/nowhere/file: no such file or directory"),
        (["produce", "{t}", "--payload", "/dev/null"], "/dev/null: it has no line, and so no message"),
        (["produce", "{t}", "-X", "linger.mss=5"], "-X linger.mss: there is no such option; the nearest is linger.ms"),
        (["produce", "{t}", "-X", "transactional.id=x"], "init_transactions"),
    ],
)
def test_what_cannot_be_is_one_line(
    broker: Broker, topic: str, words: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 1)
    assert main(["perf", *(word.format(t=topic) for word in words), "-b", broker.bootstrap_servers]) == 1
    told = capfd.readouterr().err
    assert told.startswith("kbroker: ") and told.count("\n") == 1 and says.format(t=topic) in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "required: LOAD"),
        (["bogus", "t"], "invalid choice: 'bogus'"),
        (["produce"], "required: topic"),
        (["produce", "t", "--messages", "0"], "0 is not above 0"),
        (["produce", "t", "--messages", "many"], "'many' is not a whole number"),
        (["produce", "t", "--rate", "0"], "0 is not above 0 and below 1000000000"),
        (["produce", "t", "--size", "-1"], "-1 is not from 0 to 268435456"),
        (["produce", "t", "--size", "5", "--payload", "lines"], "not allowed with"),
        (["produce", "t", "--warm-up", "-1"], "-1 is not above 0"),
        (["produce", "t", "--warm-up", "x"], "'x' is not a number"),
        (["produce", "t", "--acks", "2"], "invalid choice: '2'"),
        (["consume", "t", "--rate", "5"], "unrecognized arguments: --rate"),
        (["latency", "t", "--seconds", "nan"], "nan is not above 0"),
    ],
)
def test_wrong_usage_has_exit_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["perf", *words])
    assert exit_.value.code == 2
    told = capsys.readouterr().err
    assert "usage: kbroker" in told and says in told
