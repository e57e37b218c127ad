"""`make profile`: which functions a broker spends its time in while a load of `perf/c/drive.c` runs (LOAD=...).

Compiled code and the kernel by Linux perf: CPU samples of all threads; what the kernel does counts for the system call
it does it for. Python by py-spy: samples of whoever holds the GIL, as shares of the wall time, so the rest of it is
time in which nothing of Python ran. Writes build/profile/<load>.txt and prints its first lines.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from perf import tools
from perf.peers import Kbroker
from perf.transaction_rows import commit_transactions
from tests.kit.clients.group_load import time_rebalance

TARGET = Path(__file__).parent.parent / "build" / "profile"
SHOWN = 25
WRITTEN = 200
SAMPLES_PER_S = 999
PYTHON_SAMPLES_PER_S = 250
PARTITIONS = 4
NO_PERF = "no profile of compiled code: install Linux perf (Debian: apt install linux-perf)"
NO_PYTHON = "no profile of Python: install py-spy (it is in the extra perf: make .venv/test-installed)"


# --- loads: each runs for about `seconds` ------------------------------------------------------------
def produce(broker: Kbroker, seconds: float) -> None:
    """Batches of 900 records of 1 KiB, acks=1, two connections."""
    tools.drive("produce", broker.port, "load", PARTITIONS, 1024, 900, 2, 4, int(seconds), 1)


def consume(broker: Kbroker, seconds: float) -> None:
    """Fetches of 1 MiB from the start, again and again."""
    tools.drive("fetch", broker.port, "load", PARTITIONS, 1 << 20, int(seconds))


def small_requests(broker: Kbroker, seconds: float) -> None:
    """One record of 100 bytes in each request, 64 connections, one request in flight on each."""
    tools.drive("produce", broker.port, "load", PARTITIONS, 100, 1, 64, 1, int(seconds), 1)


def groups(broker: Kbroker, seconds: float) -> None:
    """Groups of 50 members that come together, lose one and rebalance, one group after the other."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time_rebalance("127.0.0.1", broker.port, f"{time.monotonic_ns()}", 50)


def transactions(broker: Kbroker, seconds: float) -> None:
    """Transactions of one record by 32 producers that commit one after the other."""
    commit_transactions(broker, "load", 32, 1, seconds)


LOADS: dict[str, Callable[[Kbroker, float], None]] = {
    "produce": produce,
    "consume": consume,
    "small-requests": small_requests,
    "groups": groups,
    "transactions": transactions,
}


# --- compiled code -----------------------------------------------------------------------------------
def record_compiled(pid: int, seconds: float, data: Path) -> str:
    """Record with Linux perf. Return why that failed, or an empty string."""
    command = ["perf", "record", "-q", "-F", str(SAMPLES_PER_S), "-e", "cpu-clock", "-g"]
    return recorded([*command, "-p", str(pid), "-o", str(data), "--", "sleep", str(seconds)], NO_PERF)


