"""`kbroker start` as a process: what it says, how it stops, what it refuses."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from kbroker.cli.start import SAME_SIGNAL_S
from kbroker.client.admin.admin_client import AdminClient
from kbroker.errors import ErrorCode
from kbroker.metrics.definitions import MEMBER_METRICS, METRICS
from kbroker.protocol.api import ApiKey
from tests.kit import build
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.group_load import Member, await_coordinator, rebalance
from tests.kit.clients.wire import WireClient
from tests.kit.parts.processors import wait_until

READY = re.compile(
    r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO kbroker \S+ serves PLAINTEXT://127\.0\.0\.1:(\d+); data in (\S+); "
    r"ready in (\d+) ms$",
    re.MULTILINE,
)
TIMED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) ")


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    """Not started yet; killed at the end of the test by its `with`."""
    return BrokerProcess(folder=tmp_path / "broker")


def said_ready(broker: BrokerProcess) -> re.Match[str] | None:
    """The line that is printed a moment after the first request can be answered."""
    deadline = time.monotonic() + 30
    while (found := READY.search(broker.output)) is None and time.monotonic() < deadline:
        pass
    return found


def iter_until(lines: Iterable[str], text: str) -> Iterator[str]:
    """The lines up to and with the first that has `text`."""
    for line in lines:
        yield line
        if text in line:
            return


@contextmanager
def started(*words: str) -> "Iterator[subprocess.Popen[str]]":
    """`kbroker start`, whose stderr is read; killed at the end."""
    command = [sys.executable, "-m", "kbroker.cli.main", "start", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def log_of(process: "subprocess.Popen[str]") -> IO[str]:
    assert process.stderr is not None
    return process.stderr


def awaited(broker: BrokerProcess, text: str) -> bool:
    """Whether the broker's log has it within a while."""
    deadline = time.monotonic() + 30
    while text not in broker.output:
        if time.monotonic() > deadline:
            return False
    return True


