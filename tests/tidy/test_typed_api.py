"""The public API in type checkers' strict modes: right uses pass, wrong uses are refused, line by line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kbroker.client
import kbroker.testing
from tests.compat.clients import node_packages
from tests.kit import build

TYPED = Path(__file__).parent / "typed"
RIGHT, WRONG = TYPED / "right_uses.py", TYPED / "wrong_uses.py"
CACHE = build.ROOT / "build" / "typed"


def wrong_lines() -> set[tuple[str, int]]:
    lines = WRONG.read_text().splitlines()
    return {(WRONG.name, number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def refused_by_mypy() -> set[tuple[str, int]]:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", "--config-file", os.devnull]
    # As if kbroker were installed: nothing is said of its own lines.
    command += ["--follow-imports", "silent", "--cache-dir", str(CACHE / "mypy"), str(RIGHT), str(WRONG)]
    environment = os.environ | {"MYPYPATH": str(build.ROOT)}
    done = subprocess.run(command, cwd=TYPED, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    return {(name, int(line)) for name, line in re.findall(r"^([\w.]+):(\d+): error:", done.stdout, re.MULTILINE)}


def refused_by_pyright() -> set[tuple[str, int]]:
    CACHE.mkdir(parents=True, exist_ok=True)
    settings = {
        "include": [os.path.relpath(TYPED, CACHE)],
        "extraPaths": [os.path.relpath(build.ROOT, CACHE)],
        "typeCheckingMode": "strict",
        "reportUnusedExpression": "none",
        "pythonVersion": "3.11",
    }
    project = CACHE / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    packages = node_packages(Path(__file__).parent / "typed")
    command = ["node", str(packages / "pyright" / "index.js"), "--outputjson", "--project", str(project)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, timeout=300)
    said = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] == 2
    found = said["generalDiagnostics"]
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found if each["severity"] == "error"
    }


@pytest.mark.timeout(320)
def test_mypy_in_strict_mode_refuses_what_is_wrong_and_nothing_else() -> None:
    assert refused_by_mypy() == wrong_lines()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
@pytest.mark.timeout(320)
def test_pyright_in_strict_mode_refuses_what_is_wrong_and_nothing_else() -> None:
    assert refused_by_pyright() == wrong_lines()


@pytest.mark.parametrize("package", [kbroker.client, kbroker.testing])
def test_the_right_uses_import_every_public_name(package: ModuleType) -> None:
    pattern = rf"^from {package.__name__} import (\(.*?\)|.*?$)"
    imported = re.search(pattern, RIGHT.read_text(), re.MULTILINE | re.DOTALL)
    assert imported is not None
    assert set(re.findall(r"\w+", imported[1])) == set(package.__all__)


CLIENTS = ("Producer", "Consumer", "AdminClient", "SimpleConsumer", "ConsumerConnector")
ASYNC_CLIENTS = ("AsyncProducer", "AsyncConsumer", "AsyncAdminClient")
VALUES = ("Delivery", "Deliveries", "Records", "ConsumerRecord", "MessageStream", "Member", "Topics")
TO_OVERRIDE = ("RebalanceListener", "ProducerHandler", "Assignor")
FOR_TESTS = ("Broker", "Faults", "ZooKeeper")
OWN = {"accumulator", "block_ms", "encode_key", "encode_value", "fail_what_is_left", "refused", "send_some"}
OWN |= {"has_partition", "treatment_of", "drops_new_connection"}
"""Names that the parts of a Producer, or of a broker for tests, use between themselves."""


@pytest.mark.parametrize("name", [*CLIENTS, *ASYNC_CLIENTS, *VALUES, *TO_OVERRIDE, *FOR_TESTS])
def test_the_right_uses_have_every_public_method(name: str) -> None:
    words = set(re.findall(r"\w+", RIGHT.read_text()))
    package = kbroker.testing if name in FOR_TESTS else kbroker.client
    methods = {method for method in dir(getattr(package, name)) if not method.startswith("_")}
    assert methods - words - OWN == set()
