"""Every block of Python in docs/SPARK.md, run as it stands there, but for the address; every command, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import kbroker.spark
from kbroker.client import AdminClient, Producer
from kbroker.testing import Broker
from tests.kit import build

GUIDE = build.ROOT / "docs" / "SPARK.md"


def sections() -> dict[str, str]:
    parts = re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)
    return {part.split("\n")[0]: part for part in parts if "```python\n" in part}


@pytest.mark.parametrize("title", sections())
def test_the_programs_of_a_section_run(
    title: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = sections()[title]
    before = GUIDE.read_text().split(section)[0].count("\n")
    names: dict[str, Any] = {"__name__": "guide", "spark": spark, "kbroker": kbroker}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kbroker.spark, "session", lambda: spark)
    with Broker() as broker:
        with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topic("orders", 2)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send_many("orders", [b'{"item": "teapot", "count": %d}' % n for n in range(20)], keys=["ann"] * 20)
        for block in re.finditer(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            line = before + section[: block.start(1)].count("\n")
            code = block[1].replace("localhost:9092", broker.bootstrap_servers)
            exec(compile("\n" * line + code, str(GUIDE), "exec"), names)


def test_there_are_programs() -> None:
    assert sections()
