"""The activity stream of examples/: report and trend against an obvious model, the page in a browser, the README."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.activity.report import also_viewed
from examples.activity.site import Site
from examples.activity.trend import counts
from kbroker.client import AdminClient, Consumer, Producer
from kbroker.testing import Broker
from tests.compat.clients import node_packages
from tests.kit import build
from tests.kit.brokers.process import free_port

README = build.ROOT / "examples" / "activity" / "README.md"
BROWSER = Path(__file__).with_name("browser")


def views(count: int) -> list[tuple[int, str]]:
    """member and page of the first so many page views."""
    events = (event for topic, event in Site(7).events() if topic == "page_view")
    return [(int(str(event["member"])), str(event["page"])) for event in itertools.islice(events, count)]


def test_the_report_counts_members_that_pages_have_in_common(spark: SparkSession) -> None:
    found = also_viewed(spark.createDataFrame(views(3_000), "member long, page string"), 3).collect()
    pages: dict[int, set[str]] = defaultdict(set)
    for member, page in views(3_000):
        pages[member].add(page)
    common = Counter(pair for seen in pages.values() for pair in itertools.permutations(seen, 2))
    by_page: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for (page, also), members in common.items():
        by_page[page].append((-members, also))
    expected = {(page, also, -count) for page, rows in by_page.items() for count, also in sorted(rows)[:3]}
    assert {(row.page, row.also, row.members) for row in found} == expected
    assert len(expected) > 100


def test_the_trend_counts_views_in_windows(spark: SparkSession) -> None:
    start = 1_700_000_000  # the beginning of a window
    rows = [(json.dumps({"page": page}), start + i / 50) for i, (_, page) in enumerate(views(2_000))]
    frame = spark.createDataFrame(rows, "value string, at double")
    frame = frame.selectExpr("value", "timestamp_micros(cast(at * 1e6 as long)) timestamp")
    found = {(row["window"].start.timestamp(), row.subject): row.views for row in counts(frame).collect()}
    expected: Counter[tuple[float, str]] = Counter()
    for value, at in rows:
        for window in range(start - 60, start + 60, 10):
            if window <= at < window + 60:
                expected[window, json.loads(value)["page"].split("/")[0]] += 1
    assert found == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_site_that_is_ended_says_what_it_has_sent(number: signal.Signals) -> None:
    with Broker() as broker, ExitStack() as stack:
        where = {"bootstrap_servers": broker.bootstrap_servers}
        site = begin(stack, "site", "--bootstrap-server", broker.bootstrap_servers, "--minutes", "30")
        with AdminClient(**where) as admin:
            while "page_view" not in admin.list_topics():
                assert site.poll() is None
        site.send_signal(number)
        assert site.wait(60) == 0 and site.stdout is not None
        sent = int(site.stdout.read().removesuffix(" events sent\n").replace(",", ""))
        with Consumer(**where, auto_offset_reset="earliest") as consumer:
            consumer.assign_topics("_kbroker_audit")
            counted = [json.loads(record.value or b"") for record in consumer.poll(20)]
        assert sum(each["records"] for each in counted) == sent > 0
        assert {each["window_ms"] for each in counted} == {60_000}


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
@pytest.mark.timeout(400)
def test_a_browser_shows_what_happens() -> None:
    with Broker() as broker, ExitStack() as stack:
        at = ["--bootstrap-server", broker.bootstrap_servers]
        with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
            for topic in ("page_view", "search", "ad_click", "trending"):
                admin.create_topic(topic, 2)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for subject, number in (("jazz", 50), ("chess", 200)):
                row = {"start": "2026-01-01T00:00:00.000Z", "subject": subject, "views": number}
                producer.send("trending", json.dumps(row).encode())
        page = begin(stack, "page", *at, "--port", "0")
        assert page.stdout is not None
        url = page.stdout.readline().strip()
        begin(stack, "site", *at, "--rate", "2000", "--minutes", "2")
        look = ["node", "look.js", url]
        home = node_packages(BROWSER).parent
        shutil.copy(BROWSER / "look.js", home)
        shown = subprocess.run(look, cwd=home, capture_output=True, text=True, timeout=60)
        assert shown.returncode == 0, shown.stderr
        found = json.loads(shown.stdout)
        assert found["errors"] == []
        assert [text.split()[0] for text in found["rates"]] == ["page_view", "search", "ad_click"]
        assert int(found["rates"][0].split()[1].replace(",", "")) > 100
        assert min(found["lines"]) > 2
        assert found["trend"] == ["chess", "200", "jazz", "50"]
        assert found["bars"] == [560, 140]


def begin(stack: ExitStack, module: str, *arguments: str) -> subprocess.Popen[str]:
    """One of the example's programs, until the stack ends."""
    command = [sys.executable, "-m", f"examples.activity.{module}", *arguments]
    process = stack.enter_context(subprocess.Popen(command, cwd=build.ROOT, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    return process


def shell_lines() -> Iterator[str]:
    for line in README.read_text().splitlines():
        if line.startswith("    "):
            yield line.strip()


def for_test(line: str, port: int) -> str:
    """Return the line for a broker of the test's own, and not for an hour."""
    line = line.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    line = line.replace("--minutes 60", "--minutes 0.4").replace("--seconds 3600", "--seconds 25")
    if " start " in line:
        return line.replace(" &", f" --override listeners=PLAINTEXT://127.0.0.1:{port} &")
    if re.search(r"/kbroker |examples\.activity\.", line):
        return re.sub(r"( &)?$", rf" --bootstrap-server 127.0.0.1:{port}\1", line, count=1)
    return line


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_command_of_the_readme_does_what_it_says(tmp_path: Path) -> None:
    port = free_port()
    lines = [for_test(line, port) for line in shell_lines()]
    assert len(lines) == 11
    environment = os.environ | {"PYTHONPATH": build.python_path()}
    background: list[subprocess.Popen[bytes]] = []
    output = ""
    try:
        for line in lines:
            if "activity.page" in line:
                line = f"timeout -s INT 5 {line} --port 0"
            if "--every 60" in line:
                line = f"timeout -s INT 30 {line}"
            if line.endswith("&"):
                command = ["bash", "-c", f"exec {line.removesuffix('&')}"]
                background.append(subprocess.Popen(command, cwd=tmp_path, env=environment))
                time.sleep(3)  # a reader of the page takes as long to go on
                continue
            done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, timeout=120)
            assert done.returncode in (0, 124), f"{line}\n{done.stdout.decode()}\n{done.stderr.decode()}"
            output += done.stdout.decode()
        for process in background[1:]:
            assert process.wait(120) == 0
        assert "lake" in output and "audit: producer" in output
        with Consumer(bootstrap_servers=f"127.0.0.1:{port}", auto_offset_reset="earliest") as consumer:
            for topic in ("trending", "recommendations"):
                consumer.assign_topics(topic)
                assert json.loads(consumer.poll(20)[0].value or b"")
        assert list((tmp_path / "activity" / "lake").glob("**/*.parquet"))
    finally:
        for process in background:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
