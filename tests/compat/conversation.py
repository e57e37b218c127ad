"""The scenario `transactions` of tests/compat/README.md, for the drivers in Python: steps come in, answers go out."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Json = dict[str, Any]


def answer(found: Json) -> None:
    print(json.dumps(found), flush=True)


def converse(known: dict[str, Callable[[Json], Json | None]], errors: type[Exception]) -> Json:
    """Do each step and print its answer; an error of the client library is an answer too."""
    while line := sys.stdin.readline():
        step = json.loads(line)
        try:
            answer({"ok": True, **(known[step["do"]](step) or {})})
        except errors as error:
            answer({"ok": False, "error": f"{type(error).__name__}: {error}"})
    return {}


async def converse_async(known: dict[str, Callable[[Json], Awaitable[Json | None]]], errors: type[Exception]) -> Json:
    while line := await asyncio.to_thread(sys.stdin.readline):
        step = json.loads(line)
        try:
            answer({"ok": True, **(await known[step["do"]](step) or {})})
        except errors as error:
            answer({"ok": False, "error": f"{type(error).__name__}: {error}"})
    return {}
