"""Whether the compiled core in use was made from the sources that are here."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from kbroker._core.base import build_info

ROOT = Path(__file__).parent.parent.parent
CORE = ROOT / "kbroker" / "_core"


def python_path() -> str:
    """PYTHONPATH for programs that start in another directory: this tree, then the PYTHONPATH of the test run."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def source_digest() -> str:
    """The digest of the sources, as setup.py computes it for build_info.

    If the two differ, every test run is refused.
    """
    digest = hashlib.sha256()
    for path in sorted(CORE.rglob("*")):
        if path.suffix in {".pyx", ".pxd", ".h"}:
            digest.update(path.relative_to(CORE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def is_current() -> bool:
    return source_digest() == build_info.SOURCE_DIGEST
