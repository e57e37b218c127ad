"""Java programs that tests run. Our own ones are compiled again when their sources or their jars have changed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.kit.kafka import maven

# What is made from our sources belongs to this checkout; the cache is shared with others.
BUILD = Path(__file__).parent.parent.parent.parent / "build" / "compat"


def java(classpath: str, *options: str) -> list[str]:
    """Return the command to which a class name and arguments are added.

    No program of a test lives long enough to get back what the second compiler and a collector with many threads cost.
    """
    return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *options, "-cp", classpath]


def compile_java(
    folder: Path, program: str, version: str, *coordinates: str, options: tuple[str, ...] = ("-Xmx512m",)
) -> list[str]:
    """Compile a Java program, once for each version of its jars, and return the command that runs it."""
    others = ["com.fasterxml.jackson.core:jackson-databind:2.18.2", "org.slf4j:slf4j-nop:1.7.36"]
    classpath = maven.fetch([*coordinates, *others])
    sources, target = sorted(folder.glob("*.java")), BUILD / f"{program}-{version}"
    compiled = target / f"{program}.class"
    with maven.making(target):
        if not compiled.exists() or compiled.stat().st_mtime < max(one.stat().st_mtime for one in sources):
            subprocess.run(["javac", "-nowarn", "-cp", classpath, "-d", str(target), *map(str, sources)], check=True)
    return [*java(f"{target}{os.pathsep}{classpath}", *options), program]
