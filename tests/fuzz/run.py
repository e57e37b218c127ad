"""`make fuzz`: coverage-guided fuzzing of every target, by libFuzzer through atheris, in the sanitized fuzzing build.

    make fuzz SECONDS=600 TARGETS="batch segment"

What libFuzzer finds on its way stays in build/fuzz-corpus and is where the next run goes on. A finding is written to
build/fuzz-findings, with the command that shows it again. `--keep` moves what covers most into tests/fuzz/corpus.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from random import Random

from tests.fuzz.target import HERE, Target

BUILD = HERE.resolve().parent.parent / "build"
GROWN, FINDINGS, KEPT = BUILD / "fuzz-corpus", BUILD / "fuzz-findings", BUILD / "fuzz-kept"
MEMORY_LIMIT_MB = 2000
ONE_INPUT_TIMEOUT_S = 20
CHANGED = 0.3
"""Of the inputs of a target that has a change of its own."""
KEPT_BYTES = 5_000
"""Of the corpus that is kept of one target, in the size of its inputs."""


def all_targets() -> dict[str, Target]:
    from tests.fuzz.targets import TARGETS

    return TARGETS


def fuzz_one(name: str, folder: Path, options: list[str]) -> None:
    """In a process of its own: libFuzzer does not return. Python code counts as covered too, so it is imported here."""
    import atheris

    os.environ["LD_PRELOAD"] = os.environ.get("LD_PRELOAD", "").partition(":")[0]

    with atheris.instrument_imports(include=["kbroker"]):
        target = all_targets()[name]

    def one(data: bytes) -> None:
        target.feed(bytes(data))

    def mutate(data: bytearray, max_size: int, seed: int) -> bytes | bytearray:
        random = Random(seed)
        if target.change is None or random.random() >= CHANGED:
            return atheris.Mutate(data, max_size)
        changed = target.change(bytes(data), random)
        return changed if 0 < len(changed) <= max_size else atheris.Mutate(data, max_size)

    FINDINGS.mkdir(parents=True, exist_ok=True)
    limits = [
        f"-max_len={target.max_size}",
        f"-rss_limit_mb={MEMORY_LIMIT_MB}",
        f"-timeout={ONE_INPUT_TIMEOUT_S}",
        f"-artifact_prefix={FINDINGS / target.name}-",
        "-print_final_stats=1",
    ]
    # Merging starts the fuzzer again, through a shell, by what it takes for its name.
    again = f"{sys.executable} -m tests.fuzz.run --one {target.name} --"
    atheris.Setup([again, str(folder), *limits, *options], one, **({"custom_mutator": mutate} if target.change else {}))
    atheris.Fuzz()


def unpack(target: Target) -> Path:
    """The target's corpus as the folder of files that libFuzzer wants."""
    folder = GROWN / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.inputs()):
        (folder / f"kept-{number:04d}").write_bytes(data)
    return folder


def environment_of(target: Target) -> dict[str, str]:
    """libFuzzer, which is loaded before the interpreter, finds atheris' hook for changes only if that is too. Nothing
    but Python can be started with it."""
    hook = find_spec("atheris.custom_mutator")
    if target.change is None or hook is None or hook.origin is None:
        return dict(os.environ)
    return {**os.environ, "LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')}:{hook.origin}"}


def run(target: Target, seconds: float) -> bool:
    """One target for so long; whether nothing was found."""
    folder = unpack(target)
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.run",
        "--one",
        target.name,
        "--",
        f"-max_total_time={max(1, round(seconds))}",
    ]
    print(f"--- {target.name}: {seconds:.0f} s from {len(list(folder.iterdir()))} inputs", flush=True)
    started = time.monotonic()
    output = BUILD / f"fuzz-{target.name}.txt"
    with output.open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment_of(target), check=False)
    text = output.read_text(errors="replace")
    stats = dict(line.rsplit(":", 1) for line in text.splitlines() if line.startswith("stat::"))
    coverage = [line.split() for line in text.splitlines() if line.startswith("#") and " cov: " in line]
    covered = coverage[-1][coverage[-1].index("cov:") + 1] if coverage else "?"
    print(
        f"    {stats.get('stat::number_of_executed_units', '?').strip()} inputs in {time.monotonic() - started:.0f} s, "
        f"{covered} edges, {stats.get('stat::peak_rss_mb', '?').strip()} MB",
        flush=True,
    )
    if done.returncode:
        print(f"    FOUND SOMETHING, see {output}\n{text[-3000:]}", flush=True)
    return done.returncode == 0


def keep(target: Target) -> None:
    """The smallest inputs that cover what the grown corpus covers, as far as they fit, into the repository."""
    folder, kept = unpack(target), KEPT / target.name
    kept.mkdir(parents=True, exist_ok=True)
    for old in kept.iterdir():
        old.unlink()
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.run",
        "--one",
        target.name,
        "--into",
        str(kept),
        "--",
        "-merge=1",
        str(folder),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seeds = set(target.seeds())
    named = [line for line in old_lines(target) if "#" in line]
    spent, lines = 0, list(named)
    already = {bytes.fromhex(line.partition("#")[0]) for line in named} | seeds
    for data in sorted((path.read_bytes() for path in kept.iterdir()), key=len):
        if data in already or spent + len(data) > KEPT_BYTES:
            continue
        spent += len(data)
        lines.append(data.hex())
    target.corpus_path.write_text("".join(f"{line}\n" for line in lines))
    print(f"{target.name}: {len(lines)} inputs, {spent} bytes")


def old_lines(target: Target) -> list[str]:
    return target.corpus_path.read_text().splitlines() if target.corpus_path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz.run", description="Fuzz what reads bytes from outside.")
    parser.add_argument("targets", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=float, default=600, help="for all targets together")
    parser.add_argument("--keep", action="store_true", help="write tests/fuzz/corpus from what was found")
    parser.add_argument("--show", type=Path, help="feed this file (of build/fuzz-findings) to the target")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    own, behind = sys.argv[1:], []
    if "--" in own:
        behind = own[own.index("--") + 1 :]
        own = own[: own.index("--")]
    arguments = parser.parse_args(own)
    if arguments.one:
        fuzz_one(arguments.one, arguments.into or GROWN / arguments.one, behind)
        return 0
    targets = all_targets()
    unknown = [name for name in arguments.targets if name not in targets]
    if unknown:
        parser.error(f"unknown target {unknown[0]}; targets are: {', '.join(targets)}")
    chosen = [targets[name] for name in arguments.targets or targets]
    if arguments.show:
        for target in chosen:
            target.feed((FINDINGS / arguments.show).read_bytes())
        return 0
    if arguments.keep:
        for target in chosen:
            keep(target)
        return 0
    shares = sum(target.share for target in chosen)
    quiet = [run(target, arguments.seconds * target.share / shares) for target in chosen]
    if not all(quiet):
        print(
            f"findings are in {FINDINGS}; show one again: make fuzz TARGETS=name ARGS='--show name-crash-...'",
            file=sys.stderr,
        )
    return 0 if all(quiet) else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    sys.exit(main())
