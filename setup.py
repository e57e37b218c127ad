"""Builds one extension per .pyx of kbroker/_core; project metadata is in pyproject.toml.

KBROKER_BUILD selects the build: release (default), debug (bounds checks, assertions, live-object
counters), asan (debug under the address and undefined-behaviour sanitizers) or fuzz (asan and a fuzzer's coverage
counters, by clang). tools/variant_tree.py makes the last three beside the build in use. none: no extensions at all, for
installing a tree whose extensions are compiled in place.
KBROKER_WARNINGS=error translates everything anew, in a folder of its own, and fails at the first warning of Cython.
"""

import hashlib
import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup

BUILD = os.environ.get("KBROKER_BUILD", "release")
FUZZ_SANITIZERS = "-fsanitize=address,undefined,fuzzer-no-link"
FLAGS: dict[str, tuple[list[str], list[str]]] = {
    "none": ([], []),
    "release": (["-O3", "-g1"], []),
    "debug": (["-O1", "-g", "-UNDEBUG", "-DKBROKER_DEBUG=1"], []),
    "asan": (
        ["-O1", "-g", "-UNDEBUG", "-DKBROKER_DEBUG=1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"],
        ["-fsanitize=address,undefined"],
    ),
    "fuzz": (
        ["-O1", "-g", "-UNDEBUG", "-DKBROKER_DEBUG=1", "-fno-omit-frame-pointer", FUZZ_SANITIZERS],
        [FUZZ_SANITIZERS],
    ),
}
if BUILD not in FLAGS:
    raise SystemExit(f"KBROKER_BUILD={BUILD!r} is none of {', '.join(FLAGS)}")
COMPILE, LINK = FLAGS[BUILD]

CORE = Path("kbroker/_core")
STRICT = os.environ.get("KBROKER_WARNINGS") == "error"
Options.warning_errors = STRICT
# Of .pxd files cythonize knows itself who uses them: it writes those modules' C anew, and nobody else's.
HEADERS = sorted(str(path) for path in CORE.rglob("*.h"))


def source_digest() -> str:
    """Digest of everything the compiled core is made from; the test run compares it with the build's."""
    digest = hashlib.sha256()
    for path in sorted(CORE.rglob("*")):
        if path.suffix in {".pyx", ".pxd", ".h"}:
            digest.update(path.relative_to(CORE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def extension(source: Path) -> Extension:
    macros, depends = [], HEADERS
    if source.stem == "build_info":
        depends = HEADERS + [str(path) for pattern in ("*.pyx", "*.pxd") for path in CORE.rglob(pattern)]
        macros = [("KBROKER_BUILD_NAME", f'"{BUILD}"'), ("KBROKER_SOURCE_DIGEST", f'"{source_digest()}"')]
    return Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        define_macros=macros,
        extra_compile_args=["-std=gnu11", "-fvisibility=hidden", "-Wno-unused-function", *COMPILE],
        extra_link_args=[*LINK],
        libraries=["pthread"],
        depends=depends,
    )


def sources() -> list[Path]:
    """What is compiled: engines for tests in place only, where tests find them."""
    found = sorted(CORE.rglob("*.pyx"))
    return found if "--inplace" in sys.argv else [path for path in found if path.parent.name != "probes"]


DEBUG = BUILD != "release"
# Cython translates in processes of its own; from Python 3.14 on each of them imports this file first.
if __name__ == "__main__":
    setup(
        options={"build_ext": {"parallel": os.cpu_count() or 1}},
        ext_modules=cythonize(
            [extension(path) for path in sources()] if BUILD != "none" else [],
            nthreads=0 if STRICT else int(os.environ.get("KBROKER_BUILD_JOBS", os.cpu_count() or 1)),
            build_dir="build/cython-strict" if STRICT else f"build/cython-{BUILD}",
            force=STRICT,
            compiler_directives={
                "language_level": 3,
                "boundscheck": DEBUG,
                "wraparound": False,
                "initializedcheck": DEBUG,
                "cdivision": True,
                "embedsignature": True,
                "binding": True,
                "freethreading_compatible": False,
                "warn.unused": True,
                "warn.maybe_uninitialized": True,
                "warn.multiple_declarators": True,
            },
        ),
    )
