"""A cluster of machines that have Python and Spark, and nothing of kbroker: what a job takes along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import AdminClient, Producer
from kbroker.testing import Broker
from tests.kit import build
from tests.kit.spark import job as spark_job
from tests.kit.spark.cluster import SparkCluster, spark_home
from tests.kit.spark.yarn_cluster import YarnCluster

ROWS = 10_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path | None = None) -> None:
    subprocess.run([str(part) for part in command], cwd=cwd, check=True, timeout=500, capture_output=True)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with kbroker, of the wheel that `make wheel` makes, pyarrow, and what they need."""
    environment = Path(sys.executable).parent.parent
    run("make", "wheel", f"VENV={environment}", f"PYTHONS={sys.executable}", cwd=build.ROOT)
    (wheel,) = (build.ROOT / "dist").glob("kbroker-*.whl")
    found = tmp_path_factory.mktemp("packages") / "packages"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--target", found, wheel, "pyarrow")
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster of two workers, whose interpreter has nothing but the standard library."""
    folder = tmp_path_factory.mktemp("cluster")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "bare")
    with SparkCluster(folder, folder / "bare" / "bin" / "python") as started:
        yield started


@pytest.fixture
def filled(broker: Broker, topic: str) -> str:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 4)
        admin.create_topic(f"{topic}-copy", 2)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        partitions = [i % 4 for i in range(ROWS)]
        producer.send_many(topic, [b"%d" % i for i in range(ROWS)], partitions=partitions).result(30)
    return topic


def copy(
    cluster: SparkCluster, broker: Broker, topic: str, folder: Path, python: str | Path, **conf: Any
) -> subprocess.CompletedProcess[str]:
    """The job, with a driver in `folder`; `python` is PYSPARK_PYTHON."""
    wanted = cluster.conf() | {"spark_ui_enabled": False, "spark_ui_showConsoleProgress": False} | conf
    # As on a machine where the environment of the tests is the active one.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ours = {
        "PATH": path, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": "jupyter",
        "SPARK_HOME": str(cluster.home), "PYTHONPATH": build.python_path(),
    }  # fmt: skip
    job = [sys.executable, "-m", "tests.kit.spark.job", cluster.url, broker.bootstrap_servers, topic, f"{topic}-copy"]
    return subprocess.run(
        [*job, json.dumps(wanted)], cwd=folder, env=os.environ | ours, capture_output=True, text=True, timeout=300
    )


def test_packages_in_an_archive_are_found_by_pythonpath(
    cluster: SparkCluster, broker: Broker, filled: str, packages: Path, tmp_path: Path
) -> None:
    """PYSPARK_PYTHON=python3 is the active environment's on the driver, and the bare one on the workers."""
    run("tar", "czf", tmp_path / "packages.tar.gz", "-C", packages, ".")
    done = copy(
        cluster, broker, filled, tmp_path, "python3",
        spark_archives=f"{tmp_path / 'packages.tar.gz'}#packages", spark_executorEnv_PYTHONPATH="./packages",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:] + cluster.logs()
    assert json.loads(done.stdout.splitlines()[-1]) == {"counts": [ROWS, ROWS], "executors": 2}


def test_an_environment_in_an_archive_is_run_by_its_path(
    cluster: SparkCluster, broker: Broker, filled: str, packages: Path, tmp_path: Path
) -> None:
    """./environment/bin/python on the workers, and on the driver, which has the same folder in its own."""
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    (site,) = environment.glob("lib/python*/site-packages")
    run("cp", "-r", f"{packages}/.", site)
    run("tar", "czf", tmp_path / "environment.tar.gz", "-C", environment, ".")
    archive = f"{tmp_path / 'environment.tar.gz'}#environment"
    done = copy(cluster, broker, filled, tmp_path, "./environment/bin/python", spark_archives=archive)
    assert done.returncode == 0, done.stderr[-3000:] + cluster.logs()
    assert json.loads(done.stdout.splitlines()[-1]) == {"counts": [ROWS, ROWS], "executors": 2}


def test_workers_that_are_given_nothing_say_what_they_lack(
    cluster: SparkCluster, broker: Broker, filled: str, tmp_path: Path
) -> None:
    done = copy(cluster, broker, filled, tmp_path, "python3")
    assert done.returncode != 0
    assert "ModuleNotFoundError: No module named 'pyarrow'" in done.stderr


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_packages_in_an_archive_go_to_yarn(
    broker: Broker, filled: str, packages: Path, tmp_path: Path, mode: str
) -> None:
    """Packages go as docs/SPARK.md says it.

    The interpreter of the containers, and of the driver, has the standard library only.
    """
    run("tar", "czf", tmp_path / "packages.tar.gz", "-C", packages, ".")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    home, job = spark_home(tmp_path / "spark"), Path(spark_job.__file__)
    settings = {
        "spark.executorEnv.PYTHONPATH": "./packages", "spark.yarn.appMasterEnv.PYTHONPATH": "./packages",
        "spark.yarn.jars": f"local:{home}/jars/*", "spark.yarn.stagingDir": tmp_path / "staging",
        "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.executor.instances": 2,
        # By itself Spark waits 30 s for its executors, and a second one in YARN may take longer.
        "spark.scheduler.minRegisteredResourcesRatio": 1.0,
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "400s",
    }  # fmt: skip
    command = [home / "bin" / "spark-submit", "--master", "yarn", "--deploy-mode", mode]
    command += ["--archives", f"{tmp_path / 'packages.tar.gz'}#packages"]
    command += [each for name, value in settings.items() for each in ("--conf", f"{name}={value}")]
    command += [job, "", broker.bootstrap_servers, filled, f"{filled}-copy", "{}"]
    with YarnCluster(tmp_path / "yarn") as yarn:
        environment = {
            "PATH": "/usr/bin:/bin", "SPARK_HOME": str(home), "HADOOP_CONF_DIR": str(yarn.configuration),
            "PYSPARK_PYTHON": str(tmp_path / "bare" / "bin" / "python"), "SPARK_SCALA_VERSION": "2.13",
            **({"PYTHONPATH": str(packages)} if mode == "client" else {}),
            **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
        }  # fmt: skip
        done = subprocess.run(
            [str(part) for part in command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
        )
    assert done.returncode == 0, done.stderr[-3000:] + yarn.said("stderr")[-5000:]
    said = done.stdout if mode == "client" else yarn.said("stdout")
    assert json.loads(said.splitlines()[-1]) == {"counts": [ROWS, ROWS], "executors": 2}


def test_a_zip_of_compiled_modules_is_of_no_use(packages: Path, tmp_path: Path) -> None:
    """Which is why --py-files, and wheels as such, do not do."""
    run(sys.executable, "-m", "zipfile", "-c", tmp_path / "packages.zip", *sorted(packages.iterdir()))
    code = f"import sys; sys.path = [{str(tmp_path / 'packages.zip')!r}, *sys.path]; import kbroker._core.wire.crc"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode and "packages.zip/kbroker/_core" in done.stderr.splitlines()[-1]
