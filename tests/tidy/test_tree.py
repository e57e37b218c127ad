"""Rules of the whole tree that can be a test."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.kit import build

ROOT = build.ROOT
# Written in pieces so that this file itself passes.
FORBIDDEN = {
    "a path of one machine": re.compile(r"/wo[r]k/|/ro[o]t/|/tm[p]/bash_jobs"),
    "a host of a registry": re.compile(
        r"repo1?\.mave[n]|pyp[i]\.org|pythonh[o]sted|npmj[s]\.(org|com)"
        r"|prox[y]\.golang|deb\.debia[n]|crate[s]\.io"
    ),
    "a word about who wrote it": re.compile(
        r"\b(claud[e]|anthropi[c]|opena[i]|chatgp[t]|copilo[t]|ll[m]s?|a[i][ -](assistant|generated))\b", re.IGNORECASE
    ),
}
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
LONGEST_FILE = {".py": 800, ".pxd": 800, ".pyx": 2000}


@cache
def tracked_files() -> tuple[Path, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "ignore")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_says_what_belongs_to_one_machine_or_one_author(what: str) -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()[:120]}"
        for path in tracked_files()
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if FORBIDDEN[what].search(line)
    ]
    assert found == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [relative(path) for path in tracked_files() if VAGUE_NAMES & {*path.parts, path.stem}] == []


def test_no_file_has_grown_past_being_split_by_noun() -> None:
    sources = [path for path in tracked_files() if path.suffix in LONGEST_FILE]
    assert [relative(path) for path in sources if text_of(path).count("\n") > LONGEST_FILE[path.suffix]] == []


def test_unit_tests_wait_for_events_and_never_sleep() -> None:
    sleeping = re.compile(r"\b(?:time|asyncio)\.sleep\((?!0\))")  # of 0: others take their turn
    unit = (path for path in tracked_files() if relative(path).startswith("tests/unit/") and path.suffix == ".py")
    assert [relative(path) for path in unit if sleeping.search(text_of(path))] == []


def test_the_random_numbers_of_the_program_around_are_left_alone() -> None:
    """The program that uses kbroker may have seeded `random`, as Hypothesis does."""
    drawing = re.compile(r"(?<![.\w])random\.(?!Random\b|SystemRandom\b)[a-z]+\(|^from random import", re.MULTILINE)
    sources = [path for path in tracked_files() if relative(path).startswith("kbroker/") and path.suffix == ".py"]
    assert len(sources) > 100
    assert [relative(path) for path in sources if drawing.search(text_of(path))] == []


def test_every_package_says_what_lives_in_it() -> None:
    packages = [path for path in tracked_files() if re.fullmatch(r"kbroker/(.*/)?__init__\.py", relative(path))]
    assert len(packages) > 10
    silent = [relative(path) for path in packages if len(text_of(path).strip().strip('"').strip()) < 20]
    assert silent == []


def runtime_dependencies() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [re.split(r"[<>=!~ \[]", requirement)[0] for requirement in project["dependencies"]]


def test_every_dependency_is_imported_and_explained() -> None:
    sources = "\n".join(text_of(path) for path in tracked_files() if relative(path).startswith("kbroker/"))
    explained = (ROOT / "docs" / "DEPENDENCIES.md").read_text()
    modules = {of: module for module, names in importlib.metadata.packages_distributions().items() for of in names}
    modules = {name.replace("_", "-"): module for name, module in modules.items()}
    for name in runtime_dependencies():
        module = modules[name]
        assert re.search(rf"^\s*(?:import|from) {module}\b", sources, re.MULTILINE), f"nothing imports {name}"
        assert f"**{name}**" in explained, f"docs/DEPENDENCIES.md does not explain {name}"
