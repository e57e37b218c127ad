"""kcat: the scenarios of tests/compat/README.md that a command line can do."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from typing import Any

from tests.compat.conversation import run
from tests.compat.records import checksum, fingerprint, record

Json = dict[str, Any]
TAB = "\x1f"


def kcat(a: Json, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["kcat", "-b", a["bootstrap"], "-q", *options], capture_output=True, text=True, timeout=100, check=False, **more
    )


def produce(a: Json) -> Json:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lines:
        for i in range(a["first"], a["first"] + a["count"]):
            key, value, _ = record(i, a["size"], False, False)
            assert key is not None and value is not None
            lines.write(f"{key.decode()}{TAB}{value.decode()}\n")
        lines.flush()
        options = ["-z", a["codec"], "-X", f"acks={a['acks']}", "-X", "queue.buffering.max.messages=1000000"]
        done = kcat(a, "-P", "-t", a["topic"], "-K", TAB, "-l", *options, lines.name)
    assert done.returncode == 0, done.stderr
    return {"acked": a["count"], "checksum": checksum(a["first"], a["count"], a["size"], False, False)}


def consume(a: Json) -> Json:
    wanted = f"%p{TAB}%o{TAB}%k{TAB}%s\n"
    done = kcat(a, "-C", "-t", a["topic"], "-o", "beginning", "-c", str(a["count"]), "-e", "-f", wanted)
    assert done.returncode == 0, done.stderr
    count, total, partitions = 0, 0, {}
    for line in done.stdout.splitlines():
        partition, text, key, value = line.split(TAB)
        offset = int(text)
        count += 1
        total += fingerprint(key.encode(), value.encode(), [])
        seen = partitions.setdefault(partition, [offset, offset - 1, True])
        seen[2] = seen[2] and offset > seen[1]
        seen[1] = offset
    return {"count": count, "checksum": str(total % 2**64), "partitions": partitions}


class Member(threading.Thread):
    """A kcat in a group, read line by line. It leaves by itself after `count` records.

    It is not ended by SIGTERM: a record on its way out of librdkafka is not printed then, but its offset is committed.
    """

    def __init__(self, a: Json, distinct: set[tuple[str, str]], *count: str):
        super().__init__(daemon=True)
        options = [
            "-X",
            "auto.offset.reset=earliest",
            "-X",
            "session.timeout.ms=6000",
            "-X",
            "heartbeat.interval.ms=300",
            "-X",
            "auto.commit.interval.ms=100",
        ]
        # Small fetches through a slow pipe, so that the other member finds something to do.
        options += ["-X", "fetch.message.max.bytes=8192", "-X", "queued.min.messages=100", "-u", *count]
        command = ["kcat", "-b", a["bootstrap"], "-q", *options, "-f", f"%p{TAB}%o\n", "-G", a["group"], a["topic"]]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.distinct, self.read = distinct, 0

    def run(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            partition, offset = line.strip().split(TAB)
            self.distinct.add((partition, offset))
            self.read += 1
            if self.read % 100 == 0:
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.terminate()
        self.join(20)
        self.process.wait(20)


def group(a: Json) -> Json:
    distinct: set[tuple[str, str]] = set()
    deadline = time.monotonic() + a["timeout_s"]

    def wait(enough: Any) -> None:
        while not enough() and time.monotonic() < deadline:
            time.sleep(0.005)

    first = Member(a, distinct, "-c", str(a["count"] * 3 // 8))
    first.start()
    wait(lambda: len(distinct) >= a["count"] // 10)
    second = Member(a, distinct)
    second.start()
    wait(lambda: not first.is_alive() and second.read)
    first.stop()
    wait(lambda: len(distinct) >= a["count"])
    time.sleep(0.5)
    second.stop()
    return {"members": [first.read, second.read], "distinct": len(distinct), "committed": None}


def seek(a: Json) -> Json:
    def ask(timestamp: int) -> int:
        done = kcat(a, "-Q", "-t", f"{a['topic']}:{a['partition']}:{timestamp}")
        return int(done.stdout.rsplit("offset", 1)[1])

    at = kcat(
        a, "-C", "-t", a["topic"], "-p", str(a["partition"]), "-o", str(a["offset"]), "-c", "1", "-f", "%o"
    ).stdout
    return {"at_offset": int(at), "by_time": ask(a["timestamp_ms"]), "earliest": ask(-2), "latest": ask(-1)}


def limits(a: Json) -> Json:
    with tempfile.NamedTemporaryFile("wb") as value:
        value.write(b"x" * a["size"])
        value.flush()
        done = kcat(
            a, "-P", "-t", a["topic"], "-X", "message.max.bytes=100000000", "-X", "message.timeout.ms=20000", value.name
        )
    return {"ok": done.returncode == 0, "error": None if done.returncode == 0 else f"exit code {done.returncode}"}


if __name__ == "__main__":
    scenarios = {"produce": produce, "consume": consume, "group": group, "seek": seek, "limits": limits}
    run(scenarios)