def compiled_functions(data: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the number of samples by function, and by thread."""
    script = subprocess.run(
        ["perf", "script", "-i", str(data), "-F", "comm,ip,sym,dso"], capture_output=True, text=True, check=True
    )
    functions: Counter[str] = Counter()
    threads: Counter[str] = Counter()
    for sample in script.stdout.strip().split("\n\n"):
        thread, *frames = [line.strip() for line in sample.splitlines()]
        if frames:
            threads[thread] += 1
            functions[sampled(frames)] += 1
    return functions, threads


FRAME = re.compile(r"[0-9a-f]+ (?P<symbol>.*) \((?P<file>.*)\)$")


def sampled(frames: list[str]) -> str:
    """Return the function that a sample counts for. The innermost frame comes first in `frames`."""
    leaf = FRAME.match(frames[0])
    if leaf is None:
        return frames[0]
    if leaf["file"] != "[kernel.kallsyms]":
        return f"{readable(leaf['symbol'])}  ({Path(leaf['file']).name.partition('.')[0]})"
    for frame in frames:
        call = re.search(r" __(?:x64|arm64|se)_sys_(\w+)", frame)
        if call:
            return f"{call[1]}  (system call)"
    if any("exit_to_user_mode_loop" in frame for frame in frames):
        return "preempted: other threads wanted the core"
    return "interrupts and the rest of the kernel"


def readable(symbol: str) -> str:
    """Return the name that a function of Cython has in its source; other symbols as they are."""
    found = re.match(r"__pyx_[a-z]+_(?=\d)", symbol)
    if found is None:
        return symbol
    rest, names = symbol[found.end() :], []
    while length := re.match(r"\d+", rest):
        begin, size = length.end(), int(length[0])
        names.append(rest[begin : begin + size])
        rest = rest[begin + size :].removeprefix("_")
    return ".".join([*names[2:], *([rest] if rest else [])])


# --- Python ------------------------------------------------------------------------------------------
def record_python(pid: int, seconds: float, data: Path) -> str:
    """Record with py-spy. Return why that failed, or an empty string."""
    beside = Path(sys.executable).with_name("py-spy")
    command = [str(beside) if beside.exists() else "py-spy", "record", "--gil", "--format", "raw"]
    command += ["--rate", str(PYTHON_SAMPLES_PER_S), "--duration", str(max(int(seconds), 1))]
    return recorded([*command, "--pid", str(pid), "--output", str(data)], NO_PYTHON)


def python_functions(data: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the number of samples in each function itself, and in it or in what it called."""
    itself: Counter[str] = Counter()
    together: Counter[str] = Counter()
    for line in data.read_text().splitlines() if data.exists() else ():
        stack, _, count = line.rpartition(" ")
        frames = [re.sub(r":\d+\)$", ")", frame) for frame in stack.split(";")]
        itself[frames[-1]] += int(count)
        for frame in set(frames):
            together[frame] += int(count)
    return itself, together


# --- together ----------------------------------------------------------------------------------------
def profile(load: str, seconds: float) -> list[str]:
    """Run a load, and return the lines of its tables."""
    TARGET.mkdir(parents=True, exist_ok=True)
    compiled_data, python_data = TARGET / f"{load}.perf", TARGET / f"{load}.raw"
    for path in (compiled_data, python_data):
        path.unlink(missing_ok=True)
    with Kbroker({"log.retention.bytes": 1 << 30, "log.segment.bytes": 1 << 28}) as broker:
        broker.create_topic("load", PARTITIONS)
        if load == "consume":
            produce(broker, 2)
        running = threading.Thread(target=LOADS[load], args=(broker, 2 * seconds + 3), daemon=True)
        running.start()
        time.sleep(0.5)
        cpu, began = broker.cpu_seconds(), time.monotonic()
        problems = [record_compiled(broker.pid, seconds, compiled_data)]
        cores = (broker.cpu_seconds() - cpu) / (time.monotonic() - began)
        problems.append(record_python(broker.pid, seconds, python_data))  # later: it stops the process for each sample
        running.join()
    lines = [f"{load}: {LOADS[load].__doc__}", f"The broker used {cores:.2f} cores.", ""]
    if compiled_data.exists():
        functions, threads = compiled_functions(compiled_data)
        lines += share_lines("CPU by thread", threads, threads.total())
        lines += share_lines("CPU by compiled function", functions, functions.total())
    if python_data.exists():
        itself, together = python_functions(python_data)
        wall = max(int(seconds), 1) * PYTHON_SAMPLES_PER_S
        lines += share_lines("GIL by Python function, of the wall time", itself, wall)
        lines += share_lines("GIL by Python function with what it calls, of the wall time", together, wall)
    return lines + [problem for problem in problems if problem]


def recorded(command: list[str], missing: str) -> str:
    """Run a recorder. Return why it failed (`missing` if it is not installed), or an empty string."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return missing
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return f"{Path(command[0]).name} failed: {' '.join(said[-3:])}" if done.returncode else ""


def share_lines(title: str, counts: Counter[str], of: int) -> list[str]:
    lines = [f"{100 * count / of:6.1f} %  {what}" for what, count in counts.most_common(WRITTEN)]
    return [f"{title}:", *(lines or ["  (nothing)"]), ""]


def first_lines(lines: list[str]) -> list[str]:
    """Return what is printed: the first rows of each table."""
    shown, rows = [], 0
    for line in lines:
        rows = rows + 1 if " %  " in line else 0
        if rows <= SHOWN:
            shown.append(line)
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", nargs="?", choices=LOADS, default="produce")
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    lines = profile(arguments.load, arguments.seconds)
    target = TARGET / f"{arguments.load}.txt"
    target.write_text("\n".join(lines) + "\n")
    print("\n".join(first_lines(lines)))
    print(f"more of it in {target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target}")
    return 0 if any(" %  " in line for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
