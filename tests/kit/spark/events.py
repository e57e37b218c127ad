"""The events that a driver has logged (spark.eventLog), read while it runs or afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def logging_to(folder: Path) -> dict[str, str | bool]:
    """Return the settings of a session that logs its events in `folder`."""
    folder.mkdir(exist_ok=True)
    return {
        "spark_eventLog_enabled": True,
        "spark_eventLog_dir": folder.as_uri(),
        "spark_eventLog_compress": False,
        "spark_eventLog_rolling_enabled": False,
    }


def events(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a kind (as SparkListenerTaskEnd) of all drivers, in the order of each driver."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):  # checksums
            continue
        for line in path.read_text().splitlines():
            try:
                event = json.loads(line)
            except ValueError:  # it is being written
                continue
            if event["Event"] == kind:
                yield event


def speculative_attempts(folder: Path) -> list[tuple[int, int, int]]:
    """Return (stage, task, attempt) of the speculative attempts that have begun."""
    return [
        (event["Stage ID"], event["Task Info"]["Index"], event["Task Info"]["Attempt"])
        for event in events(folder, "SparkListenerTaskStart")
        if event["Task Info"]["Speculative"]
    ]


def reasons_of_failures(folder: Path) -> list[str]:
    """Return the reasons of attempts that did not succeed, as ExecutorLostFailure and TaskKilled."""
    found = (event["Task End Reason"]["Reason"] for event in events(folder, "SparkListenerTaskEnd"))
    return [reason for reason in found if reason != "Success"]
