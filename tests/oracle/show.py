"""What both brokers answer to scenarios, for whoever writes one:  python -m tests.oracle.show 'produce.*' [VERSION]

Ports of running brokers may be given as KAFKA_PORT and KBROKER_PORT; `--kafka` asks Kafka only and prints its answers.
"""

from __future__ import annotations

import fnmatch
import json
import os
import sys

from tests.oracle import scenarios
from tests.oracle.answers import Tree, differences
from tests.oracle.matrix import Matrix
from tests.oracle.scenario import SCENARIOS, Run, run

_ = scenarios


def _telling(tree: Tree) -> Tree:
    """Return a tree without empty and default values."""
    if not isinstance(tree, dict):
        return tree
    kept = {key: _telling(value) for key, value in tree.items()}
    return {key: value for key, value in kept.items() if value not in ({}, None, -1, "NONE", "<throttle>", "")}


def _answers(run: Run, words: bool) -> dict[str, Tree]:
    return {step.label: step.words if words and step.words is not None else step.seen for step in run.steps}


def _short(tree: Tree) -> str:
    return json.dumps(tree, default=str)[:400]


def _print(run: Run, words: bool) -> None:
    for label, seen in _answers(run, words).items():
        print(f"  {label}: {json.dumps(_telling(seen), default=str)[:1500]}")
    if run.stopped is not None:
        print(f"  !! {type(run.stopped).__name__}: {run.stopped}")


def main(arguments: list[str]) -> None:
    only_kafka, words = "--kafka" in arguments, "--words" in arguments
    pattern, *versions = [one for one in arguments if not one.startswith("--")]
    cases = [
        (one, version)
        for one in SCENARIOS.values()
        if fnmatch.fnmatch(one.id, pattern)
        for version in one.versions
        if not versions or str(version) in versions or ("max" in versions and version == one.versions[-1])
    ]
    given = {name: int(os.environ[name]) for name in ("KAFKA_PORT", "KBROKER_PORT") if name in os.environ}
    if only_kafka:
        for scenario, version in cases:
            print(f"{scenario.id} v{version}")
            _print(run(scenario, version, "127.0.0.1", given["KAFKA_PORT"]), words)
        return
    with Matrix(given.get("KAFKA_PORT"), given.get("KBROKER_PORT")) as matrix:
        matrix.begin(cases)
        for scenario, version in cases:
            kafka, ours = matrix.of(scenario, version)
            if kafka.stopped is not None:
                print(f"{scenario.id} v{version}: Kafka stopped: {kafka.stopped!r}")
            for path, theirs, mine in differences(_answers(kafka, words), _answers(ours, words)):
                print(f"{scenario.id} v{version}: {path}")
                print(f"    kafka   {_short(theirs)}\n    kbroker {_short(mine)}")


if __name__ == "__main__":
    main(sys.argv[1:])
