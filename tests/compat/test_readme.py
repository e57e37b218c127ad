"""The README's first messages work as they are written, except for the port and the directory."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import build
from tests.kit.brokers.process import BrokerProcess

SECTION = re.search(r"^## First messages\n(.*?)^## ", (build.ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def shell_lines() -> list[str]:
    assert SECTION is not None
    text = re.sub(r"```.*?```", "", SECTION[1], flags=re.DOTALL)
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_the_first_messages_go_in_and_come_out_as_written(broker: BrokerProcess, tmp_path: Path) -> None:
    assert SECTION is not None
    program = re.search(r"```python\n(.*?)```", SECTION[1], re.DOTALL)
    assert program is not None
    (tmp_path / "hello.py").write_text(program[1].replace("127.0.0.1:9092", broker.address))
    kcat, others = shell_lines()[:2], shell_lines()[2:]
    assert len(others) == 7
    output = ""
    for line in [*kcat, f"{sys.executable} hello.py", *others]:
        command = line.replace("127.0.0.1:9092", broker.address)
        own = rf"{Path(sys.executable).parent}/kbroker \1 -b {broker.address}"
        words = "topics|produce|consume|groups|cluster|configs"
        command = re.sub(rf"(?<![/-])\bkbroker ((?:{words}) .*)", own, command)
        shell = ["bash", "-c", f"set -o pipefail; {command}"]
        done = subprocess.run(shell, cwd=tmp_path, capture_output=True, timeout=60)
        assert done.returncode == 0, f"{line}\n{done.stderr.decode()}"
        output += done.stdout.decode()
    assert "hello from kcat\n" in output
    assert "1 b'python' hello from Python\n" in output
    assert "hello from kbroker\n" in output
