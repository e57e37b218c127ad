"""No setting is accepted and then forgotten."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from kbroker.config.definitions import SETTINGS
from tests.kit import build

DEFINING = {path.name for path in (build.ROOT / "kbroker" / "config").glob("*definitions.py")} | {"not_read.py"}


def words_of_texts() -> Iterator[str]:
    """Yield the words of all strings of the package, except docstrings, which only mention settings."""
    for path in (build.ROOT / "kbroker").rglob("*.py"):
        if path.name in DEFINING:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        spoken = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
                yield from node.value.replace("*", " ").split()


NAMED = frozenset(words_of_texts())


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_read_somewhere(name: str) -> None:
    """The setting's name is a word of a string in the package, or is among the broker synonyms of a topic's setting."""
    assert name in NAMED, f"nothing reads {name}"