def start_beside(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "kbroker.cli.main",
        "start",
        "--override",
        "listeners=PLAINTEXT://127.0.0.1:0",
        *words,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_start_imports_only_what_serving_needs() -> None:
    """Each of these costs as much as ten modules of ours; coordinators come when there is something to do."""
    imports = "import kbroker.cli.start, kbroker.server.broker; print(*sys.modules)"
    code = f"import sys; sys.path += {sys.path!r}; {imports}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    imported = set(done.stdout.split())
    assert "kbroker.server.broker" in imported, done.stderr
    costly = {"argparse", "asyncio", "dataclasses", "inspect", "kazoo", "numpy", "pyarrow", "shutil", "ssl", "tempfile"}
    late = {"kbroker.groups.coordinator", "kbroker.transactions.coordinator", "kbroker.metrics.registry"}
    late |= {"kbroker.rules.transaction", "kbroker.storage.compaction", "kbroker.protocol.records"}
    assert not imported & (costly | late)


def test_it_says_address_directory_and_time_and_stops_on_sigterm(broker: BrokerProcess) -> None:
    with broker:
        found = said_ready(broker)
        assert found is not None and (found[1], found[2]) == (str(broker.port), str(broker.data))
        assert 0 < int(found[3]) < 60_000
        assert broker.stop() == 0
        assert "Traceback" not in broker.output


def test_every_line_of_the_log_has_a_time_from_the_settings_to_the_end(broker: BrokerProcess) -> None:
    broker.overrides |= {"log.segment.byte": 9, "log.file.size": 99999}
    with broker:
        assert said_ready(broker)
        broker.stop()
        lines = broker.output.splitlines()
    assert [line for line in lines if not TIMED.match(line)] == []
    assert [line for line in lines if "did you mean" in line or "old name" in line]
    assert "stopping on SIGTERM" in lines[-2] and re.search(r"stopped in \d+ ms$", lines[-1])


def test_the_log_may_be_json_a_line(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.overrides["kbroker.log.format"] = "json"
    with broker:
        assert awaited(broker, " serves ")
        broker.stop()
        lines = [json.loads(line) for line in broker.output.splitlines()]
    assert {"stopping on SIGTERM"} <= {line["message"] for line in lines}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z", line["time"]) for line in lines)
    assert {line["level"] for line in lines} == {"INFO"}
    done = start_beside("--data", str(broker.folder / "output.txt"), "--override", "kbroker.log.format=json")
    assert "output.txt" in json.loads(done.stderr)["message"] and done.returncode == 1


def test_changes_of_topics_and_settings_are_in_the_log_with_who_asked_for_them(broker: BrokerProcess) -> None:
    with broker, AdminClient(bootstrap_servers=broker.address, client_id="an operator\nwith a line") as admin:
        admin.create_topic("views", partitions=2, configs={"retention.ms": 5000})
        admin.alter_topic_config("views", {"retention.ms": 9000})
        admin.alter_broker_config(None, {"log.retention.ms": 7000})
        admin.create_partitions("views", 3)
        admin.delete_topics(["views"])
        said = broker.output
    asked = r"; asked for by 127\.0\.0\.1:\d+, client id 'an operator\\nwith a line', User:ANONYMOUS\n"
    for what in (
        r"topics created: views \(partitions: 2, retention\.ms='5000'\)",
        r"configs of topic 'views' changed: set 'retention\.ms'='9000'",
        r"configs of all brokers changed: set 'log\.retention\.ms'='7000'",
        r"topics grown: views \(partitions: 3\)",
        r"topics deleted: views",
    ):
        assert re.search(f"INFO {what}{asked}", said), (what, said)


def test_a_service_manager_hears_that_it_is_ready_reads_again_and_stops(broker: BrokerProcess) -> None:
    for address in (str(broker.folder / "notify"), f"@kbroker-{os.getpid()}"):
        broker.folder.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address.replace("@", "\0"))
            manager.settimeout(30)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("NOTIFY_SOCKET", address)
                broker.start()
            told = manager.recv(4096).decode()
            assert told.startswith(f"READY=1\nSTATUS=serves PLAINTEXT://127.0.0.1:{broker.port}; data in ")
            assert broker.process is not None
            broker.process.send_signal(signal.SIGHUP)
            assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", manager.recv(4096).decode())
            assert manager.recv(4096).decode() == told
            assert broker.stop() == 0
            assert manager.recv(4096).decode() == "STOPPING=1\nSTATUS=stopping"


def test_sighup_takes_the_settings_that_may_change_and_says_what_needs_a_restart(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"

    def give(*lines: str) -> None:
        kept = (f"log.dirs={tmp_path}/data", "listeners=PLAINTEXT://127.0.0.1:0")
        properties.write_text("".join(f"{line}\n" for line in (*kept, *lines)))

    give("log.retention.hours=2")
    with started(str(properties)) as process:
        ready = list(iter_until(log_of(process), " serves "))[-1]
        found = READY.match(ready)
        assert found is not None
        with AdminClient(bootstrap_servers=f"127.0.0.1:{found[1]}") as admin:

            def retention() -> str | None:
                return admin.describe_broker_config(1)["log.retention.ms"].value

            give("log.retention.ms=5000", "num.io.threads=3", "log.retention.hour=3")
            process.send_signal(signal.SIGHUP)
            said = "".join(iter_until(log_of(process), "after a restart only"))
            assert "log.retention.hour: unknown setting; did you mean log.retention.hours?" in said
            assert re.search(r"read again on SIGHUP: log.retention.hours=168, log.retention.ms=5000\n", said)
            assert re.search(r"WARNING .*after a restart only: num.io.threads\n", said)
            assert retention() == "5000"
            give("log.retention.ms=6000", "num.io.threads=0", "num.network.threads=x")
            process.send_signal(signal.SIGHUP)
            line = list(iter_until(log_of(process), "nothing is changed"))[-1]
            assert re.search(r": 2 settings .*:4: num.io.threads=0: .*; .*:5: num.network.threads=x: ", line)
            assert retention() == "5000"
        process.terminate()
        assert process.wait(30) == 0


def test_a_start_that_waits_for_zookeeper_says_so_at_once_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """The ZooKeeper is a listener that never answers; no wait of the start ends before this test's."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for number in (signal.SIGINT, signal.SIGTERM):
            words = ["--data", str(tmp_path / "data"), "--override", "zookeeper.connection.timeout.ms=600000"]
            words += ["--override", "listeners=PLAINTEXT://127.0.0.1:0"]
            words += ["--override", f"zookeeper.connect=127.0.0.1:{silent.getsockname()[1]}"]
            with started(*words) as process:
                said = list(iter_until(log_of(process), "waiting for ZooKeeper"))[-1]
                assert "for up to 600 s (zookeeper.connection.timeout.ms)" in said
                process.send_signal(number)
                assert process.wait(30) == 0
                assert "the start was given up: it was told to stop" in log_of(process).read()


def test_every_thread_has_a_name_that_the_documents_explain(broker: BrokerProcess) -> None:
    table = (build.ROOT / "docs" / "THREADS.md").read_text().partition("## How work is passed on")[0]
    explained = {name.replace("-N", "")[:15] for name in re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)}
    with broker:
        assert said_ready(broker)
        tasks = Path(f"/proc/{broker.pid}/task")

        def names_now() -> set[str]:
            return {re.sub(r"-\d+$", "", (task / "comm").read_text().strip()) for task in tasks.iterdir()}

        wait_until(lambda: "acceptor" in names_now(), "the threads' names, which they get after that line")
        names = names_now()
        main = (tasks / str(broker.pid) / "comm").read_text().strip()
        assert names - {main} <= explained
        assert {"acceptor", "processor", "handler", "flusher", "log-cleaner"} <= names


def test_one_signal_that_comes_twice_is_one(broker: BrokerProcess) -> None:
    """timeout(1) sends its signal to the process and then to the group of both."""
    for _ in range(10):
        with broker:
            assert broker.process is not None
            began = time.monotonic()
            broker.process.send_signal(signal.SIGTERM)
            while re.search(r"^ShdPnd:\s0*[1-9a-f]", Path(f"/proc/{broker.pid}/status").read_text(), re.MULTILINE):
                pass  # a second one before the first has come would be none
            broker.process.send_signal(signal.SIGTERM)
            took_s = time.monotonic() - began
            code = broker.process.wait(30)
        if took_s < SAME_SIGNAL_S / 2:  # else this process stood still, and they were two
            break
    assert code == 0
    assert "before it had stopped" not in broker.output


def test_a_stop_does_not_wait_for_members_that_wait_for_each_other(broker: BrokerProcess) -> None:
    """The second one's JoinGroup would be answered when the first one joins again, or after a minute."""
    broker.overrides["kbroker.stop.timeout.ms"] = 120_000  # longer than the broker is waited for
    with broker, ExitStack() as clients:
        await_coordinator("127.0.0.1", broker.port, "g")
        first, second = (
            Member(clients.enter_context(WireClient("127.0.0.1", broker.port, timeout_s=60)), "g") for _ in range(2)
        )
        rebalance([first], "t")
        waiting = second.send_join("t")
        in_progress = ErrorCode.REBALANCE_IN_PROGRESS
        while first.client.receive(ApiKey.HEARTBEAT, 2, first.send_heartbeat()).error_code != in_progress:
            pass
        assert broker.stop() == 0
        with pytest.raises(RuntimeError, match="COORDINATOR_NOT_AVAILABLE"):
            second.receive_join(waiting)


def test_ctrl_c_stops_it_with_exit_code_0(broker: BrokerProcess) -> None:
    with broker:
        assert broker.process is not None
        broker.process.send_signal(signal.SIGINT)
        assert broker.process.wait(30) == 0
        assert "Traceback" not in broker.output


def test_port_0_is_the_port_that_the_line_names(tmp_path: Path) -> None:
    with started("--data", str(tmp_path / "data"), "--override", "listeners=PLAINTEXT://127.0.0.1:0") as process:
        found = READY.match(log_of(process).readline())
        assert found is not None
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=10).close()
        process.terminate()
        assert process.wait(30) == 0


def test_a_pipe_is_told_the_listeners_when_clients_can_connect(tmp_path: Path) -> None:
    ready, tells = os.pipe()
    command = [sys.executable, "-m", "kbroker.cli.main", "start", "--data", str(tmp_path / "data")]
    command += ["--override", "listeners=A://127.0.0.1:0,B://127.0.0.1:0", "--ready-fd", str(tells)]
    command += ["--override", "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, pass_fds=[tells]) as process:
        os.close(tells)
        with os.fdopen(ready) as told:
            listeners = re.fullmatch(r"A://127\.0\.0\.1:(\d+)\nB://127\.0\.0\.1:(\d+)\n", told.read())
        assert listeners is not None
        for port in listeners.groups():
            socket.create_connection(("127.0.0.1", int(port)), timeout=10).close()
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize("when", ["while it runs", "before it runs"])
def test_a_broker_is_killed_when_its_lifeline_breaks(when: str, tmp_path: Path) -> None:
    ready, tells = os.pipe()
    lifeline, held = os.pipe()
    command = [sys.executable, "-m", "kbroker.cli.main", "start", "--data", str(tmp_path / "data")]
    command += ["--override", "listeners=PLAINTEXT://127.0.0.1:0", "--ready-fd", str(tells)]
    command += ["--lifeline-fd", str(lifeline)]
    if when == "before it runs":
        os.close(held)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, pass_fds=[tells, lifeline]) as process:
        os.close(tells)
        os.close(lifeline)
        with os.fdopen(ready) as told:
            assert bool(told.read()) == (when == "while it runs")
        if when == "while it runs":
            os.close(held)
        assert process.wait(30) == -signal.SIGKILL


def test_what_cannot_be_started_is_one_line_and_exit_code_1(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.overrides["kbroker.http.address"] = "127.0.0.1:0"
    with broker:
        served = re.search(r"on http://127\.0\.0\.1:(\d+)", broker.output)
        assert served is not None
        listeners = f"listeners=PLAINTEXT://127.0.0.1:{broker.port}"
        for words, says in (
            (["--data", str(broker.data)], f"{broker.data} is in use"),
            (
                ["--data", str(tmp_path / "other"), "--override", listeners],
                f"127.0.0.1:{broker.port}: the port is in use",
            ),
            (
                ["--data", str(tmp_path / "third"), "--override", f"kbroker.http.address=127.0.0.1:{served[1]}"],
                f"kbroker.http.address: cannot listen on 127.0.0.1:{served[1]}: address already in use",
            ),
            (["--data", str(broker.folder / "output.txt")], "output.txt"),
        ):
            done = start_beside(*words, "--log-level", "error")
            assert done.returncode == 1, words
            assert says in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_data_directory_of_another_broker_is_refused(broker: BrokerProcess) -> None:
    with broker:
        broker.stop()
    done = start_beside("--data", str(broker.data), "--override", "broker.id=77")
    assert done.returncode == 1 and "77" in done.stderr and done.stderr.count("\n") == 1


def test_warnings_name_settings_that_are_unknown_old_or_not_used(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"log.dirs={tmp_path}/data\nlisteners=PLAINTEXT://0.0.0.0:0\nlog.segment.byte=9\nlog.file.size=99999\n"
        "zookeeper.set.acl=true\nlog.retention.hours=1\n"
    )
    with started(str(properties)) as process:
        said = "".join(iter_until(log_of(process), " serves "))
        process.terminate()
        assert process.wait(30) == 0
    assert "WARNING server.properties:3: log.segment.byte: unknown setting; did you mean log.segment.bytes?" in said
    assert "server.properties:4: log.file.size is an old name of log.segment.bytes" in said
    assert "not used: zookeeper.set.acl (not yet" in said
    assert "WARNING PLAINTEXT://0.0.0.0:0 takes everybody who reaches it: there is no authentication" in said


class TellingBroker(BrokerProcess):
    """Ready when it says so: a client may have its first answer just before."""

    def is_ready(self) -> bool:
        return "; ready in " in self.output


def test_metrics_health_and_readiness_are_served_on_their_own_port() -> None:
    with TellingBroker({"kbroker.http.address": "127.0.0.1:0"}) as broker:
        served = re.search(r"on (http://127\.0\.0\.1:\d+)", broker.output)
        assert served is not None

        def get(path: str) -> str:
            with urllib.request.urlopen(served[1] + path, timeout=10) as answer:
                assert answer.status == 200
                text: str = answer.read().decode()
                return text

        assert get("/health") == get("/ready") == "ok\n"
        kbroker = [sys.executable, "-m", "kbroker.cli.main"]
        subprocess.run([*kbroker, "produce", "views", "-b", broker.address], input=b"a\nb\n", check=True, timeout=60)
        words = ["consume", "views", "--group", "g", "--from-beginning", "--max-messages", "2", "-b", broker.address]
        subprocess.run([*kbroker, *words], stdout=subprocess.DEVNULL, check=True, timeout=60)
        lines = get("/metrics").splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        sampled = {re.sub(r"\{.*|_bucket|_count$|_sum$", "", name) for name in values}
        assert set(METRICS) - MEMBER_METRICS - sampled == set()
        assert values['kbroker_messages_in_total{topic="views"}'] == "2.0"
        assert float(values['kbroker_requests_total{api="Produce"}']) >= 1
        assert float(values['kbroker_requests_total{api="JoinGroup"}']) >= 1
        assert float(values['kbroker_request_seconds_count{api="Fetch"}']) >= 1
        assert values['kbroker_groups{state="Empty"}'] == "1.0"
        assert 0 < float(values['kbroker_processor_idle_ratio{processor="0"}']) <= 1
        assert float(values["process_resident_memory_bytes"]) > 0
        with pytest.raises(urllib.error.HTTPError):
            get("/nothing")


MODULES = """
import json, sys
from kbroker.config.broker_config import load_config
from kbroker.server.broker import Broker
import kbroker.cli.main, kbroker.cli.start
broker = Broker(load_config(None, ["listeners=PLAINTEXT://127.0.0.1:0"], sys.argv[1], {}))
broker.start()
print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
broker.stop()
"""


def test_a_started_broker_has_imported_nothing_heavy(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MODULES, str(tmp_path)]
    modules = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    heavy = {
        "numpy",
        "pyarrow",
        "rich",
        "kazoo",
        "prometheus_client",
        "re2",
        "asyncio",
        "ssl",
        "http",
        "unittest",
        "hashlib",
        "stringprep",
        "multiprocessing",
    }
    assert heavy & set(modules) == set()


def test_a_stop_that_does_not_end_is_ended(broker: BrokerProcess) -> None:
    """A second signal while the broker stops ends the process at once; nothing acknowledged is lost by it."""
    with broker:
        assert broker.process is not None
        broker.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        while broker.process.poll() is None and time.monotonic() < deadline:
            broker.process.send_signal(signal.SIGTERM)
        assert broker.process.returncode in (0, 1)
        assert "Traceback" not in broker.output


def test_verify_log_finds_nothing_wrong_with_what_a_broker_leaves_behind(broker: BrokerProcess) -> None:
    broker.overrides.update({"log.segment.bytes": 20_000, "log.index.interval.bytes": 500})

    def problems() -> str:
        command = [sys.executable, "-m", "kbroker.cli.main", "verify-log", str(broker.data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == (1 if done.stdout else 0), done.stderr
        return done.stdout

    with broker:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd", "none", "none"):
            lines = b"".join(b"%s message %d\n" % (codec.encode(), number) for number in range(500))
            words = ["produce", "views", "--compression", codec, "-b", broker.address]
            subprocess.run([sys.executable, "-m", "kbroker.cli.main", *words], input=lines, check=True, timeout=60)
        assert problems() == ""
        broker.kill()
        assert problems() == ""
        broker.start()
        broker.stop()
        assert problems() == ""
    assert len(list(broker.data.glob("views-0/*.log"))) > 1
