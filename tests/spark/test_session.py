"""`kbroker.spark.session()` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kit.kafka.java_program import SHORT_LIVED

READING_NOTHING = """
import sys

import kbroker.spark

spark = kbroker.spark.session("local[1]", spark_ui_enabled=False, spark_driver_defaultJavaOptions=sys.argv[1])
try:
    spark.read.format("kbroker").load()
except Exception as error:
    print(str(error))
"""


def test_the_format_is_known_wherever_a_script_runs(tmp_path: Path) -> None:
    """Spark looks among the modules of folders, and the tests run with an editable install."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", READING_NOTHING, " ".join(SHORT_LIVED)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "kafka.bootstrap.servers is missing" in done.stdout, done.stdout + done.stderr
