"""How a process of `kbroker` ends: an exit code and, after an error, one line on stderr.

0: done. 1: it failed, and stderr has the reason. 2: wrong usage. 130: interrupted. 141: nobody reads stdout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from kbroker.errors import KbrokerError

FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


def outcome(run: Callable[[], int]) -> int:
    """Call `run` and return the exit code."""
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except KbrokerError as error:
        print(f"kbroker: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except OSError as error:
        _forget_output()
        named = f"{error.filename}: " if error.filename else "input or output: "
        print(f"kbroker: {named}{(error.strerror or str(error)).lower()}", file=sys.stderr)
        return FAILED


def _forget_output() -> None:
    """Replace stdout by /dev/null: Python flushes stdout once more at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
