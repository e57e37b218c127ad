"""No setting is accepted and then forgotten."""

from __future__ import annotations

import re

import pytest

from kbroker.config.definitions import SETTINGS
from tests.kit import build

DEFINING = {"definitions.py", "not_read.py"}
SOURCES = "\n".join(path.read_text() for path in (build.ROOT / "kbroker").rglob("*.py") if path.name not in DEFINING)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_read_somewhere(name: str) -> None:
    """By its name in a string of its own, or among the broker synonyms of a topic's setting."""
    assert re.search(rf"[\" ]{re.escape(name)}[\" *]", SOURCES), f"nothing reads {name}"
