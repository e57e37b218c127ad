"""Jars from Maven Central, with what they depend on, in a cache that works offline once it is filled.

`fetch(["org.apache.kafka:kafka-clients:3.9.1"])` is a class path for `java -cp`. Coordinates are always pinned to a
version. The cache is `$KBROKER_CACHE` (default `~/.cache/kbroker`); one directory per set of coordinates. `mvn` is run
at most once per set, and nothing is downloaded when the directory is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"
TIMEOUT_S = 600


class MavenFailed(Exception):
    """The jars are neither cached nor can they be fetched; the message says what Maven said."""


def cache_directory() -> Path:
    """The directory with everything that tests download."""
    return Path(os.environ.get("KBROKER_CACHE") or Path.home() / ".cache" / "kbroker")


@contextlib.contextmanager
def making(place: Path) -> Iterator[None]:
    """Hold a lock while making `target`. Other processes wait for it, and find what was made."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def jars(coordinates: Sequence[str], *, alone: bool = False) -> list[Path]:
    """The jars of `group:artifact:version` coordinates and of all they need at run time, sorted by name; `alone`: only
    these themselves.
    """
    wanted = sorted(coordinates)
    for one in wanted:
        if one.count(":") != 2:
            raise ValueError(f"{one!r} is not group:artifact:version")
    key = hashlib.sha256("\n".join([*wanted, *["alone"] * alone]).encode()).hexdigest()[:16]
    home = cache_directory() / "maven" / key
    with making(home):
        if not home.is_dir():
            _download(wanted, home, alone)
    return sorted(home.glob("*.jar"))


def jar(coordinate: str) -> Path:
    """Return the single jar of a coordinate, without its dependencies."""
    _, artifact, version = coordinate.split(":")
    (found,) = (path for path in jars([coordinate]) if path.name == f"{artifact}-{version}.jar")
    return found


def fetch(coordinates: Sequence[str], first: Sequence[Path] = ()) -> str:
    """Return a class path of `jars(coordinates)`, with `first` in front of them."""
    return os.pathsep.join(str(path) for path in [*first, *jars(coordinates)])


def _download(coordinates: Sequence[str], home: Path, alone: bool) -> None:
    with tempfile.TemporaryDirectory(dir=home.parent) as work:
        pom = Path(work) / "pom.xml"
        target = Path(work) / "jars"
        target.mkdir()
        pom.write_text(_pom(coordinates, alone))
        command = ["mvn", "--quiet", "--batch-mode", "--file", str(pom), f"{PLUGIN}:copy-dependencies"]
        command += [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        except FileNotFoundError as error:
            raise MavenFailed("mvn is not installed; it fetches the jars that tests compare with") from error
        if done.returncode:
            raise MavenFailed(f"mvn could not fetch {', '.join(coordinates)}:\n{done.stdout}{done.stderr}")
        (target / "coordinates.txt").write_text("\n".join(coordinates) + "\n")
        target.rename(home)


def _pom(coordinates: Sequence[str], alone: bool) -> str:
    nothing_else = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{nothing_else * alone}</dependency>"
        for group, artifact, version in (one.split(":") for one in coordinates)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>kbroker</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
