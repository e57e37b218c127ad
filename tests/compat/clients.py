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
# What is made from our sources belongs to this checkout; the cache is shared with others.
BUILD = ROOT / "build" / "compat"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


@dataclass(frozen=True)
class Client:
    """A client library. `prepare` installs what it needs, once, and returns the driver's command."""

    name: str
    prepare: Callable[[], list[str]]
    codecs: tuple[str, ...] = CODECS
    assignors: tuple[str, ...] = ()
    """Those that the driver can be told to take; with them it can be told to have static members too."""
    lacks: dict[str, str] = field(default_factory=dict)
    """Scenarios that this client cannot do, with the reason. The list only gets shorter."""

    def start(self, scenario: str, arguments: dict[str, Any]) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [*self.prepare(), scenario, json.dumps(arguments)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )

    def finish(self, process: subprocess.Popen[str], timeout_s: float = 110) -> dict[str, Any]:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise AssertionError(
                f"{self.name} did not end in {timeout_s} s\n{output[-1000:]}\n{errors[-3000:]}"
            ) from None
        assert process.returncode == 0, f"{self.name} failed\n{output[-1000:]}\n{errors[-3000:]}"
        result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        return result

    def run(self, scenario: str, **arguments: Any) -> dict[str, Any]:
        return self.finish(self.start(scenario, arguments))


def kafka_python(version: str) -> Callable[[], list[str]]:
    """kafka-python of one version in a virtual environment of its own."""

    def prepare() -> list[str]:
        home = maven.cache_directory() / "compat" / f"kafka-python-{version}"
        if not (home / "made").exists():
            packages = [
                f"kafka-python=={version}",
                "python-snappy==0.7.3",
                "lz4==4.4.5",
                "zstandard==0.25.0",
                "six==1.17.0",
            ]
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            subprocess.run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages], check=True)
            (home / "made").touch()
        return [str(home / "bin" / "python"), str(HERE / "kafka-python" / "driver.py")]

    return prepare


def debian(package: str, folder: str) -> Callable[[], list[str]]:
    """A program of a Debian package, driven by a Python script."""

    def prepare() -> list[str]:
        if shutil.which(package) is None:
            subprocess.run(["apt-get", "update", "-qq"], check=True)
            subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], check=True)
        return [sys.executable, str(HERE / folder / "driver.py")]

    return prepare


def java(version: str) -> Callable[[], list[str]]:
    """Java clients of one version; the driver is compiled once per version."""

    def prepare() -> list[str]:
        jars = [f"org.apache.kafka:kafka-clients:{version}", "com.fasterxml.jackson.core:jackson-databind:2.18.2"]
        classpath = maven.fetch([*jars, "org.slf4j:slf4j-nop:1.7.36"])
        source, target = HERE / "java" / "Driver.java", BUILD / f"java-{version}"
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
            subprocess.run(
                ["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=target / "installing", check=True
            )
            shutil.rmtree(target / "node_modules", ignore_errors=True)
            (target / "installing" / "node_modules").rename(target / "node_modules")
            shutil.copy(wanted, installed)
        return ["env", f"NODE_PATH={target / 'node_modules'}", "node", str(source / "driver.js")]

    return prepare


def go(folder: str) -> Callable[[], list[str]]:
    """A Go client; go build itself knows when nothing has changed."""

    def prepare() -> list[str]:
        program = BUILD / folder / "driver"
        subprocess.run(["go", "build", "-o", str(program), "."], cwd=HERE / folder, check=True)
        return [str(program)]

    return prepare


CLIENTS = [
    Client(
        "confluent",
        lambda: [sys.executable, str(HERE / "confluent" / "driver.py")],
        assignors=("range", "roundrobin", "cooperative-sticky"),
    ),
    Client(
        "aiokafka",
        lambda: [sys.executable, str(HERE / "aiokafka" / "driver.py")],
        assignors=("range", "roundrobin", "sticky"),
    ),
    Client("kafka-python-2.0", kafka_python("2.0.2"), codecs=CODECS),
    Client("kafka-python-3.0", kafka_python("3.0.12")),
    Client(
        "kcat",
        debian("kcat", "kcat"),
        lacks={
            "nulls": "a command line cannot tell null from empty for each record",
            "admin": "kcat has no admin calls",
            "restart": "records cannot be counted while they are sent",
        },
    ),
    Client("java-3.9", java("3.9.1"), assignors=ASSIGNORS),
    Client("java-4.3", java("4.3.1"), assignors=ASSIGNORS),
    Client("franz-go", go("franz-go"), assignors=ASSIGNORS),
    Client("kafkajs", node("kafkajs"), codecs=("none", "gzip", "snappy", "lz4")),
]
