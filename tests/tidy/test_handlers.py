"""Each file in `server/handlers` serves one API, and opens with what it serves and what it leaves out."""

from __future__ import annotations

import ast
import re

import pytest

from kbroker.protocol.api import SERVED, ApiKey, ApiVersions
from kbroker.server.dispatch import ROUTES
from tests.kit import build

HANDLERS = build.ROOT / "kbroker" / "server" / "handlers"
SERVED_IN = {route.module: api_key for api_key, route in ROUTES.items()}


def module_of(api_key: ApiKey) -> str:
    return api_key.name.lower()


def opening(module: str) -> str:
    return ast.get_docstring(ast.parse((HANDLERS / f"{module}.py").read_text())) or ""


def versions_named(text: str) -> set[int]:
    """The versions that have a line of their own, as `v3` or, together with others, as `v0-v2`."""
    named: set[int] = set()
    for first, last in re.findall(r"^v(\d+)(?:-v(\d+))? ", text, re.MULTILINE):
        named |= set(range(int(first), int(last or first) + 1))
    return named


def test_the_folder_holds_one_file_for_each_api_and_nothing_else() -> None:
    modules = {path.stem for path in HANDLERS.glob("*.py")} - {"__init__"}
    assert modules == {module_of(api_key) for api_key in SERVED}
    assert {module: module_of(api_key) for module, api_key in SERVED_IN.items()} == {each: each for each in modules}


@pytest.mark.parametrize("module", sorted(SERVED_IN))
def test_a_handler_opens_with_its_api_its_versions_and_what_it_leaves_out(module: str) -> None:
    api_key = SERVED_IN[module]
    versions: ApiVersions = SERVED[api_key]
    text = opening(module)
    span = f"version {versions.min}" if versions.min == versions.max else f"versions {versions.min} to {versions.max}"
    assert re.match(rf"{api_key.label}, key {int(api_key)}, {span}(:|, is served by) ", text)
    assert re.search(r"^Leaves out: ", text, re.MULTILINE)
    # The compiled core serves two APIs; its modules say there what each version has added.
    if ".pyx`, which says what each" not in text:
        assert versions_named(text) == set(range(versions.min, versions.max + 1))


def test_handlers_import_of_the_server_only_what_they_share() -> None:
    """The broker and the dispatcher import handlers; imports the other way round would be a circle of packages."""
    imported = re.compile(r"^\s*(?:from|import) (kbroker\.server\b(?!\.handlers\.shared\b)\S*)", re.MULTILINE)
    found = {path.name: imported.findall(path.read_text()) for path in HANDLERS.rglob("*.py")}
    assert len(found) > len(SERVED)
    assert {name: modules for name, modules in found.items() if modules} == {}
