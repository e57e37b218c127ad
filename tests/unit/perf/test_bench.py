"""Which rows `make bench BEFORE=...` measures, and what it starts as the peer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perf import bench
from perf.duel import Duel
from perf.peers import Before, Kafka


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["lookups"], "unknown row lookups; rows are: small-requests, "), (["--record"], "beside Apache Kafka only")],
)
def test_rows_without_two_brokers_and_records_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--before", "elsewhere", *arguments])
    with pytest.raises(SystemExit):
        bench.main()
    assert complaint in capsys.readouterr().err
    assert Duel.before is None


def test_the_peer_is_the_kbroker_of_the_other_checkout_with_the_same_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert isinstance(Duel().peer, Kafka)
    monkeypatch.setattr(Duel, "before", tmp_path)
    duel = Duel({"num.io.threads": 3}, kbroker_only={"log.roll.ms": 7})
    assert isinstance(duel.peer, Before)
    interpreter, *command = duel.peer.command()
    assert interpreter == str(tmp_path / ".venv/bin/python")
    assert {"num.io.threads=3", "log.roll.ms=7"} <= set(command) & set(duel.ours.command())


def test_every_row_that_is_measured_beside_before_exists() -> None:
    assert set(bench.BESIDE_BEFORE) <= bench.ROWS.keys()
