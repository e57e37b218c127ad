"""`kbroker cluster`, where there is nothing to carry: one clear line. tests/oracle/test_migration.py carries."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.main import main
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import StorageOptions
from tests.kit.brokers.process import free_port


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["cluster", *map(str, words)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("kbroker: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("action", ["import", "export"])
def test_a_directory_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    directory = tmp_path / "none"
    assert "is no directory" in refusal(capsys, action, "-z", "localhost:1", "-d", directory)
    assert not directory.exists()


def test_a_directory_of_nobody_needs_a_broker_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give --broker-id" in refusal(capsys, "import", "-z", "localhost:1", "-d", tmp_path)


def test_a_directory_of_another_broker_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=3\n")
    said = refusal(capsys, "import", "-z", "localhost:1", "-d", tmp_path, "--broker-id", 4)
    assert f"{tmp_path} is of broker 3, not of 4" in said


@pytest.mark.parametrize("address", ["localhost:99999", ":", "localhost:port/x"])
def test_an_address_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str) -> None:
    said = refusal(capsys, "import", "-z", address, "-d", tmp_path, "--broker-id", 0)
    assert f"zookeeper {address!r}: not HOST:PORT" in said


def test_a_zookeeper_that_is_not_there_is_told_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    said = refusal(capsys, "import", "-z", address, "-d", tmp_path, "--broker-id", 0, "--timeout", "0.5")
    assert f"ZooKeeper {address} cannot be reached" in said
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}


def test_nothing_is_exported_where_no_broker_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "export", "-z", "localhost:1", "-d", tmp_path, "--broker-id", 0)
    assert "no kbroker has been started" in said


def test_two_stores_in_two_directories_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        EmbeddedStore(str(tmp_path / name / "coordination.sqlite")).stop()
    words = ["export", "-z", "localhost:1", "-d", tmp_path / "a", "-d", tmp_path / "b", "--broker-id", 0]
    assert "a broker has one of them" in refusal(capsys, *words)


def test_a_directory_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = LogManager(StorageOptions((str(tmp_path),)))
    logs.lock_directories()
    try:
        assert "is in use by process" in refusal(capsys, "import", "-z", "localhost:1", "-d", tmp_path)
    finally:
        logs.stop()
