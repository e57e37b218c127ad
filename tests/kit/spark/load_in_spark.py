"""A load in a process of its own, with Spark, in which something goes wrong.

python -m tests.kit.spark.load_in_spark FOLDER LAKE SERVERS TOPIC MASTER [SETTING=VALUE ...]
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from kbroker.spark import load, session
from kbroker.spark.loader import run
from kbroker.spark.loader.plans.work_units import WorkUnit
from kbroker.spark.loader.tasks.task import Job, Manifest, run_unit
from tests.kit.build import ROOT, python_path

TROUBLE = "KBROKER_TEST_TROUBLE"
"""`die`: the first attempt of each of the first three tasks kills its worker, its files written. `wait`: tasks end when
the file `go` is there. `straggle`: the first attempt of the first task is lost, but goes on where nobody sees it."""


def begin(
    folder: Path, lake: Path, servers: str, topic: str, trouble: str, master: str = "local[2,4]", **conf: str
) -> subprocess.Popen[bytes]:
    """Start the load as a process. Attempts leave files in `folder`, named by unit and attempt."""
    folder.mkdir(exist_ok=True)
    settings = [f"{name}={value}" for name, value in conf.items()]
    command = [
        sys.executable,
        "-m",
        "tests.kit.spark.load_in_spark",
        str(folder),
        str(lake),
        servers,
        topic,
        master,
        *settings,
    ]
    environment: Mapping[str, str] = {**os.environ, TROUBLE: f"{trouble}:{folder}", "PYTHONPATH": python_path()}
    return subprocess.Popen(command, env=environment, cwd=ROOT)


def ended(child: subprocess.Popen[bytes], timeout_s: float = 200) -> int:
    """Wait for the process and return its exit status. It is killed if it does not end in time."""
    try:
        return child.wait(timeout_s)
    finally:
        child.kill()


def troubled(job: Job, unit: WorkUnit) -> Manifest:
    """Run a unit in a worker, with the trouble that the environment asks for."""
    trouble, _, place = os.environ[TROUBLE].partition(":")
    folder = Path(place)
    attempt = sum(1 for _ in folder.glob(f"unit-{unit.number}-*"))
    (folder / f"unit-{unit.number}-{attempt}").touch()
    found = run_unit(job, unit)
    if trouble == "die" and attempt == 0 and unit.number < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if trouble == "wait":
        await_file(folder / "go")
    if trouble == "straggle" and unit.number == 0 and attempt == 0:
        (folder / "lost").write_bytes(pickle.dumps((job, unit)))
        subprocess.Popen(
            [sys.executable, "-m", "tests.kit.spark.load_in_spark", str(folder)], cwd=ROOT, start_new_session=True
        )
        os.kill(os.getpid(), signal.SIGKILL)
    return found


def once_told(job: Job, unit: WorkUnit) -> Manifest:
    """Run a unit in a worker, and end once the file LAKE-go is there.

    The file LAKE-waits says that the work is done.
    """
    found = run_unit(job, unit)
    lake = Path(job.settings.lake)
    lake.with_name(f"{lake.name}-waits").touch()
    await_file(lake.with_name(f"{lake.name}-go"))
    return found


def straggle(folder: Path) -> None:
    """Run the attempt that was lost again from its beginning, over and over until the file `stop` is there."""
    job, unit = pickle.loads((folder / "lost").read_bytes())
    while not (folder / "stop").exists():
        run_unit(job, unit)
        (folder / "straggled").touch()


def await_file(path: Path, timeout_s: float = 200) -> None:
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.02)


def main(lake: str, servers: str, topic: str, master: str, *settings: str) -> None:
    run.run_unit = troubled
    conf = dict(each.split("=", 1) for each in settings)
    spark = session(master, "kbroker-tests", spark_ui_enabled=False, spark_driver_memory="512m", **conf)
    spark.sparkContext.setLogLevel("OFF")
    found = load(topic, lake, bootstrap_servers=servers, spark=spark, task_bytes=4000)
    print(found)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[2:]) if len(sys.argv) > 2 else straggle(Path(sys.argv[1]))
