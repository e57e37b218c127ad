"""The schema data and the tool that writes them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.wire.codec import make_message
from kbroker.protocol import messages as M
from tests.kit.models.message import schema_of, versions_of
from tools import make_schemas

ROOT = Path(__file__).resolve().parents[3]


def test_the_written_schemas_and_stub_are_current() -> None:
    command = [sys.executable, ROOT / "tools" / "make_schemas.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_data_hold_facts_and_no_prose() -> None:
    def strings(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for pair in value.items() for one in pair for text in strings(one)]
        if isinstance(value, list):
            return [text for one in value for text in strings(one)]
        return [value] if isinstance(value, str) else []

    for name in M.NAMES:
        for text in strings(schema_of(getattr(M, name))):
            assert " " not in text, (name, text)


def test_threads_that_use_a_message_first_at_the_same_time_have_one_class_of_it() -> None:
    """A broker's threads do, with the first requests of an API."""
    spec = importlib.util.spec_from_file_location("messages_anew", M.__file__)
    assert spec is not None and spec.loader is not None
    anew = importlib.util.module_from_spec(spec)  # M has made its classes
    spec.loader.exec_module(anew)
    found: list[list[type[M.Message]]] = [[], []]
    together = threading.Barrier(len(found))

    def use(into: list[type[M.Message]]) -> None:
        for name in M.NAMES:
            together.wait()
            into.append(getattr(anew, name))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=use, args=(into,)) for into in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert found[0] == found[1] == [getattr(anew, name) for name in M.NAMES]


@pytest.mark.parametrize(
    ("camel", "snake"),
    [("ThrottleTimeMs", "throttle_time_ms"), ("IsrNodes", "isr_nodes"), ("v3AndBelow", "v3_and_below"), ("A", "a")],
)
def test_names_become_snake_case(camel: str, snake: str) -> None:
    assert make_schemas.snake_case(camel) == snake


@pytest.mark.parametrize(
    ("newer", "older", "joined"),
    [("3-13", "0-11", "0-13"), ("2+", "0+", "0+"), ("none", "0-1", "0-1"), ("1", "0", "0-1"), ("none", "none", "none")],
)
def test_joined_releases_have_the_versions_of_both(newer: str, older: str, joined: str) -> None:
    assert make_schemas.join_ranges(newer, older) == joined


def test_a_later_release_in_front_keeps_the_bytes_of_the_older_versions() -> None:
    """What raising the maxima will do: Kafka 4.3's definitions joined with those of 3.9."""
    older = {name: schema_of(getattr(M, name)) for name in M.NAMES}
    definitions = make_schemas.read_definitions(make_schemas.release_jars("4.3.1"))
    newer = {name: make_schemas.compact_message(definition) for name, definition in definitions.items()}
    joined = make_schemas.join_messages(newer, older)
    assert [joined[f"{name}Request"][2] for name in ("Produce", "Fetch", "Metadata")] == ["0-13", "0-18", "0-13"]
    json.dumps(joined)
    for name in (one for one in M.NAMES if "Share" not in one):  # a preview in 3.9, other bytes since
        cls: type[M.Message] = getattr(M, name)
        later = make_message(name, joined[name], __name__)
        for version in versions_of(cls):
            try:
                body = cls().encode(version)
            except TypeError:
                continue  # no valid default
            assert later.decode(body, version).encode(version) == body, (name, version)
