"""What commands say of a broker whose disk is full."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.cli.main import main
from kbroker.client import AdminClient
from kbroker.client.admin.results import LogDirDescription
from kbroker.errors import ErrorCode
from kbroker.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """That writes nothing."""
    with Broker(faults=True) as started:
        with AdminClient(bootstrap_servers=started.bootstrap_servers) as admin:
            admin.create_topic("views", 1)
        started.faults.error("Produce", ErrorCode.KAFKA_STORAGE_ERROR, times=None)
        yield started


DELIVERY = ["-X", "delivery.timeout.ms=300"]


def said_by_perf(broker: Broker, capfd: pytest.CaptureFixture[str]) -> str:
    words = ["--messages", "1", "--warm-up", "0", *DELIVERY, "-b", broker.bootstrap_servers]
    assert main(["perf", "latency", "views", *words]) == 1
    return capfd.readouterr().err


def test_a_full_disk_is_why_nothing_is_delivered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    full = LogDirDescription("/data", None, {}, 1 << 40, 1000)
    monkeypatch.setattr(AdminClient, "describe_log_dirs", lambda self: {1: (full,)})
    said = said_by_perf(broker, capfd)
    assert said.startswith("kbroker: views-0: not delivered within 300 ms") and said.count("\n") == 1
    assert said.endswith("; the disk is full: log directory /data of broker 1\n")
    assert main(["cluster", "status", "-b", broker.bootstrap_servers]) == 1
    assert "NOT ready\n  log directory /data is full\n" in capfd.readouterr().out


def test_a_disk_that_has_room_is_not_blamed(broker: Broker, capfd: pytest.CaptureFixture[str]) -> None:
    assert "log directory" not in said_by_perf(broker, capfd)
