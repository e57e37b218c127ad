import pytest

from kbroker.cli import progress
from kbroker.cli.progress import Progress, in_units


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_550_000, "1.6 MB"), (2e9, "2.0 GB"), (3e15, "3000.0 TB")],
)
def test_sizes_are_told_in_units(size: float, text: str) -> None:
    assert in_units(size) == text


def test_the_line_tells_what_is_there_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    known, unknown = Progress(4_000_000, False), Progress(None, False)
    now = 102.0
    for each in (known, unknown):
        each.add_messages(12_345)
        each.add_bytes(1_000_000)
    assert known.line() == "[######                  ]  25%  12,345 messages, 1.0 MB, 500.0 kB/s, 6 s left"
    assert unknown.line() == "12,345 messages, 1.0 MB, 500.0 kB/s"
    known.add_bytes(3_000_000)
    assert known.line() == "[########################] 100%  12,345 messages, 4.0 MB, 2.0 MB/s"
    assert Progress(0, False).line() == "0 messages, 0 B, 0 B/s"


def test_a_line_is_written_over_the_one_before(capsys: pytest.CaptureFixture[str]) -> None:
    hidden, shown = Progress(10, False), Progress(10, True)
    for each in (hidden, shown):
        each.add_messages(1)
        each.add_bytes(10)
        each.finish()
    written = capsys.readouterr().err
    assert written.startswith("\r[###") and written.endswith("\n")
    first, second = written.removesuffix("\n").split("\r")[1:]
    assert len(second) >= len(first)
