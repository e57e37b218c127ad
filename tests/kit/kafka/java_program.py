"""Java programs that tests run. Our own ones are compiled again when their sources or their jars have changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kit.kafka import maven

# What is made from our sources belongs to this checkout; the cache is shared with others.
BUILD = Path(__file__).parent.parent.parent.parent / "build" / "compat"

ARCHIVE_MAGIC = (0xF00BABA8).to_bytes(4, "little")
"""Of the classes that a program has left: the first bytes of the file, which the JVM writes last."""

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM. No program of a test lives long enough to get back what the second compiler and a collector with
many threads cost."""


def java(classpath: str, *options: str, archive: Path | None = None) -> list[str]:
    """Return the command to which a class name and arguments are added.

    `archive` is where classes are kept from one program to the next; None: in the cache, as the jars are, for all that
    have these jars and options.
    """
    if archive is None:
        made_with = "\0".join([os.path.realpath(shutil.which("java") or "java"), classpath, *options])
        archive = maven.cache_directory() / "classes" / f"{hashlib.sha256(made_with.encode()).hexdigest()[:16]}.jsa"
    return ["java", *SHORT_LIVED, *_kept_classes(archive), *options, "-cp", classpath]


def _kept_classes(archive: Path) -> list[str]:
    """Options that spare half of a program's start: it maps the classes that another one has left when it ended.

    The first program leaves them. What the JVM says of it goes nowhere: tests read what programs print.
    """
    silent = ["-Xshare:auto", "-Xlog:disable"]
    try:
        with archive.open("rb") as file:
            is_whole = file.read(len(ARCHIVE_MAGIC)) == ARCHIVE_MAGIC  # written last
    except FileNotFoundError:
        archive.parent.mkdir(parents=True, exist_ok=True)
        return [f"-XX:ArchiveClassesAtExit={archive}", *silent]
    return [f"-XX:SharedArchiveFile={archive}", *silent] if is_whole else []


def compile_java(
    folder: Path, program: str, version: str, *coordinates: str, options: tuple[str, ...] = ("-Xmx512m",)
) -> list[str]:
    """Compile a Java program, once for each version of its jars, and return the command that runs it."""
    others = ["com.fasterxml.jackson.core:jackson-databind:2.18.2", "org.slf4j:slf4j-nop:1.7.36"]
    classpath = maven.fetch([*coordinates, *others])
    sources, target = sorted(folder.glob("*.java")), BUILD / f"{program}-{version}"
    compiled, archive = target / f"{program}.jar", target / "classes.jsa"
    with maven.making(target):
        if not compiled.exists() or compiled.stat().st_mtime < max(one.stat().st_mtime for one in sources):
            subprocess.run(["javac", "-nowarn", "-cp", classpath, "-d", str(target), *map(str, sources)], check=True)
            archive.unlink(missing_ok=True)
            with zipfile.ZipFile(compiled, "w") as jar:  # the JVM archives no classes from folders
                for path in sorted(target.rglob("*.class")):
                    jar.write(path, path.relative_to(target))
    return [*java(f"{compiled}{os.pathsep}{classpath}", *options, archive=archive), program]


class AskedProgram:
    """A running program that answers each line of words, separated by tabs, with another, as a context manager."""

    def __init__(self, command: Sequence[str], is_silent: bool = False):
        """`is_silent`: what the program writes to stderr is dropped."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if is_silent else None,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def words(self, *words: object) -> list[str]:
        """Ask, and return the words of the answer. AssertionError if the program has ended."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"{self._process.args}: has ended")
        return line.rstrip("\n").split("\t")
