"""The wheel installs and runs where there is no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import build
from tests.kit.broker import BrokerProcess


class InstalledBroker(BrokerProcess):
    """The broker of another installation, without anything of this one in its environment."""

    def __init__(self, python: Path, folder: Path):
        super().__init__(folder=folder)
        self.python = python

    def command(self) -> list[str]:
        return [str(self.python.parent / "kbroker"), *super().command()[3:]]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_serves_from_an_environment_without_a_compiler(tmp_path: Path) -> None:
    subprocess.run(["make", "wheel", f"VENV={Path(sys.executable).parent.parent}"], cwd=build.ROOT, check=True)
    (wheel,) = (build.ROOT / "dist").glob("kbroker-*.whl")
    environment = {name: value for name, value in os.environ.items() if name not in ("PATH", "PYTHONPATH", "CC")}
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment["PATH"] = str(python.parent)
    install = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", str(wheel)]
    subprocess.run(install, cwd=tmp_path, env=environment, check=True)
    with InstalledBroker(python, tmp_path / "broker") as broker:
        listed = subprocess.run(
            [str(python.parent / "kbroker"), "topics", "list", "-b", broker.address],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert (listed.returncode, listed.stderr) == (0, "")
    # What type checkers read: the promise that there are types, and those of compiled modules.
    (package,) = (python.parent.parent / "lib").glob("python*/site-packages/kbroker")
    assert (package / "py.typed").exists()
    assert (package / "_core" / "delivery.pyi").exists()
