"""docs/THREADS.md names the locks that the code makes, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.kit import build

PAGE = build.ROOT / "docs" / "THREADS.md"
SOURCE = build.ROOT / "kbroker"
MAKERS = ("Lock", "RLock", "Condition")
NAMED = re.compile(r"`(\w+\.\w+)`")


def is_new_lock(value: ast.expr) -> bool:
    """Return whether an expression makes a lock. A Condition of a lock that is there already makes none."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.func.attr not in MAKERS:
        return False
    return all(is_new_lock(argument) for argument in value.args)


def locks_of(tree: ast.AST) -> Iterator[str]:
    """Yield the locks that objects of the classes in a module have, as `Class.attribute`."""
    for made in ast.walk(tree):
        for node in ast.walk(made) if isinstance(made, ast.ClassDef) else ():
            if isinstance(node, ast.Assign) and is_new_lock(node.value):
                for target in node.targets:
                    if isinstance(target, ast.Attribute):
                        yield f"{made.name}.{target.attr}"


def test_locks_are_found_in_code() -> None:
    code = """
class Shelf:
    def __init__(self, lock):
        self._lock = threading.RLock()
        self._told = threading.Condition()
        self._queued = threading.Condition(threading.Lock())
        self._same = threading.Condition(self._lock)
        local = threading.Lock()
"""
    assert [*locks_of(ast.parse(code))] == ["Shelf._lock", "Shelf._told", "Shelf._queued"]


def test_each_lock_of_an_object_is_on_the_page() -> None:
    texts = [path.read_text() for path in SOURCE.rglob("*.py")]
    made = {lock for text in texts if any(f"{one}(" in text for one in MAKERS) for lock in locks_of(ast.parse(text))}
    assert made - set(NAMED.findall(PAGE.read_text())) == set()


def test_no_lock_is_on_the_page_that_is_not_there() -> None:
    rows = PAGE.read_text().split("## Locks")[1].splitlines()
    named = {each for row in rows if row.startswith("| `") for each in NAMED.findall(row.split("|")[1])}
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*") if path.suffix in (".py", ".pyx", ".pxd"))
    words = set(re.findall(r"\w+", source))
    assert {each for each in named if not set(each.split(".")) <= words} == set()
