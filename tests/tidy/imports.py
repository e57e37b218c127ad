"""Which modules of a package import which, and the circles among them.

Every import counts: at the top of a module, in a function, and for type checkers only.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

Graph = Mapping[str, set[str]]


class Module(NamedTuple):
    """A Python module, by its dotted name."""

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        """The package that relative imports begin at."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


def modules_of(package: Path) -> dict[str, Module]:
    """Return every module of the package in this folder, by name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


def imports_of(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports, of `modules` only."""
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        named = (_known(name, modules) for name in names_in(module))
        graph[module.name] = {name for name in named if name is not None and name != module.name}
    return graph


def names_in(module: Module) -> Iterator[str]:
    """Yield the dotted name of each thing that a module imports: `os`, and `os.path` for `from os import path`."""
    for node in ast.walk(ast.parse(module.path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.package.split(".")
                base = ".".join([*above[: len(above) - node.level + 1], *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _known(name: str, modules: Mapping[str, Module]) -> str | None:
    """Return the module that has the name: `a.b.c` is the module, or what the module `a.b` defines."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def children_of(package: str, graph: Graph) -> dict[str, set[str]]:
    """Return which sub-packages and modules that stand directly in a package import which other ones of these."""
    found: dict[str, set[str]] = {}
    for name, imported in graph.items():
        child = _child_of(package, name)
        if child is not None:
            others = {_child_of(package, other) for other in imported} - {None, child}
            found.setdefault(child, set()).update(other for other in others if other is not None)
    return found


def _child_of(package: str, name: str) -> str | None:
    """Return the sub-package or module, directly in `package`, that a module is or is in; None if it is elsewhere."""
    return ".".join(name.split(".")[: package.count(".") + 2]) if name.startswith(f"{package}.") else None


def circles_in(graph: Graph) -> list[list[str]]:
    """Return one shortest circle for each knot of the graph: its names in the order of the imports.

    A knot is a set of names each of which leads to all others (a strongly connected component).
    """
    leads_to = {name: _reached_from(name, graph) for name in graph}
    circles, seen = [], set[str]()
    for name in sorted(graph):
        if name in seen or name not in leads_to[name]:
            continue
        knot = {other for other in leads_to[name] if name in leads_to.get(other, ())}
        seen |= knot
        circles.append(min((_way_back(member, graph) for member in sorted(knot)), key=len))
    return circles


def _reached_from(name: str, graph: Graph) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph.get(name, ()))
    while waiting:
        other = waiting.pop()
        if other not in reached:
            reached.add(other)
            waiting += graph.get(other, ())
    return reached


def _way_back(name: str, graph: Graph) -> list[str]:
    """Return the shortest way from a name that is in a circle back to itself."""
    ways = deque([[name]])
    seen = set[str]()
    while True:
        way = ways.popleft()
        for other in sorted(graph.get(way[-1], ())):
            if other == name:
                return [*way, name]
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
