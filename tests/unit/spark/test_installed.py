"""What is missing for Spark is said in one line. Each in an interpreter of its own, without a JVM."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.spark import installed
from kbroker.spark.installed import NotInstalled
from tests.kit.build import ROOT


def run(code: str, python: str = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    return subprocess.run(
        [python, "-c", code], env=kept | environment, capture_output=True, text=True, timeout=60, check=False
    )


def complaint(code: str = "import kbroker.spark; kbroker.spark.session()", **environment: str) -> str:
    """The last line of what it dies with."""
    done = run(code, **environment)
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1].removeprefix("kbroker.spark.installed.NotInstalled: ")


def test_an_interpreter_without_pyarrow_is_named_before_sparks_next_process_dies_of_it() -> None:
    said = complaint(
        "import sys; sys.modules['pyarrow'] = None; from kbroker.spark.source import KbrokerSource; KbrokerSource({})"
    )
    assert said.startswith(f"{sys.executable}, which Spark runs, has no pyarrow: name the interpreter that has ")


@pytest.mark.parametrize("program", ["report lake", "trend"])
def test_an_example_without_pyspark_is_one_line(program: str) -> None:
    name, *arguments = program.split()
    code = (
        f"import sys; sys.modules['pyspark'] = None; sys.argv[1:] = {arguments}; import examples.activity.{name} as it"
    )
    done = run(f"{code}; it.main()", PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    assert done.stderr.startswith(f"{name}: pyspark is not installed: pip install ") and done.stderr.count("\n") == 1


def program(folder: Path, text: str, name: str = "java") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def java(folder: Path, version: str) -> Path:
    return program(folder, f"""echo 'openjdk version "{version}" 2020-01-01' >&2""")


def module(folder: Path, name: str, version: str) -> str:
    """Make a module of that version, and return its folder for PYTHONPATH."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(f"__version__ = {version!r}\n")
    return str(folder)


def test_java_is_looked_for_where_spark_looks(tmp_path: Path) -> None:
    assert (
        complaint(PATH=str(tmp_path)) == "Java is not installed: Spark needs 17 or later, on the PATH or in JAVA_HOME"
    )
    assert complaint(JAVA_HOME=str(tmp_path)).startswith(f"JAVA_HOME={tmp_path} has no bin/java: Spark needs Java 17")


@pytest.mark.parametrize(("version", "number"), [("1.8.0_292", 8), ("11.0.2", 11), ("16", 16)])
def test_java_that_is_too_old_is_named(tmp_path: Path, version: str, number: int) -> None:
    old = java(tmp_path, version)
    assert (
        complaint(PATH=str(tmp_path)) == f"{old} is Java {number}: Spark needs 17 or later; JAVA_HOME may name another"
    )


@pytest.mark.parametrize("version", ["17.0.1", "21", "25-ea"])
def test_newer_java_is_taken(tmp_path: Path, version: str) -> None:
    assert installed.java_version(str(java(tmp_path, version))) == int(version[:2])


def test_what_is_no_java_is_said_to_be_none(tmp_path: Path) -> None:
    odd = program(tmp_path, "echo what >&2")
    assert complaint(PATH=str(tmp_path)) == f"{odd} does not say which Java it is: what"
    broken = tmp_path / "home" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("")
    assert complaint(JAVA_HOME=str(tmp_path / "home")).startswith(f"{broken} cannot be run: ")


@pytest.mark.parametrize("name", ["pyspark", "pyarrow"])
def test_a_library_that_is_missing_is_named(name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; import kbroker.spark; kbroker.spark.session()"
    assert complaint(code) == f"{name} is not installed: pip install 'pyspark>=4.2' 'pyarrow>=18' cryptography"


@pytest.mark.parametrize(
    ("name", "version", "says"),
    [
        ("pyspark", "4.1.4", "PySpark 4.1.4 is too old for format kbroker: install pyspark>=4.2"),
        ("pyspark", "3.5.9", "PySpark 3.5.9 is too old for format kbroker: install pyspark>=4.2"),
        ("pyarrow", "17.0.0", "pyarrow 17.0.0 is too old: install pyarrow>=18"),
    ],
)
def test_a_library_that_is_too_old_is_named(tmp_path: Path, name: str, version: str, says: str) -> None:
    assert complaint(PYTHONPATH=module(tmp_path, name, version)) == says


def test_newer_versions_are_taken() -> None:
    for version in ("4.2.0", "4.2.1.dev0", "4.10.0", "5.0.0"):
        installed.check_pyspark(version)


def test_another_spark_than_that_of_pyspark_is_named(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.5.1.jar").write_text("")
    assert complaint(SPARK_HOME=str(tmp_path)).startswith(f"SPARK_HOME={tmp_path} is Spark 3.5.1, but PySpark is 4.")


def test_an_interpreter_without_kbroker_is_named(tmp_path: Path) -> None:
    bare = program(tmp_path, f'exec {sys.executable} -I -S "$@"', "python")
    said = complaint(PYSPARK_PYTHON=str(bare))
    assert said.startswith(
        f"{bare}, which PYSPARK_PYTHON names, cannot import kbroker and pyarrow: ModuleNotFoundError"
    )
    assert said.endswith(f"begin with PYSPARK_PYTHON={sys.executable}")
    assert "cannot be run" in complaint(PYSPARK_PYTHON=str(tmp_path / "none"))
    other = program(tmp_path, "echo 3 9", "other")
    assert f"{other}, which PYSPARK_PYTHON names, is Python 3.9, and this is" in complaint(PYSPARK_PYTHON=str(other))
    with pytest.raises(NotInstalled):
        installed.check_interpreter(str(bare), "x")
    installed.check_interpreter(sys.executable, "x")


def test_importing_the_package_costs_little_and_needs_nothing() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "import kbroker.spark; print([name for name in ('kbroker.client', 'ssl', 'numpy') if name in sys.modules])"
    )
    assert run(code).stdout == "[]\n"


def test_the_format_costs_little_before_it_is_used() -> None:
    """Spark imports it in a process of its own whenever somebody names a Python source."""
    code = "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_kbroker\n" + (
        "print(sorted(name for name in set(sys.modules) - before if name.count('.') < 2))"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    ours = {"pyspark_kbroker", "kbroker", "kbroker.errors", "kbroker.model", "kbroker.spark"}
    assert set(ast.literal_eval(done.stdout)) <= ours | sys.stdlib_module_names


def test_the_format_can_be_imported_where_pyspark_is_too_old(tmp_path: Path) -> None:
    """Spark would report an error in the module only as a format that does not exist."""
    path = module(tmp_path, "pyspark", "4.0.1")
    (tmp_path / "pyspark" / "sql").mkdir()
    (tmp_path / "pyspark" / "sql" / "__init__.py").write_text("")
    names = ("DataSource", "DataSourceReader", "DataSourceWriter", "DataSourceStreamReader", "DataSourceStreamWriter")
    classes = "".join(f"class {name}:\n    def __init__(self, options=None): pass\n" for name in names)
    (tmp_path / "pyspark" / "sql" / "datasource.py").write_text(classes)  # what PySpark 4.0 has of it
    code = "from pyspark_kbroker import DefaultSource; print(DefaultSource.name()); DefaultSource({})"
    done = run(code, PYTHONPATH=path)
    assert done.stdout == "kbroker\n", done.stderr
    assert done.stderr.strip().endswith("PySpark 4.0.1 is too old for format kbroker: install pyspark>=4.2")
