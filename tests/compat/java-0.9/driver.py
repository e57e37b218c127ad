"""The console tools of Kafka 0.9.0.1: the scenarios of tests/compat/README.md that a command line can do.

`old` in the arguments takes the Scala clients (Produce 0, Fetch 0), else it is the Java ones (Produce 1, Fetch 1). The
class path comes in KAFKA_CLASSPATH. Consumers that need a ZooKeeper are left out: there is none.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.compat.conversation import run
from tests.compat.records import checksum, fingerprint, record
from tests.kit.kafka.java_program import java

Json = dict[str, Any]
TAB = "\x1f"


def tool(name: str, *arguments: str, timeout_s: float = 100, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [*java(os.environ["KAFKA_CLASSPATH"], "-Xmx256m"), f"kafka.tools.{name}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **more)


def produce(a: Json) -> Json:
    options = ["--broker-list", a["bootstrap"], "--topic", a["topic"], "--compression-codec", a["codec"]]
    options += ["--request-required-acks", str(a["acks"]), "--batch-size", "500", "--timeout", "20"]
    options += ["--property", "parse.key=true", "--property", f"key.separator={TAB}"]
    if a.get("old"):
        options.append("--old-producer")
    with tempfile.TemporaryFile("w+") as lines:
        for i in range(a["first"], a["first"] + a["count"]):
            key, value, _ = record(i, a["size"], False, False)
            assert key is not None and value is not None
            lines.write(f"{key.decode()}{TAB}{value.decode()}\n")
        lines.seek(0)
        done = tool("ConsoleProducer", *options, stdin=lines)
    # It goes on after errors, and says them.
    assert done.returncode == 0 and "rror" not in done.stderr + done.stdout, done.stderr[-3000:] + done.stdout[-3000:]
    return {"acked": a["count"], "checksum": checksum(a["first"], a["count"], a["size"], False, False)}


def consume(a: Json) -> Json:
    return (consume_old if a.get("old") else consume_new)(a)


def consume_new(a: Json) -> Json:
    properties = ["--property", "print.key=true", "--property", f"key.separator={TAB}"]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "consumer.properties"
        config.write_text("fetch.max.wait.ms=200\n")
        done = tool(
            "ConsoleConsumer", "--new-consumer", "--bootstrap-server", a["bootstrap"], "--topic", a["topic"],
            "--from-beginning", "--max-messages", str(a["count"]), "--timeout-ms", "20000",
            "--consumer.config", str(config), *properties, timeout_s=a["timeout_s"] + 20,
        )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if TAB in line]
    total = sum(fingerprint(*(part.encode() for part in line.split(TAB)), []) for line in lines)  # type: ignore[call-arg]
    return {"count": len(lines), "checksum": str(total % 2**64), "partitions": {}}


def consume_old(a: Json) -> Json:
    """The shell over SimpleConsumer, one partition after the other."""
    count, total, partitions = 0, 0, {}
    listed = tool("GetOffsetShell", "--broker-list", a["bootstrap"], "--topic", a["topic"], "--time", "-1")
    for line in sorted(listed.stdout.splitlines()):
        _, partition, end = line.rsplit(":", 2)
        if int(end) == 0:
            continue
        done = tool(
            "SimpleConsumerShell", "--broker-list", a["bootstrap"], "--topic", a["topic"], "--partition", partition,
            "--offset", "-2", "--no-wait-at-logend", "--print-offsets", "--property", "print.key=true",
            "--property", f"key.separator={TAB}",
        )  # fmt: skip
        last = -1
        # The offset stands on a line of its own before the message.
        lines = [line for line in done.stdout.splitlines() if line.startswith("next offset = ") or TAB in line]
        for told, message in zip(lines[::2], lines[1::2], strict=True):
            offset = int(told.removeprefix("next offset = ")) - 1
            key, value = message.split(TAB)
            count += 1
            total += fingerprint(key.encode(), value.encode(), [])
            seen = partitions.setdefault(partition, [offset, offset - 1, True])
            seen[2] = seen[2] and offset > last
            seen[1] = last = offset
    return {"count": count, "checksum": str(total % 2**64), "partitions": partitions}


def seek(a: Json) -> Json:
    """Only with the Scala clients: the Java consumer of the console can only begin at an end of the log."""

    def ask(time_ms: int) -> int:
        done = tool(
            "GetOffsetShell", "--broker-list", a["bootstrap"], "--topic", a["topic"], "--partitions",
            str(a["partition"]), "--time", str(time_ms),
        )  # fmt: skip
        return int(done.stdout.strip().rsplit(":", 1)[1])

    done = tool(
        "SimpleConsumerShell", "--broker-list", a["bootstrap"], "--topic", a["topic"], "--partition",
        str(a["partition"]), "--offset", str(a["offset"]), "--max-messages", "1", "--no-wait-at-logend",
        "--print-offsets",
    )  # fmt: skip
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("next offset = ")]
    return {
        "at_offset": int(told.removeprefix("next offset = ")) - 1,
        "by_time": None,
        "earliest": ask(-2),
        "latest": ask(-1),
    }


if __name__ == "__main__":
    scenarios = {"produce": produce, "consume": consume, "seek": seek}
    run(scenarios)
