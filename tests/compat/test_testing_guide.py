"""Every block of Python in docs/TESTING.md, run by pytest as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.kit import build
from tests.kit.kafka.zookeeper import zookeeper_jars

GUIDE = build.ROOT / "docs" / "TESTING.md"
LEFT_OUT = """
import pytest


def send_with_my_program(servers):
    with Producer(bootstrap_servers=servers) as producer:
        producer.send("views", "hello").result(30)


"""


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    jars = zookeeper_jars()
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_guide.py").write_text(LEFT_OUT + "\n\n".join(blocks))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        f"kbroker_zookeeper_jars={jars}",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    count = sum(line.startswith("def test_") for block in blocks for line in block.splitlines())
    assert count >= 4 and f"\n{count} passed" in done.stdout, done.stdout + done.stderr
