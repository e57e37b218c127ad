"""A task of a load, as Spark shows its users what becomes of it."""

from __future__ import annotations

import traceback
from pathlib import Path

import pyarrow
import pytest

from kbroker.spark.errors import WrongOption
from kbroker.spark.loader.plans.work_units import WorkUnit
from kbroker.spark.loader.settings import Settings
from kbroker.spark.loader.tasks.task import Job, run_unit


def test_what_says_all_itself_comes_without_the_way_to_it(tmp_path: Path) -> None:
    """Spark prints all of it for each task, twice: of a full disk that were a hundred lines."""
    formats = {"valueFormat": "json", "kafka.bootstrap.servers": "127.0.0.1:1"}
    job = Job(Settings(str(tmp_path), {}, formats=formats), "staging", 0, {}, pyarrow.duration("us"))
    with pytest.raises(WrongOption) as caught:
        run_unit(job, WorkUnit(0, (), 0))
    shown = "".join(traceback.format_exception(caught.value))
    assert "values.py" not in shown and "direct cause" not in shown
