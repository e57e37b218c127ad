import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker import __version__
from kbroker.cli.main import COMMANDS, main
from kbroker.cli.start import open_to_others
from kbroker.config.broker_config import load_config


def run(*words: str, **others: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kbroker.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **others)  # type: ignore[call-overload]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens on and nobody else is given."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_without_a_subcommand_the_help_is_shown_and_the_exit_code_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_each_subcommand_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([name, "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text and f"kbroker {name}" in text


@pytest.mark.parametrize(
    "words",
    [
        ["bogus"],
        ["topics"],
        ["topics", "create"],
        ["topics", "create", "t", "--partitions", "0"],
        ["consume", "t", "--from-beginning", "--offset", "3"],
        ["consume", "t", "--partition", "1-"],
        ["consume", "t", "--since", "yesterday"],
        ["groups", "reset-offsets", "g", "--to-earliest"],
        ["configs", "alter", "topic", "t", "--set", "x"],
        ["start", "--log-level", "loud"],
    ],
)
def test_wrong_usage_has_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2
    assert "usage: kbroker" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"kbroker {__version__}\n"


def test_a_broker_that_is_not_there_is_one_line(closed_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "-b", f"127.0.0.1:{closed_port}"]) == 1
    address = f"127.0.0.1:{closed_port}"
    where = "-b or KBROKER_BOOTSTRAP_SERVERS"
    says = f"cannot connect to {address}: connection refused (is a broker there, and {where} right?)"
    assert capsys.readouterr().err == f"kbroker: {says}\n"
    assert main(["topics", "list", "-b", "127.0.0.1:x"]) == 1
    assert capsys.readouterr().err == "kbroker: '127.0.0.1:x' is not HOST:PORT\n"


def test_the_environment_says_where_brokers_are(
    closed_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(*words: str) -> str:
        assert main(["topics", "list", *words]) == 1
        return capsys.readouterr().err

    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVERS", f"127.0.0.1:{closed_port}")
    assert f"cannot connect to 127.0.0.1:{closed_port}: " in error()
    options = tmp_path / "client.properties"
    options.write_text(f"bootstrap.servers=localhost:{closed_port}")
    assert f"cannot connect to localhost:{closed_port}: " in error("--command-config", str(options))
    assert f"cannot connect to localhost:{closed_port}: " in error("-b", f"localhost:{closed_port}")
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVERS", "nowhere:x")
    assert error() == "kbroker: environment variable KBROKER_BOOTSTRAP_SERVERS: 'nowhere:x' is not HOST:PORT\n"


def test_where_brokers_are_is_no_setting_of_a_broker() -> None:
    assert load_config(environment={"KBROKER_BOOTSTRAP_SERVERS": "a:1"}).notices == ()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--override", "log.segment.bytes=ten"], "--override: log.segment.bytes=ten: must be a whole number of bytes"),
        (["--override", "log.segment.byte=10", "--strict"], "did you mean log.segment.bytes?"),
        (["nowhere.properties"], "nowhere.properties: cannot read it: no such file or directory"),
        (["--override", "x"], "--override x: not NAME=VALUE"),
        (["."], ". is a directory, and no file of settings: --data ."),
    ],
)
def test_a_start_that_cannot_be_is_one_line_and_exit_code_1(words: list[str], says: str, tmp_path: Path) -> None:
    done = run("start", "--data", str(tmp_path / "data"), *words, cwd=tmp_path)
    assert done.returncode == 1
    assert says in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_listener_for_others_is_pointed_out() -> None:
    def lines(listeners: str) -> list[str]:
        maps = "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT"
        return open_to_others(load_config(None, [f"listeners={listeners}", maps], environment={}))

    assert lines("A://127.0.0.1:1,B://localhost:2,C://[::1]:3") == []
    assert [line.split()[0] for line in lines("A://:1,B://127.0.0.2:2,C://10.0.0.1:3")] == ["A://:1", "C://10.0.0.1:3"]


LIGHT = """
import sys
import kbroker.cli.main, kbroker.cli.start
heavy = {'rich', 'numpy', 'pyarrow', 'cramjam', 'snappy', 'kazoo', 'prometheus_client', 'asyncio', 'json', 'sqlite3'}
print(*sorted(heavy & set(sys.modules)))
"""


def test_the_command_line_imports_only_what_it_uses() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_help_is_quiet_when_nobody_reads_it() -> None:
    command = f"{sys.executable} -m kbroker.cli.main dump-log --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
