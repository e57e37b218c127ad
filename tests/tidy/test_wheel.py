"""The wheels, one for each Python on this machine, install and run where there is no compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import build
from tests.kit.brokers.process import BrokerProcess
from tools.make_wheels import interpreters


class InstalledBroker(BrokerProcess):
    """The broker of another installation, with nothing of this installation in its environment."""

    def __init__(self, python: Path, folder: Path):
        super().__init__(folder=folder)
        self.python = python

    def command(self) -> list[str]:
        return [str(self.python.parent / "kbroker"), *super().command()[3:]]


USE = """
import sys
from kbroker.client import Consumer, Producer
with Producer(bootstrap_servers=sys.argv[1], compression_type="snappy") as producer:
    producer.send("t", b"v" * 1000).result(30)
with Consumer(bootstrap_servers=sys.argv[1], auto_offset_reset="earliest") as consumer:
    consumer.assign([("t", 0)])
    print(consumer.poll_numpy(30, dtypes={"value": "S1000"})["value"].shape)
"""


@pytest.fixture(scope="module")
def wheels() -> list[Path]:
    subprocess.run(["make", "wheel", f"VENV={Path(sys.executable).parent.parent}"], cwd=build.ROOT, check=True)
    return sorted((build.ROOT / "dist").glob("kbroker-*.whl"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_there_is_a_manylinux_wheel_for_each_python(wheels: list[Path]) -> None:
    assert len(wheels) == len(interpreters())
    assert [wheel.name for wheel in wheels if not re.search(r"-manylinux_2_\d+_\w+\.whl$", wheel.name)] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("python", interpreters())
def test_the_wheel_serves_from_an_environment_without_a_compiler(
    python: str, wheels: list[Path], tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PATH", "PYTHONPATH", "CC")}
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True)
    installed = tmp_path / "venv" / "bin" / "python"
    environment["PATH"] = str(installed.parent)
    asked = [str(installed), "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"]
    tag = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    (wheel,) = (wheel for wheel in wheels if f"-{tag}-" in wheel.name)
    install = [str(installed), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", str(wheel)]
    subprocess.run(install, cwd=tmp_path, env=environment, check=True)

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    with InstalledBroker(installed, tmp_path / "broker") as broker:
        assert run(str(installed), "-c", USE, broker.address) == "(1,)\n"
        assert run(str(installed.parent / "kbroker"), "topics", "list", "-b", broker.address) == "t\n"
    # What type checkers read: the promise that there are types, and those of compiled modules.
    (package,) = (installed.parent.parent / "lib").glob("python*/site-packages/kbroker")
    assert (package / "py.typed").exists()
    assert (package / "_core" / "client" / "producer" / "delivery.pyi").exists()
    assert not (package / "_core" / "probes").exists()
