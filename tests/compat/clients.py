"""The clients: how each one's driver is built and started, and what it is known not to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit import maven

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Client:
    """A client library. `prepare` installs what it needs, once, and returns the driver's command."""

    name: str
    prepare: Callable[[], list[str]]
    codecs: tuple[str, ...] = CODECS
    lacks: dict[str, str] = field(default_factory=dict)
    """Scenarios that this client cannot do, with the reason. The list only gets shorter."""

    def start(self, scenario: str, arguments: dict[str, Any]) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [*self.prepare(), scenario, json.dumps(arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)

    def finish(self, process: subprocess.Popen[str], timeout_s: float = 110) -> dict[str, Any]:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise AssertionError(f"{self.name} did not end in {timeout_s} s\n{output[-1000:]}\n{errors[-3000:]}") from None
        assert process.returncode == 0, f"{self.name} failed\n{output[-1000:]}\n{errors[-3000:]}"
        result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        return result

    def run(self, scenario: str, **arguments: Any) -> dict[str, Any]:
        return self.finish(self.start(scenario, arguments))


def java(version: str) -> Callable[[], list[str]]:
    """Java clients of one version; the driver is compiled once per version."""

    def prepare() -> list[str]:
        jars = [f"org.apache.kafka:kafka-clients:{version}", "com.fasterxml.jackson.core:jackson-databind:2.18.2"]
        classpath = maven.fetch([*jars, "org.slf4j:slf4j-nop:1.7.36"])
        source, target = HERE / "java" / "Driver.java", maven.cache_directory() / "compat" / f"java-{version}"
        compiled = target / "Driver.class"
        if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["javac", "-nowarn", "-cp", classpath, "-d", str(target), str(source)], check=True)
        return ["java", "-Xmx512m", "-cp", f"{target}{os.pathsep}{classpath}", "Driver"]

    return prepare


def node(folder: str) -> Callable[[], list[str]]:
    """A Node client; its packages are installed once per package.json."""

    def prepare() -> list[str]:
        source, target = HERE / folder, maven.cache_directory() / "compat" / folder
        wanted, installed = source / "package.json", target / "package.json"
        if not installed.exists() or installed.read_bytes() != wanted.read_bytes():
            target.mkdir(parents=True, exist_ok=True)
            (target / "installing").mkdir(exist_ok=True)
            shutil.copy(wanted, target / "installing" / "package.json")
            subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=target / "installing", check=True)
            shutil.rmtree(target / "node_modules", ignore_errors=True)
            (target / "installing" / "node_modules").rename(target / "node_modules")
            shutil.copy(wanted, installed)
        shutil.copy(source / "driver.js", target / "driver.js")
        return ["node", str(target / "driver.js")]

    return prepare


def go(folder: str) -> Callable[[], list[str]]:
    """A Go client; go build itself knows when nothing has changed."""

    def prepare() -> list[str]:
        program = maven.cache_directory() / "compat" / folder / "driver"
        subprocess.run(["go", "build", "-o", str(program), "."], cwd=HERE / folder, check=True)
        return [str(program)]

    return prepare


CLIENTS = [
    Client("confluent", lambda: [sys.executable, str(HERE / "confluent" / "driver.py")]),
    Client("java-3.9", java("3.9.1")),
    Client("java-4.3", java("4.3.1")),
    Client("franz-go", go("franz-go")),
    Client("kafkajs", node("kafkajs"), codecs=("none", "gzip", "snappy", "lz4")),
]
