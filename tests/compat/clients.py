"""The clients: how each one's driver is built and started, and what the client is known not to do."""

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

from tests.kit.kafka import maven
from tests.kit.kafka.java_program import BUILD, compile_java

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


Scenario = tuple[str, dict[str, Any]]
"""Its name and arguments."""


@dataclass(frozen=True)
class Client:
    """A client library. `prepare` installs what it needs, once, and returns the driver's command."""

    name: str
    prepare: Callable[[], list[str]]
    codecs: tuple[str, ...] = CODECS
    assignors: tuple[str, ...] = ()
    """The assignors that the driver can be told to use. A client with some can have static members too."""
    lacks: dict[str, str] = field(default_factory=dict)
    """Scenarios that this client cannot do, with the reason. The list only gets shorter."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments for the driver in every scenario, such as the broker's version that the client is to assume."""
    is_old: bool = False
    """It speaks like clients before Kafka 0.11: messages of magic 0 and 1, without headers."""
    does_several: bool = True
    """Whether one process of its driver does several scenarios, one after the other."""

    def start(self, *scenarios: Scenario) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = self.prepare()
        for name, arguments in scenarios:
            command += [name, json.dumps({**self.settings, **arguments})]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )

    def finish(self, process: subprocess.Popen[str], count: int = 1, timeout_s: float = 110) -> list[dict[str, Any]]:
        """Wait for a process that does `count` scenarios. Return what each found."""
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise AssertionError(
                f"{self.name} did not end in {timeout_s} s\n{output[-1000:]}\n{errors[-3000:]}"
            ) from None
        assert process.returncode == 0, f"{self.name} failed\n{output[-1000:]}\n{errors[-3000:]}"
        return [json.loads(line) for line in output.strip().splitlines()[-count:]]

    def run(self, scenario: str, **arguments: Any) -> dict[str, Any]:
        return self.run_all((scenario, arguments))[0]

    def run_all(self, *scenarios: Scenario) -> list[dict[str, Any]]:
        """Do the scenarios in turn, in one process where the driver can: most of a JVM's time is its start."""
        if self.does_several:
            return self.finish(self.start(*scenarios), len(scenarios))
        return [found for one in scenarios for found in self.finish(self.start(one))]


def python(folder: str, name: str, *packages: str) -> Callable[[], list[str]]:
    """A Python client in a virtual environment of its own."""

    def prepare() -> list[str]:
        home = maven.cache_directory() / "compat" / name
        made, wanted = home / "made", "\n".join(packages)
        with maven.making(home):
            if not made.exists() or made.read_text() != wanted:
                subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
                subprocess.run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages], check=True)
                made.write_text(wanted)
        return [str(home / "bin" / "python"), str(HERE / folder / "driver.py")]

    return prepare


def kafka_python(version: str) -> Callable[[], list[str]]:
    codecs = ["python-snappy==0.7.3", "lz4==4.4.5", "zstandard==0.25.0", "xxhash==3.6.0", "six==1.17.0"]
    return python("kafka-python", f"kafka-python-{version}", f"kafka-python=={version}", *codecs)


def debian(package: str, folder: str) -> Callable[[], list[str]]:
    """A program of a Debian package, driven by a Python script."""

    def prepare() -> list[str]:
        with maven.making(maven.cache_directory() / "compat" / package):
            if shutil.which(package) is None:
                subprocess.run(["apt-get", "update", "-qq"], check=True)
                subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], check=True)
        return [sys.executable, str(HERE / folder / "driver.py")]

    return prepare


def java(version: str) -> Callable[[], list[str]]:
    """Java clients of one version."""
    return lambda: compile_java(HERE / "java", "Driver", version, f"org.apache.kafka:kafka-clients:{version}")


def console_tools(version: str) -> Callable[[], list[str]]:
    """The command line tools of an old Kafka, driven by a Python script."""

    def prepare() -> list[str]:
        # Logging goes to stdout there, and log4j has no configuration: both are of no interest.
        classpath = maven.fetch([f"org.apache.kafka:kafka_2.11:{version}"])
        return ["env", f"KAFKA_CLASSPATH={classpath}", sys.executable, str(HERE / "java-0.9" / "driver.py")]

    return prepare


def node_packages(source: Path) -> Path:
    """Return the node_modules of a folder with a package.json; installed once for each content of that file."""
    target = maven.cache_directory() / "compat" / source.name
    wanted, installed = source / "package.json", target / "package.json"
    with maven.making(target):
        if not installed.exists() or installed.read_bytes() != wanted.read_bytes():
            installing = target / "installing"
            installing.mkdir(parents=True, exist_ok=True)
            shutil.copy(wanted, installing / "package.json")
            subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=installing, check=True)
            shutil.rmtree(target / "node_modules", ignore_errors=True)
            (installing / "node_modules").rename(target / "node_modules")
            shutil.copy(wanted, installed)
    return target / "node_modules"


def node(folder: str) -> Callable[[], list[str]]:
    """A Node client."""

    def prepare() -> list[str]:
        return ["env", f"NODE_PATH={node_packages(HERE / folder)}", "node", str(HERE / folder / "driver.js")]

    return prepare


