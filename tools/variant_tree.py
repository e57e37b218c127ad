"""Builds the compiled core a second way in a tree of its own, build/<variant>, beside the build in use.

The tree is links to this one's files, so it always has the sources of now; only the compiled modules are its own. Run
things from inside it (`cd build/asan && python -m pytest ...`), and give processes that start elsewhere its path first.

    python tools/variant_tree.py asan            builds it; prints nothing
    python tools/variant_tree.py asan --run ...  builds it and runs that command in it, as its modules need to be run

Variants are KBROKER_BUILD of setup.py: debug, asan, fuzz (clang only).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINKED = [
    "docs",
    "examples",
    "perf",
    "tests",
    "tools",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "pyspark_kbroker.py",
    "setup.py",
]
# The interpreter never frees everything; leaks of the core are found by its live-object counters.
ASAN_OPTIONS = "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"
UBSAN_OPTIONS = "halt_on_error=1:print_stacktrace=1"


def link(target: Path, at: Path) -> None:
    if at.is_symlink() and at.readlink() == target:
        return
    if at.is_symlink() or at.exists():
        at.unlink()
    at.symlink_to(target)


def make_tree(variant: str) -> Path:
    """Make build/<variant>, with a link to every file of this tree's package. Links whose file is gone are removed."""
    tree = ROOT / "build" / variant
    tree.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        link(ROOT / name, tree / name)
    package = ROOT / "kbroker"
    for source in sorted(package.rglob("*")):
        if source.name == "__pycache__" or "__pycache__" in source.parts or source.suffix == ".so":
            continue
        at = tree / "kbroker" / source.relative_to(package)
        if source.is_dir():
            at.mkdir(parents=True, exist_ok=True)
        else:
            at.parent.mkdir(parents=True, exist_ok=True)
            link(source, at)
    for at in sorted((tree / "kbroker").rglob("*")):
        if at.is_symlink() and not at.exists():
            at.unlink()
    for compiled in (tree / "kbroker" / "_core").rglob("*.so"):
        if not compiled.with_name(compiled.name.partition(".")[0] + ".pyx").exists():
            compiled.unlink()
    return tree


def compile_tree(variant: str, tree: Path) -> None:
    environment = {**os.environ, "KBROKER_BUILD": variant}
    if variant == "fuzz":
        if shutil.which("clang") is None:
            raise SystemExit("the fuzzing build needs clang (its coverage counters): install clang, or run make asan")
        environment |= {"CC": "clang", "LDSHARED": "clang -shared"}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", "2"]
    subprocess.run(command, cwd=tree, env=environment, check=True)


def runtime_library(variant: str) -> str:
    """Return the libraries to preload: the interpreter itself is not instrumented, so they must be loaded before it."""
    if variant == "asan":
        asked = [["gcc", f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so")]
        return " ".join(subprocess.check_output(command, text=True).strip() for command in asked)
    if variant == "fuzz":
        import atheris

        return str(Path(atheris.path()) / "asan_with_fuzzer.so")
    return ""


def environment_of(variant: str, tree: Path) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONMALLOC": "malloc", "KBROKER_BUILD": variant}
    if library := runtime_library(variant):
        environment |= {
            "LD_PRELOAD": library,
            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", ASAN_OPTIONS),
            "UBSAN_OPTIONS": os.environ.get("UBSAN_OPTIONS", UBSAN_OPTIONS),
        }
    return environment


def main() -> int:
    variant, *rest = sys.argv[1:]
    tree = make_tree(variant)
    compile_tree(variant, tree)
    if not rest:
        return 0
    if rest[0] != "--run":
        raise SystemExit(__doc__)
    return subprocess.run(rest[1:], cwd=tree, env=environment_of(variant, tree), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
