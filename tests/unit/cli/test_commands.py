"""The commands against a real broker, each as a process of its own, as a person calls them."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.main import main
from kbroker.client import AdminClient, Consumer, TopicPartition
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.commands import Run, command_of, from_json, json_lines, lines, on_a_terminal, read

# --- produce and consume ----------------------------------------------------------------------------


def test_lines_go_in_and_come_out(kbroker: Run, topic: str) -> None:
    sent = [b"line %d" % number for number in range(1000)]
    kbroker("produce", topic, stdin=b"\n".join(sent))
    assert sorted(read(kbroker, topic)) == sorted(sent)


def test_output_that_cannot_be_written_is_one_line(broker: BrokerProcess, kbroker: Run, topic: str) -> None:
    kbroker("produce", topic, stdin=b"a\n")
    for words in (["topics", "list"], ["consume", topic, "--from-beginning", "--exit"]):
        command = command_of(*words, "-b", broker.address)
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert (done.returncode, done.stderr) == (1, b"kbroker: input or output: no space left on device\n")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_ack_goes_through(kbroker: Run, topic: str, codec: str) -> None:
    for acks in ("0", "1", "all"):
        kbroker("produce", topic, "--compression", codec, "--acks", acks, stdin=b"%b\n" % acks.encode())
    assert sorted(read(kbroker, topic, "--idle", "20")) == [b"0", b"1", b"all"]


def test_messages_in_json_are_copied_whole(kbroker: Run, topic: str) -> None:
    message = {
        "key": "k",
        "value_base64": "/w==",
        "headers": [["a", "b"], ["n", None], ["x", {"base64": "/w=="}]],
        "timestamp": 1700000000000,
        "partition": 2,
    }
    null = {"key": None, "value": None, "headers": [], "timestamp": 5, "partition": 0}
    kbroker("produce", topic, "--json", stdin="\n".join(map(json.dumps, (message, null))).encode())
    found = json_lines(kbroker("consume", topic, "--from-beginning", "--exit", "--json"))
    assert sorted(found, key=lambda m: m["partition"]) == [
        {"topic": topic, **each, "offset": 0} for each in (null, message)
    ]


def test_keys_decide_the_partition_and_columns_show_them(kbroker: Run, topic: str) -> None:
    kbroker("produce", topic, "--key-separator", ":", "-H", "h=1", stdin=b"a:1\nb:2\na:3\nb:4\n")
    shown = [line.split(b"|") for line in read(kbroker, topic, "--show", "partition,key,headers", "--separator", "|")]
    assert sorted(value for _, _, _, value in shown) == [b"1", b"2", b"3", b"4"]
    assert len({(partition, key) for partition, key, _, _ in shown}) == 2
    assert {headers for _, _, headers, _ in shown} == {b"h=1"}
    assert [value for _, key, _, value in shown if key == b"a"] == [b"1", b"3"]


def test_offsets_partitions_times_and_limits_select_messages(kbroker: Run, topic: str) -> None:
    messages = [{"value": str(i), "partition": 1, "timestamp": 1000 + i} for i in range(10)]
    kbroker("produce", topic, "--json", stdin="\n".join(map(json.dumps, messages)).encode())

    def got(*words: str) -> list[bytes]:
        return lines(kbroker("consume", topic, "--exit", *words))

    assert got("--partition", "1", "--offset", "7") == [b"7", b"8", b"9"]
    assert got("--offset", "-2") == [b"8", b"9"]
    assert got("--since", "1008") == [b"8", b"9"]
    assert got("--from-beginning", "--max-messages", "3") == [b"0", b"1", b"2"]
    assert got("--from-beginning", "--partition", "0,2") == []
    assert got() == []
    assert lines(kbroker("consume", topic, "--from-beginning", "--idle", "0.3")) == [b"%d" % i for i in range(10)]
    error = kbroker("consume", topic, "--partition", "9", code=1).stderr.decode()
    assert error == f"kbroker: topic '{topic}' has no partition 9; it has 3\n"
    error = kbroker("consume", topic, "--partition", "1", "--offset", "99", code=1).stderr.decode()
    assert f"{topic}-1: there is no offset 99" in error
    error = kbroker("consume", topic, "--partition", "1", "--offset", "11", "--exit", code=1).stderr.decode()
    assert error == f"kbroker: {topic}-1: there is no offset 11, it ends at 10\n"


def test_what_is_deleted_before_it_is_read_is_passed_over(
    kbroker: Run, broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    kbroker("produce", topic, "--partition", "1", stdin=b"a\nb\nc\n")
    ask = Consumer.beginning_offsets

    def ask_and_delete(consumer: Consumer, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = ask(consumer, partitions)
        with AdminClient(bootstrap_servers=broker.address) as admin:
            admin.delete_records({TopicPartition(topic, 1): 2})
        return found

    monkeypatch.setattr(Consumer, "beginning_offsets", ask_and_delete)
    assert main(["consume", topic, "--from-beginning", "--exit", "-b", broker.address]) == 0
    assert capfdbinary.readouterr().out == b"c\n"


def test_a_template_says_what_is_printed(kbroker: Run, topic: str) -> None:
    message = {
        "key": "k",
        "value": "v",
        "headers": [["a", "1"], ["b", "2"]],
        "timestamp": 1700000000000,
        "partition": 2,
    }
    null = {"timestamp": 5, "partition": 2}
    kbroker("produce", topic, "--format", "json", stdin="\n".join(map(json.dumps, (message, null))).encode())
    template = "{topic} {partition}@{offset} {timestamp} {time} {{{key}}}\\t{value} {headers}"
    assert read(kbroker, topic, "--format", template) == [
        f"{topic} 2@0 1700000000000 2023-11-14T22:13:20.000+00:00 {{k}}\tv a=1,b=2".encode(),
        f"{topic} 2@1 5 1970-01-01T00:00:00.005+00:00 {{}}\t ".encode(),
    ]
    for wrong in ("{nothing}", "{", "{key!r}", ""):
        error = kbroker("consume", topic, "--format", wrong, code=2).stderr.decode()
        assert "nor a template" in error


def test_files_are_read_by_line_or_whole(kbroker: Run, topic: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"a\r\nb\nc")
    second.write_bytes(b"d\n\ne\n")
    words = ["--partition", "0", "-H", "from=file"]
    kbroker("produce", topic, str(first), str(second), *words, stdin=b"not read\n")
    assert kbroker("consume", topic, "--from-beginning", "--exit").stdout == b"a\r\nb\nc\nd\n\ne\n"
    kbroker("produce", topic, str(first), str(second), "--format", "file", "--partition", "1")
    found = json_lines(kbroker("consume", topic, "--from-beginning", "--exit", "--json", "--partition", "1"))
    assert [each["value"] for each in found] == ["a\r\nb\nc", "d\n\ne\n"]
    error = kbroker("produce", topic, str(tmp_path / "third"), code=1).stderr.decode()
    assert error == f"kbroker: {tmp_path / 'third'}: no such file or directory\n"


def test_a_person_at_a_terminal_is_asked_and_told(broker: BrokerProcess, kbroker: Run, topic: str) -> None:
    words = ["produce", topic, "--partition", "0", "-b", broker.address]
    code, shown = on_a_terminal(words, b"one\ntwo\n\x04")
    assert code == 0
    asked, told = shown.strip().splitlines()[0], shown.strip().splitlines()[-1]
    assert asked == f"a line is a message for topic {topic!r}; Ctrl-D ends"
    assert told == f"topic {topic!r} has 2 messages more"
    assert "> " in shown and read(kbroker, topic) == [b"one", b"two"]
    assert kbroker(*words[:-2], stdin=b"three\n").stderr == b""
    code, shown = on_a_terminal(["consume", topic, "--idle", "0.1", "-b", broker.address])
    assert (code, shown) == (0, "messages from now on; --from-beginning shows what is there, Ctrl-C ends\n")


def test_a_line_without_key_is_named_by_its_number_in_its_file(kbroker: Run, topic: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(b"a:1\nb:2\n")
    bad.write_bytes(b"c:3\nd\n")
    error = kbroker("produce", topic, str(good), str(bad), "--key-separator", ":", code=1).stderr.decode()
    assert error == "kbroker: line 2 of the input has no ':'; 3 messages before it are delivered\n"
    assert sorted(read(kbroker, topic)) == [b"1", b"2", b"3"]


def test_a_bar_tells_how_far_a_file_is(kbroker: Run, topic: str, tmp_path: Path) -> None:
    lines_file = tmp_path / "lines"
    lines_file.write_bytes(b"0123456789\n" * 100_000)
    quiet = kbroker("produce", topic, str(lines_file), "--compression", "lz4")
    assert quiet.stderr == b""
    shown = kbroker("produce", topic, str(lines_file), "--progress", "--compression", "lz4").stderr.decode()
    last = shown.split("\r")[-1]
    assert last.startswith("[########################] 100%  100,000 messages, 1.1 MB, ")
    assert last.rstrip().endswith("/s")
    assert from_json(kbroker("topics", "describe", topic, "--json"))[0]["messages"] == 200_000


def test_a_message_that_is_refused_is_told_while_the_input_goes_on(
    broker: BrokerProcess, kbroker: Run, topic: str
) -> None:
    kbroker("configs", "alter", "topic", topic, "--set", "max.message.bytes=100")
    command = command_of("produce", topic, "-b", broker.address)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"x" * 1000 + b"\n")
        process.stdin.flush()
        try:
            assert process.wait(30) == 1
            assert b"MESSAGE_TOO_LARGE" in process.stderr.read()
        finally:
            process.kill()


def test_only_what_transactions_have_committed(broker: BrokerProcess, kbroker: Run, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": f"of-{topic}"})
    producer.init_transactions(30)
    for value, is_committed in ((b"kept", True), (b"dropped", False)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(30)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(30)
    assert read(kbroker, topic, "--committed") == [b"kept"]
    assert sorted(read(kbroker, topic)) == [b"dropped", b"kept"]


# --- how brokers are reached ------------------------------------------------------------------------


def test_options_of_the_client_come_from_a_file_and_from_arguments(
    broker: BrokerProcess, kbroker: Run, tmp_path: Path
) -> None:
    def topics(*words: str) -> "subprocess.CompletedProcess[bytes]":
        command = [sys.executable, "-m", "kbroker.cli.main", "topics", "list", *words]
        return subprocess.run(command, capture_output=True, timeout=60)

    options = tmp_path / "client.properties"
    options.write_text(f"bootstrap.servers={broker.address}\nlinger.ms=5\n")
    done = topics("--command-config", str(options))
    assert (done.returncode, done.stderr) == (0, b"")
    options.write_text("linger.m=5\n")
    done = topics("--command-config", str(options), "-b", broker.address)
    assert done.returncode == 0
    assert done.stderr.decode() == (
        f"kbroker: {options}:1: linger.m is not known and not used; the nearest is linger.ms\n"
    )
    for words, says in (
        (["-X", "client.di=x"], "-X client.di: there is no such option; the nearest is client.id"),
        (["-X", "request.timeout.ms=x"], "request.timeout.ms='x': must be an integer from 1 to 2147483648"),
        (["-X", "security.protocol=SASL_PLAINTEXT"], "security.protocol=SASL_PLAINTEXT needs sasl.username"),
        (
            ["--command-config", str(tmp_path / "none")],
            f"{tmp_path / 'none'}: cannot read it: no such file or directory",
        ),
    ):
        done = topics(*words, "-b", broker.address)
        assert (done.returncode, done.stderr.decode()) == (1, f"kbroker: {says}\n")


def test_what_is_no_message_is_named_by_its_line(kbroker: Run, topic: str) -> None:
    error = kbroker("produce", topic, "--json", stdin=b'{"value": "x"}\nnonsense\n', code=1).stderr.decode()
    assert "line 2 of the input is not a message in JSON" in error and error.endswith(
        "; 1 message before it is delivered\n"
    )
    error = kbroker("produce", topic, "--key-separator", ":", stdin=b"a\n", code=1).stderr.decode()
    assert error == "kbroker: line 1 of the input has no ':'; 0 messages before it are delivered\n"


def test_a_message_that_is_too_large_is_refused_by_name(kbroker: Run, topic: str) -> None:
    error = kbroker("produce", topic, stdin=b"x" * 2_000_000, code=1).stderr.decode()
    assert topic in error and "MESSAGE_TOO_LARGE" in error


def test_produce_creates_the_topic_when_the_broker_does(kbroker: Run) -> None:
    said = kbroker("produce", "made-by-producing", stdin=b"x\n").stderr
    assert said == b"kbroker: topic 'made-by-producing' is not there; waiting for the broker to make it\n"
    assert kbroker("produce", "made-by-producing", stdin=b"y\n").stderr == b""
    assert read(kbroker, "made-by-producing") == [b"x", b"y"]


def test_nobody_reading_and_ctrl_c_are_quiet(kbroker: Run, broker: BrokerProcess, topic: str) -> None:
    kbroker("produce", topic, stdin=b"x\n" * 10)
    command = [sys.executable, "-m", "kbroker.cli.main", "consume", topic, "--from-beginning", "-b", broker.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"x\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stderr.read()) == (130, b"")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"x\n"
        process.stdout.close()
        try:
            assert (process.wait(30), process.stderr.read()) == (141, b"")
        finally:
            process.kill()


# --- configs ----------------------------------------------------------------------------------------


def test_settings_of_a_topic_are_set_and_unset(kbroker: Run, topic: str) -> None:
    kbroker("configs", "alter", "topic", topic, "--set", "retention.ms=5000", "--append", "cleanup.policy=compact")
    found = {c["name"]: c["value"] for c in from_json(kbroker("configs", "describe", "topic", topic, "--json"))}
    assert found == {"retention.ms": "5000", "cleanup.policy": "delete,compact"}
    kbroker("configs", "alter", "topic", topic, "--unset", "retention.ms", "--subtract", "cleanup.policy=compact")
    everything = from_json(kbroker("configs", "describe", "topic", topic, "--all", "--json"))
    assert {c["name"]: c["value"] for c in everything}["retention.ms"] == "604800000"
    assert len(everything) > 20
    error = kbroker("configs", "alter", "topic", topic, "--set", "retention.ms=x", code=1).stderr.decode()
    assert error.startswith(f"kbroker: topic '{topic}': INVALID_CONFIG")
    kbroker("configs", "alter", "topic", topic, "--set", "retention.ms=1", "--validate-only")
    assert b"retention.ms" not in kbroker("configs", "describe", "topic", topic).stdout


def test_settings_of_all_brokers_and_of_a_group(kbroker: Run) -> None:
    def values(*words: str) -> dict[str, tuple[str, str]]:
        found = from_json(kbroker("configs", "describe", *words, "--json"))
        return {each["name"]: (each["value"], each["source"]) for each in found}

    kbroker("configs", "alter", "broker", "default", "--set", "log.retention.ms=7200000")
    assert values("broker", "default")["log.retention.ms"] == ("7200000", "all brokers")
    kbroker("configs", "alter", "broker", "default", "--unset", "log.retention.ms")
    assert "log.retention.ms" not in values("broker", "default")
    kbroker("configs", "alter", "group", "readers", "--set", "consumer.session.timeout.ms=50000")
    assert values("group", "readers")["consumer.session.timeout.ms"] == ("50000", "group")
    error = kbroker("configs", "alter", "broker", "default", code=2).stderr.decode()
    assert error == "kbroker configs alter: say what to change: --set, --append, --subtract, --unset\n"
    error = kbroker("configs", "describe", "broker", "first", code=1).stderr.decode()
    assert error == "kbroker: broker 'first': it is neither a number nor default\n"


def test_settings_of_the_broker_are_shown_and_changed(kbroker: Run) -> None:
    node_id = str(from_json(kbroker("topics", "describe", "--json"))[0]["partitions"][0]["leader"])
    everything = {c["name"]: c for c in from_json(kbroker("configs", "describe", "broker", node_id, "--all", "--json"))}
    assert everything["num.partitions"]["value"] == "1" and everything["num.partitions"]["read_only"]
    kbroker("configs", "alter", "broker", node_id, "--set", "log.retention.ms=7200000")
    shown = kbroker("configs", "describe", "broker", node_id).stdout.decode()
    assert "log.retention.ms" in shown and "7200000" in shown
    kbroker("configs", "alter", "broker", node_id, "--unset", "log.retention.ms")
    refused = kbroker("configs", "alter", "broker", node_id, "--set", "num.partitions=2", code=1).stderr.decode()
    assert refused.startswith(f"kbroker: broker '{node_id}': INVALID")
