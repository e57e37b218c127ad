"""`verify-log` as a command: what it prints, and a directory that a broker is writing."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kbroker.cli import verify_log
from kbroker.cli.main import main
from kbroker.inspection.directory_check import Verifier, is_locked
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.commands import Run
from tests.kit.logs import directory as kit

ROUNDS = 12
SETTINGS: dict[str, object] = {
    "log.segment.bytes": 100_000,
    "log.index.interval.bytes": 300,
    "log.retention.bytes": 300_000,
    "log.retention.check.interval.ms": 100,
    "log.segment.delete.delay.ms": 50,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "num.partitions": 2,
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.min.cleanable.ratio": 0.01,
}


def test_findings_are_lines_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = kit.make_log_directory(tmp_path / "data")
    assert main(["verify-log", str(data)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(
        r"kbroker: nothing is wrong; checked \d+ partitions with \d\.\d MB and \d+ files\n", captured.err
    )
    log = data / "codecs-0" / "00000000000000000015.log"
    log.write_bytes(log.read_bytes()[:-1])
    position = log.stat().st_size + 1 - len(kit.batch(27, codec=4))
    what = f"the last batch is cut off: {log.stat().st_size - position} bytes of it are there"
    assert main(["verify-log", str(data / "codecs-0")]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{log}: byte {position}: {what}\n"
    assert captured.err.startswith(
        "kbroker: 1 problem found; checked 1 partition with 0.0 MB\nkbroker: a start makes anew"
    )
    assert main(["verify-log", "--json", str(log)]) == 1
    assert json.loads(capsys.readouterr().out) == {"file": str(log), "position": position, "what": what}
    with pytest.raises(SystemExit) as stopped:
        main(["verify-log"])
    assert stopped.value.code == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = kit.make_log_directory(tmp_path / "data")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(verify_log, "_EVERY_S", 0)
    assert main(["verify-log", str(data)]) == 0
    assert "GB checked" in terminal.getvalue()
    assert "\rkbroker: nothing is wrong" in terminal.getvalue()


def produce_until(stop: threading.Event, address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 1, "enable.idempotence": True})
    number = 0
    while not stop.is_set():
        for _ in range(100):
            producer.produce(f"live-{number % 3}", value=b"x" * (number % 700), key=b"%d" % (number % 50))
            number += 1
        producer.poll(0)
        while len(producer) > 2000 and not stop.is_set():
            producer.poll(0.01)
    producer.flush(30)


def has_begun(trace: Path) -> bool:
    """Whether retention or the cleaner has left it."""
    return trace.name.endswith(".deleted") or b"live" in trace.read_bytes()


@pytest.mark.parametrize(
    ("policy", "at_work"), [("delete", "live-*/*.deleted"), ("compact", "cleaner-offset-checkpoint")]
)
def test_a_broker_at_work_is_no_finding(tmp_path: Path, policy: str, at_work: str) -> None:
    """Segments roll, go and are cleaned, checkpoints are written, and records come, while it looks."""
    with BrokerProcess({**SETTINGS, "log.cleanup.policy": policy}, folder=tmp_path) as broker:
        stop = threading.Event()
        producing = threading.Thread(target=produce_until, args=(stop, broker.address))
        producing.start()
        try:
            deadline = time.monotonic() + 30
            while not any(map(has_begun, broker.data.glob(at_work))) and time.monotonic() < deadline:
                stop.wait(0.01)
            assert is_locked(broker.data)
            seen: list[int] = []
            deadline = time.monotonic() + 60
            while len(seen) < ROUNDS or len(set(seen)) < 4:
                verifier = Verifier()
                assert list(verifier.check(broker.data)) == []
                seen.append(verifier.totals.bytes)
                assert time.monotonic() < deadline, "it was not written"
        finally:
            stop.set()
            producing.join()
        broker.stop()
        assert not is_locked(broker.data)
        assert list(Verifier().check(broker.data)) == []


def test_a_name_is_a_topic_where_brokers_are_given_and_a_directory_where_it_has_a_slash(
    here: Run, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic does not exist, and its directory does."""
    kit.make_log_directory(tmp_path / "views")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KBROKER_BOOTSTRAP_SERVERS", raising=False)
    assert "topic 'views'" in here("verify-log", "--replicas", "views", code=1).stderr.decode()
    assert main(["verify-log", "--replicas", "views", "-b", broker.address]) == 1
    here("verify-log", "--replicas", "./views")
    assert main(["verify-log", "--replicas", "views"]) == 0
