"""Reading files of a log with Apache Kafka 3.9.1's own tool, kafka-dump-log."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.kit.kafka.java_program import java
from tests.kit.kafka.process import KafkaProcess

COMPLAINTS = ("isvalid: false", "ismatch", "out of order", "Found", "non-consecutive", "orrupt", "xception")
"""Words in the tool's complaints. Its output on standard error is a complaint too. It always returns 0."""


def printed_without_complaint(files: Iterable[Path], *arguments: str) -> str:
    """Return what the tool prints for these files. AssertionError if it finds anything wrong."""
    command = [*java(KafkaProcess.classpath()), "kafka.tools.DumpLogSegments", *arguments, "--files"]
    done = subprocess.run(
        [*command, ",".join(map(str, files))], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stderr.splitlines() if not line.startswith("log4j:")]
    complaints = [line for line in done.stdout.splitlines() if any(word in line for word in COMPLAINTS)]
    assert not errors + complaints, (errors + complaints)[:20]
    return done.stdout
