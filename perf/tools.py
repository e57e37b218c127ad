"""The load tools: our C programs, built here, and librdkafka's own performance tool, built from its npm package."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("KBROKER_CACHE", Path.home() / ".cache" / "kbroker"))
RDKAFKA_PACKAGE = "node-rdkafka@3.6.1"


def c_program(name: str, *options: str) -> str:
    """Return the path of perf/c/<name>.c, compiled with `options`. It is compiled again when a source is newer."""
    source, target = HERE / "c" / f"{name}.c", CACHE / "perf" / name
    inputs = [source, HERE / "c" / "wire.h", HERE.parent / "kbroker" / "_core" / "wire" / "crc.h"]
    if not target.exists() or any(path.stat().st_mtime > target.stat().st_mtime for path in inputs):
        target.parent.mkdir(parents=True, exist_ok=True)
        warnings = ("-Wall", "-Wextra", "-Wno-unused-function")
        subprocess.run(["gcc", "-O2", *warnings, "-o", str(target), str(source), *options], check=True)
    return str(target)


def drive(*arguments: object, timeout_s: float = 300) -> dict[str, Any]:
    """Run one mode of drive.c, and return the JSON that it prints."""
    done = subprocess.run(
        [c_program("drive"), *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"drive {' '.join(map(str, arguments))}: {done.stderr.strip() or done.stdout.strip()}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


class Loop:
    """One of loop.c's servers, as a context manager; `result` is what it printed after the last connection closed."""

    def __init__(self, mode: str, port: int, *arguments: object):
        self.process = subprocess.Popen(
            [c_program("loop"), mode, str(port), *map(str, arguments)], stdout=subprocess.PIPE, text=True
        )
        self.result: dict[str, Any] = {}

    def __enter__(self) -> Loop:
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError("the loop did not start")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            output, _errors = self.process.communicate(timeout=20)
            self.result = json.loads(output)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def rdkafka_performance() -> str:
    """Return the path of librdkafka's rdkafka_performance."""
    return str(librdkafka() / "examples" / "rdkafka_performance")


def transact() -> str:
    """Return the path of perf/c/transact.c, compiled."""
    source = librdkafka() / "src"
    return c_program("transact", f"-isystem{source}", f"-L{source}", f"-Wl,-rpath,{source}", "-lrdkafka", "-lpthread")


def librdkafka() -> Path:
    """Return librdkafka's source tree, in which its library and performance tool are built.

    It is built once, in the cache, in about a minute.
    """
    folder = CACHE / "rdkafka"
    library = folder / "package" / "deps" / "librdkafka"
    program = library / "examples" / "rdkafka_performance"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", RDKAFKA_PACKAGE, "--silent"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(folder.glob("node-rdkafka-*.tgz"))) as archive:
            wanted = [m for m in archive.getmembers() if m.name.startswith("package/deps/librdkafka/")]
            archive.extractall(folder, members=wanted, filter="data")
        for path in [library / "configure", *library.glob("mklove/modules/*"), *library.glob("*.sh")]:
            path.chmod(0o755)
        options = ["--disable-gssapi", "--disable-sasl", "--disable-curl"]
        for command in (
            ["./configure", *options],
            ["make", "-C", "src", "-j2"],
            ["make", "-C", "examples", program.name],
        ):
            subprocess.run(command, cwd=library, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return library
