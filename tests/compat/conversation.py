"""What a driver in Python is told and answers: its scenarios, and the steps of the scenario `transactions`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Json = dict[str, Any]


def answer(found: Json) -> None:
    print(json.dumps(found), flush=True)


def run(scenarios: dict[str, Callable[[Json], Json]]) -> None:
    """Do the scenarios of the command line, each with the arguments behind it, and print what each found."""
    for name, arguments in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        answer(scenarios[name](json.loads(arguments)))


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