def go(folder: str) -> Callable[[], list[str]]:
    """A Go client; go build itself knows when nothing has changed."""

    def prepare() -> list[str]:
        program = BUILD / folder / "driver"
        with maven.making(program):
            subprocess.run(["go", "build", "-o", str(program), "."], cwd=HERE / folder, check=True)
        return [str(program)]

    return prepare


NO_TRANSACTIONS = "it has none"
NEW = [
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
    Client("kafka-python-2.0", kafka_python("2.0.2"), codecs=CODECS, lacks={"transactions": NO_TRANSACTIONS}),
    Client("kafka-python-3.0", kafka_python("3.0.12"), lacks={"transactions": "its driver has none"}),
    Client(
        "kcat",
        debian("kcat", "kcat"),
        lacks={
            "nulls": "a command line cannot tell null from empty for each record",
            "admin": "kcat has no admin calls",
            "restart": "records cannot be counted while they are sent",
            "transactions": NO_TRANSACTIONS,
        },
    ),
    Client("java-3.9", java("3.9.1"), assignors=ASSIGNORS),
    Client("java-4.3", java("4.3.1"), assignors=ASSIGNORS),
    Client("franz-go", go("franz-go"), assignors=ASSIGNORS),
    Client(
        "kafkajs",
        node("kafkajs"),
        does_several=False,
        codecs=("none", "gzip", "snappy", "lz4"),
        lacks={
            "overlapping aborts": "it notes one aborted transaction for each record it reads: the next is let through"
        },
    ),
]

NO_ADMIN = "it has no admin calls"
NO_GROUP = "it knows no brokers with groups of theirs"
NO_TIMES = "it knows no lookup by time"


def kafka_python_of(version: str, api_version: tuple[int, ...]) -> Client:
    """kafka-python that is told that the broker is older."""
    number = ".".join(map(str, api_version))
    return Client(
        f"kafka-python-{version[:3]}-for-{number}",
        kafka_python(version),
        codecs=CODECS[:4],
        lacks={"admin": "admin calls negotiate their versions"} | ({"group": NO_GROUP} if api_version < (0, 9) else {}),
        settings={"api_version": api_version},
        is_old=True,
    )


def librdkafka_of(broker_version: str) -> Client:
    """librdkafka that is told the broker's version instead of asking for it; from 0.10 on it asks all the same."""
    return Client(
        f"confluent-for-{broker_version}",
        lambda: [sys.executable, str(HERE / "confluent" / "driver.py")],
        codecs=CODECS[:4],
        lacks={"admin": NO_ADMIN} | ({"group": NO_GROUP} if broker_version == "0.8.2" else {}),
        settings={"broker_version": broker_version},
        is_old=not broker_version.startswith("0.10"),
    )


def pykafka_of(broker_version: str) -> Client:
    packages = [
        "pykafka==2.8.0",
        "python-snappy==0.7.3",
        "lz4==4.4.5",
        "xxhash==3.6.0",
        "six==1.17.0",
        "setuptools==65.5.0",
    ]
    return Client(
        f"pykafka-for-{broker_version}",
        python("pykafka", "pykafka-2.8.0", *packages),
        codecs=CODECS[:4],
        lacks={"admin": NO_ADMIN} | ({"group": NO_GROUP} if broker_version == "0.8.2" else {}),
        settings={"broker_version": broker_version},
        is_old=True,
    )


def console_of_0_9(language: str, lacks: dict[str, str], **settings: Any) -> Client:
    """The command line tools of Kafka 0.9, with its Scala or its Java clients."""
    always = {
        "nulls": "a command line cannot tell null from empty",
        "limits": "its errors are lines of a log",
        "admin": NO_ADMIN,
        "restart": "records cannot be counted while they are sent",
    }
    return Client(
        f"{language}-0.9-console",
        console_tools("0.9.0.1"),
        codecs=CODECS[:4],
        lacks=always | lacks,
        settings=settings,
        is_old=True,
    )


KAFKA_PYTHON_SEES = ((0, 8, 2), (0, 9), (0, 10), (0, 10, 1))
OLD = [
    *map(pykafka_of, ("0.8.2", "0.9.0", "0.10.0")),
    *(
        Client(name, node(name), codecs=CODECS[:3], lacks={"admin": NO_ADMIN}, is_old=True, does_several=False)
        for name in ("kafka-node", "no-kafka")
    ),
    *(kafka_python_of(version, seen) for version in ("1.4.7", "2.0.2") for seen in KAFKA_PYTHON_SEES),
    *map(librdkafka_of, ("0.8.2", "0.9.0")),
    console_of_0_9(
        "java", {"group": "two members cannot be told what to read", "seek": "it begins at one end or the other"}
    ),
    console_of_0_9("scala", {"group": "it keeps its groups in ZooKeeper"}, old=True),
]
CLIENTS = [*NEW, librdkafka_of("0.10.0"), *OLD]


def named(name: str) -> Client:
    (found,) = [client for client in CLIENTS if client.name == name]
    return found
