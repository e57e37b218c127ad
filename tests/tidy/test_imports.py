"""No module or package imports itself through others (docs/ARCHITECTURE.md), and `kbroker.rules` imports no I/O."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.kit import build
from tests.tidy.imports import Module, children_of, circles_in, imports_of, modules_of, names_in

MODULES = modules_of(build.ROOT / "kbroker")
IMPORTS = imports_of(MODULES)
PACKAGES = sorted(module.name for module in MODULES.values() if module.is_package)

RULES = ("kbroker.rules.", "kbroker.model.", "kbroker.errors.")
"""The rules, and what they may import of kbroker by the layers of pyproject.toml."""
PURE = frozenset(
    (
        "__future__", "bisect", "collections", "difflib", "enum", "functools", "hashlib", "heapq", "itertools", "math",
        "operator", "re", "re2", "typing",
    )
)  # fmt: skip
"""What rules may import from outside: modules that do no I/O, wait for nothing, start no thread, and read neither a
clock nor random numbers."""
PURE_PARTS = frozenset(("uuid.UUID",))
"""Parts of modules that are not pure as a whole."""
IMPURE_CALLS = frozenset(("__import__", "breakpoint", "input", "open", "print"))


def impurities(module: Module) -> list[str]:
    """Return what a module of rules imports or calls that rules must not, in the order of the source."""
    names = [name for name in names_in(module) if name.partition(".")[0] not in {*PURE, "kbroker"}]
    calls = [
        node.func.id
        for node in ast.walk(ast.parse(module.path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    ]
    return [name for name in names if name not in PURE_PARTS] + calls


def shown(circles: list[list[str]]) -> list[str]:
    return [" -> ".join(circle) for circle in circles]


def test_no_module_imports_itself_through_others() -> None:
    assert len(MODULES) > 300
    assert shown(circles_in(IMPORTS)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_imports_a_sibling_that_imports_it(package: str) -> None:
    assert shown(circles_in(children_of(package, IMPORTS))) == []


def test_rules_do_no_io_wait_for_nothing_and_read_no_clock() -> None:
    rules = [module for module in MODULES.values() if f"{module.name}.".startswith(RULES)]
    assert len(rules) > 40
    found = {module.name: impurities(module) for module in rules}
    assert {name: names for name, names in found.items() if names} == {}


def test_the_scan_finds_what_rules_must_not_do(tmp_path: Path) -> None:
    path = tmp_path / "rule.py"
    path.write_text(
        "import os.path\nimport math\nimport collections.abc\nfrom uuid import UUID, uuid4\nfrom kbroker import model\n"
        "def call():\n    from time import monotonic\n    return open('file').read(), thing.open()\n"
    )
    assert impurities(Module("kbroker.rules.rule", path)) == ["os.path", "uuid.uuid4", "time.monotonic", "open"]


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A package in which every kind of import closes a circle."""
    sources = {
        "__init__.py": "",
        "alone.py": "import os\nfrom . import first\n",
        "first.py": "from house.second import thing\n",
        "second.py": "def call():\n    from . import third\n",
        "third.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import house.first\n",
        "up/__init__.py": "",
        "up/stairs.py": "from house.down import cellar\n",
        "up/attic.py": "",
        "down/__init__.py": "",
        "down/cellar.py": "",
        "down/hall.py": "from ..up.attic import trunk\n",
    }
    for name, text in sources.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "house"


def test_the_scan_finds_circles_of_modules_and_of_packages(made_up: Path) -> None:
    modules = modules_of(made_up)
    imports = imports_of(modules)
    of_modules = "house.first -> house.second -> house.third -> house.first"
    assert shown(circles_in(imports)) == [of_modules]
    assert shown(circles_in(children_of("house", imports))) == ["house.down -> house.up -> house.down", of_modules]
    (made_up / "third.py").write_text("")
    (made_up / "down" / "hall.py").write_text("")
    assert circles_in(imports_of(modules)) == []
    assert circles_in(children_of("house", imports_of(modules))) == []
