"""Every block of Python in docs/CLIENT.md runs as it is written, except for the address.

A block runs after the blocks before it in its section, against a new, empty broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.testing import Broker
from tests.kit import build

GUIDE = build.ROOT / "docs" / "CLIENT.md"


def sections() -> Iterator[tuple[str, str]]:
    for part in re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE):
        if "```python\n" in part:
            yield part.split("\n")[0], part


SECTIONS = dict(sections())


# Of kafka-python, whose programs may give it functions.
@pytest.mark.filterwarnings("ignore:value_serializer does not implement:DeprecationWarning")
@pytest.mark.parametrize("title", SECTIONS)
def test_the_programs_of_a_section_run(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = GUIDE.read_text().split(SECTIONS[title])[0].count("\n")
    names: dict[str, object] = {"__name__": "guide"}
    monkeypatch.chdir(tmp_path)
    with Broker() as broker:
        for block in re.finditer(r"^```python\n(.*?)^```", SECTIONS[title], re.MULTILINE | re.DOTALL):
            line = before + SECTIONS[title][: block.start(1)].count("\n")
            code = block[1].replace("localhost:9092", broker.bootstrap_servers)
            exec(compile("\n" * line + code, str(GUIDE), "exec"), names)


def test_every_section_that_shows_how_something_is_done_has_programs() -> None:
    assert len(SECTIONS) >= 8
