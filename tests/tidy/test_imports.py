"""No module imports, through others, itself; no package does either (docs/ARCHITECTURE.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import build
from tests.tidy.imports import children_of, circles_in, imports_of, modules_of

MODULES = modules_of(build.ROOT / "kbroker")
IMPORTS = imports_of(MODULES)
PACKAGES = sorted(module.name for module in MODULES.values() if module.is_package)


def shown(circles: list[list[str]]) -> list[str]:
    return [" -> ".join(circle) for circle in circles]


def test_no_module_imports_itself_through_others() -> None:
    assert len(MODULES) > 300
    assert shown(circles_in(IMPORTS)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_imports_a_sibling_that_imports_it(package: str) -> None:
    assert shown(circles_in(children_of(package, IMPORTS))) == []


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
