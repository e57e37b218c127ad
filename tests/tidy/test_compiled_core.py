"""Rules of kbroker/_core that a Python linter does not see."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.errors import ErrorCode
from tests.kit import build

CYTHON_SOURCES = sorted([*build.CORE.rglob("*.pyx"), *build.CORE.rglob("*.pxd")])
# The layers below `_core` (docs/ARCHITECTURE.md); tests/tidy scans what import-linter cannot read.
MAY_USE = ("kbroker._core", "kbroker.rules", "kbroker.fs", "kbroker.clock", "kbroker.model", "kbroker.errors")
# What a folder of the core may use besides itself (docs/ARCHITECTURE.md).
FOLDERS = {
    "base": (),
    "wire": ("base",),
    "log": ("base", "wire"),
    "server": ("base", "wire", "log"),
    "client": ("base", "wire"),
    "replica": ("base", "wire", "log", "client"),
    "rows": ("base", "wire"),
    "probes": ("base", "wire", "client"),
}
# Constants of one name that are not one thing: each of these files has its own.
LOCAL = {
    "EVENTS": "how many events of epoll one turn of a loop takes",
    "FIRST_READ": "how many bytes a loop receives before it knows the size of a frame",
    "MALFORMED": "what a parser returns; every parser has its own list",
    "MOST_PIECES": "how many pieces of work a function may do at once",
    "SLICE": "how many bytes a scan reads between two looks of Python",
    "TOO_LARGE": "what a function returns; each has its own list",
    "TURN_BYTES": "how many bytes a loop receives from one socket before the others have their turn",
}
IMPORT = re.compile(r"^\s*(?:from|import|cimport)\s+(kbroker[\w.]*)", re.MULTILINE)
# A compiled function that returns a C value: `cdef`, modifiers, the type, the name, the arguments, the contract.
C_TYPE = r"(?:const\s+)?(?:unsigned\s+)?(?:void|bint|int|char|long|short|double|float|size_t|ssize_t|Py_ssize_t|\w+_t)"
C_FUNCTION = re.compile(
    rf"^[ \t]*cdef\s+(?:inline\s+)?{C_TYPE}\s*\**\s*(\w+)\(((?:[^()]|\([^()]*\))*)\)([^\n#]*)", re.MULTILINE
)
CONTRACT = re.compile(r"\bnoexcept\b|\bexcept\b")


def without_extern_blocks(text: str) -> str:
    """Return the text without its `cdef extern` blocks: these state no contract of ours, but that of a C header."""
    return re.sub(r"^cdef extern from.*?(?=^\S)", "", text + "\nend", flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", CYTHON_SOURCES, ids=lambda path: str(path.relative_to(build.CORE)))
def test_the_core_imports_no_layer_above_it(path: Path) -> None:
    allowed = re.compile("|".join(rf"{re.escape(layer)}(\..+)?" for layer in MAY_USE))
    assert [name for name in IMPORT.findall(path.read_text()) if not allowed.fullmatch(name)] == []


@pytest.mark.parametrize("path", CYTHON_SOURCES, ids=lambda path: str(path.relative_to(build.CORE)))
def test_a_folder_of_the_core_imports_only_what_is_below_it(path: Path) -> None:
    folder = path.relative_to(build.CORE).parts[0]
    used = {name.split(".")[2] for name in IMPORT.findall(path.read_text()) if name.startswith("kbroker._core.")}
    assert used - {folder, *FOLDERS[folder]} == set()


@pytest.mark.parametrize("path", CYTHON_SOURCES, ids=lambda path: str(path.relative_to(build.CORE)))
def test_every_compiled_function_states_its_error_contract(path: Path) -> None:
    text = without_extern_blocks(path.read_text())
    assert [name for name, _, contract in C_FUNCTION.findall(text) if not CONTRACT.search(contract)] == []


def test_the_scan_for_contracts_finds_a_missing_one() -> None:
    text = "cdef int found(int a,\n    char *b) nogil\ncdef void fine(x) noexcept nogil:\ncdef inline uint8_t *bad():\n"
    assert [name for name, _, contract in C_FUNCTION.findall(text) if not CONTRACT.search(contract)] == ["found", "bad"]


def test_every_compiled_module_that_python_imports_has_a_stub_beside_it() -> None:
    python = "\n".join(path.read_text() for path in (build.ROOT / "kbroker").rglob("*.py"))
    found = re.findall(r"^\s*from kbroker\._core\.([\w.]+) import (\w+)", python, re.MULTILINE)
    paths = [build.CORE / name.replace(".", "/") for name, _ in found]
    modules = {path / what if path.is_dir() else path for path, (_, what) in zip(paths, found, strict=True)}
    assert len(modules) > 5
    assert [str(path) for path in modules if not path.with_suffix(".pyi").exists()] == []


def test_every_stub_belongs_to_a_module() -> None:
    assert [path.name for path in build.CORE.rglob("*.pyi") if not path.with_suffix(".pyx").exists()] == []


def test_all_compiled_code_is_in_the_core() -> None:
    everywhere = [path for pattern in ("*.pyx", "*.pxd") for path in (build.ROOT / "kbroker").rglob(pattern)]
    assert [str(path) for path in everywhere if not path.is_relative_to(build.CORE)] == []


def test_setup_py_builds_nothing_when_a_process_of_its_own_build_imports_it() -> None:
    """Python 3.14 starts the processes that Cython translates in by importing setup.py anew in each."""
    script = f"import runpy; runpy.run_path({str(build.ROOT / 'setup.py')!r}, run_name='__mp_main__')"
    done = subprocess.run([sys.executable, "-c", script], cwd=build.ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def constants(path: Path) -> dict[str, str]:
    """Return the constants that the file defines in a `cdef enum`, with their values as they are written."""
    blocks = re.findall(r"^cdef enum[^\n]*:\n((?:    [^\n]*\n|\n)+)", path.read_text(), re.MULTILINE)
    return dict(re.findall(r"^    ([A-Z][A-Z_0-9]*) *= *([^#\n]*[^#\s])", "".join(blocks), re.MULTILINE))


def test_a_constant_is_defined_in_one_file() -> None:
    """A second file takes it from the first by cimport: two definitions would drift apart."""
    files: dict[str, list[str]] = {}
    for path in CYTHON_SOURCES:
        for name in constants(path):
            files.setdefault(name, []).append(str(path.relative_to(build.CORE)))
    found = {name: places for name, places in files.items() if len(places) > 1}
    assert {name: places for name, places in found.items() if name not in LOCAL} == {}
    assert set(LOCAL) - set(found) == set(), "no longer defined twice"


def test_the_scan_for_constants_reads_every_form(tmp_path: Path) -> None:
    path = tmp_path / "some.pxd"
    path.write_text(
        "cdef enum:\n    # A comment.\n    ONE = 1  # one\n\n    LARGE = 64 << 10\nTWO = 2\n"
        "cdef enum kind_t:\n    A_B = -3\n"
    )
    assert constants(path) == {"ONE": "1", "LARGE": "64 << 10", "A_B": "-3"}


def test_error_codes_stand_in_one_place_with_the_numbers_of_the_protocol() -> None:
    constant = re.compile(r"^    ([A-Z_0-9]+) = (-?\d+)", re.MULTILINE)
    one_place = build.CORE / "wire" / "error_codes.pxd"
    codes = {name: int(number) for name, number in constant.findall(one_place.read_text())}
    assert codes
    assert codes == {name: ErrorCode[name] for name in codes}
    elsewhere = [
        f"{path.name}: {name}"
        for path in CYTHON_SOURCES
        if path != one_place
        for name, number in constant.findall(path.read_text())
        if name in ErrorCode.__members__ and ErrorCode[name] == int(number)
    ]
    assert elsewhere == []
