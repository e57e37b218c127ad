"""What the embedded store promises beyond the tree: sessions, threads, and its file."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kbroker.coordination.embedded import EmbeddedStore, StoreDamaged, store_path
from kbroker.coordination.store import (
    Create,
    Delete,
    SessionExpired,
    StoreUnavailable,
)
from kbroker.errors import KbrokerError
from tests.kit.crash.small_disk import disk, fill
from tests.kit.threads import run_all


@pytest.fixture
def path(tmp_path: Path) -> str:
    return store_path(str(tmp_path))


@pytest.fixture
def store(path: str) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(path)
    yield store
    store.stop()


def test_a_node_survives_a_restart_with_its_version_and_ids(path: str) -> None:
    store = EmbeddedStore(path)
    session = store.connect()
    session.create("/a", b"1")
    session.set("/a", b"2", version=0)
    before = session.get("/a")
    store.stop()
    store = EmbeddedStore(path)
    assert store.connect().get("/a") == before
    assert before[1].modification_id > before[1].creation_id > 0
    store.stop()


def test_ids_of_changes_and_sessions_never_repeat_after_a_restart(path: str) -> None:
    seen: list[tuple[int, int]] = []
    for _ in range(3):
        store = EmbeddedStore(path)
        session = store.connect()
        session.create("/alive", ephemeral=True)
        seen.append((session.get("/alive")[1].creation_id, session.session_id))
        store.stop()
    assert seen == sorted(set(seen))
    assert len({session_id for _, session_id in seen}) == 3


def test_ephemeral_nodes_are_never_written(path: str) -> None:
    store = EmbeddedStore(path)
    session = store.connect()
    session.create("/alive", b"x", ephemeral=True)
    session.create("/kept", b"x")
    store.stop()
    rows = sqlite3.connect(path).execute("SELECT path FROM node ORDER BY path").fetchall()
    assert rows == [("/",), ("/kept",)]


def test_many_threads_see_each_of_their_own_changes_and_lose_none(store: EmbeddedStore) -> None:
    store.connect().create("/counter", b"0")

    def work(number: int) -> None:
        session = store.connect()
        for each in range(50):
            path = session.create(f"/t{number}-", str(each).encode(), sequential=True)
            assert session.get(path)[0] == str(each).encode()
            session.set("/counter", b"")
            alive = session.create(f"/alive{number}", ephemeral=True)
            if each % 2:
                session.delete(alive)
            else:
                session.close()
                session = store.connect()

    run_all(*(partial(work, number) for number in range(4)))
    session = store.connect()
    assert session.get("/counter")[1].version == 200
    names = session.children("/")
    assert len(names) == 201
    assert len({name[-10:] for name in names if name != "counter"}) == 200


def test_a_session_ending_together_with_its_last_create_leaves_nothing(store: EmbeddedStore) -> None:
    watcher = store.connect()
    for _ in range(50):
        session = store.connect()

        def create(session=session) -> None:  # type: ignore[no-untyped-def]
            try:
                session.create("/alive", ephemeral=True)
            except SessionExpired:
                pass

        thread = threading.Thread(target=create)
        thread.start()
        session.close()
        thread.join()
        assert watcher.exists("/alive") is None


def test_a_second_opening_of_the_same_file_is_refused_in_one_line(store: EmbeddedStore, path: str) -> None:
    with pytest.raises(StoreUnavailable) as raised:
        EmbeddedStore(path)
    assert str(raised.value) == f"{path} is in use by another process"


@pytest.mark.parametrize(
    "damage", [b"this is no database at all, only some text" * 100, b"SQLite format 3\0" + bytes(84)]
)
def test_a_damaged_file_gives_one_clear_line(path: str, damage: bytes) -> None:
    Path(path).write_bytes(damage)
    with pytest.raises(StoreDamaged) as raised:
        EmbeddedStore(path)
    assert path in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_with_overwritten_pages_is_damaged_and_not_half_read(path: str) -> None:
    store = EmbeddedStore(path)
    session = store.connect()
    session.multi([Create(f"/n{number}", b"x" * 100) for number in range(500)])
    store.stop()
    size = os.path.getsize(path)  # noqa: PTH202
    with open(path, "r+b") as file:  # noqa: PTH123
        file.seek(4096)  # what is behind the nodes is free
        file.write(b"\xff" * (size // 4))
    with pytest.raises(StoreDamaged):
        EmbeddedStore(path)


def test_a_file_of_a_later_format_is_left_alone(path: str) -> None:
    EmbeddedStore(path).stop()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=99")
    database.commit()
    database.close()
    with pytest.raises(StoreUnavailable, match="has format 99"):
        EmbeddedStore(path)


def test_a_directory_that_is_not_there_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        EmbeddedStore(str(tmp_path / "no" / "such" / "store"))


def test_calls_after_stop_are_refused(path: str) -> None:
    store = EmbeddedStore(path)
    session = store.connect()
    store.stop()
    store.stop()
    with pytest.raises(StoreUnavailable):
        session.create("/a")


def test_a_full_disk_refuses_the_change_and_the_store_goes_on_when_there_is_space(path: str) -> None:
    store = EmbeddedStore(path)
    session = store.connect()
    session.create("/a", b"old")
    # SQLite's own limit gives the same error as a disk without space.
    store._database.execute("PRAGMA max_page_count=20")
    with pytest.raises(StoreUnavailable, match="the disk is full; nothing was changed"):
        session.create("/big", bytes(200_000))
    assert session.children("/") == ["a"]
    store._database.execute("PRAGMA max_page_count=1000000")
    session.create("/big", bytes(200_000))
    store.stop()
    store = EmbeddedStore(path)
    assert store.connect().children("/") == ["a", "big"]
    store.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "disk") as directory:
        yield directory


@pytest.mark.parametrize("is_stopped", [False, True])
def test_with_no_byte_left_topics_are_deleted_and_settings_changed_but_nothing_is_made(
    small_disk: Path, is_stopped: bool
) -> None:
    path = str(small_disk / "store")
    store = EmbeddedStore(path)
    session = store.connect()
    session.multi([Create(name) for name in ("/brokers", "/brokers/topics", "/config", "/config/topics", "/admin")])
    session.create("/admin/delete_topics")
    for number in range(300):
        session.multi([Create(f"/brokers/topics/{number}"), Create(f"/brokers/topics/{number}/state", bytes(300))])
    filler = fill(small_disk)
    if is_stopped:
        store.stop()
        filler = fill(small_disk)
        store = EmbeddedStore(path)
        session = store.connect()
    for number in range(300):
        with pytest.raises(StoreUnavailable, match="the disk is full; nothing was changed"):
            session.create(f"/brokers/topics/made-{number}", bytes(1000))
        session.create(f"/config/topics/{number}", b"retention.ms=1")
        session.create(f"/admin/delete_topics/{number}")
        session.multi([Delete(f"/brokers/topics/{number}/state"), Delete(f"/brokers/topics/{number}")])
        session.multi([Delete(f"/admin/delete_topics/{number}"), Delete(f"/config/topics/{number}")])
        session.set("/config/topics", b"%d" % number)
    filler.unlink()
    session.create("/brokers/topics/made", bytes(1000))
    store.stop()
    store = EmbeddedStore(path)
    assert store.connect().children("/brokers/topics") == ["made"]
    assert store.connect().get("/config/topics")[0] == b"299"
    store.stop()


KILLED = """
import sys
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.store import Create, SetData
import threading
store = EmbeddedStore(sys.argv[1])
def work(number):
    session = store.connect()
    each = 0
    while True:
        name = f"/t{number}-{each}"
        session.multi([Create(name), Create(name + "/child", b"whole"), SetData("/", name.encode())])
        sys.stdout.write(name + "\\n")
        sys.stdout.flush()
        each += 1
for number in range(3):
    threading.Thread(target=work, args=(number,), daemon=True).start()
threading.Event().wait(60)
"""


def test_what_was_acknowledged_survives_kill_9_and_nothing_is_half_there(path: str) -> None:
    acknowledged: list[str] = []
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if len(lines) == 40:
                process.send_signal(signal.SIGKILL)
                break
        lines += process.stdout.readlines()
        process.wait()
        acknowledged = [line.strip() for line in lines if line.endswith("\n")]
        store = EmbeddedStore(path)
        session = store.connect()
        for name in acknowledged:
            assert session.get(name + "/child")[0] == b"whole", name
        for name in session.children("/"):
            assert session.children("/" + name) == ["child"]
            session.delete(f"/{name}/child")
            session.delete("/" + name)
        store.stop()


def test_a_session_ends_even_while_the_disk_is_full(store: EmbeddedStore) -> None:
    session, other = store.connect(), store.connect()
    session.create("/alive", ephemeral=True)
    store._database.execute("PRAGMA max_page_count=5")

    def fill() -> None:
        with pytest.raises(StoreUnavailable):
            other.create("/big", bytes(1_000_000))

    thread = threading.Thread(target=fill)
    thread.start()
    session.close()
    thread.join()
    assert other.exists("/alive") is None


def test_a_flipped_bit_of_the_file_changes_no_node_unseen(path: str) -> None:
    store = EmbeddedStore(path)
    session = store.connect()
    for number in range(60):
        session.create(f"/n{number}", b"%d" % number * 50)
    session.set("/n1", b"other")
    session.delete("/n2")
    store.stop()
    good = {**store._tree.values}
    data = Path(path).read_bytes()
    places = [at for at in range(0, len(data), 61) if any(data[at : at + 64])]  # but few of those of the reserve
    refused = 0
    for number, at in enumerate(places[:: max(1, len(places) // 150)]):
        damaged = bytearray(data)
        damaged[at] ^= 1 << number % 8
        Path(path).write_bytes(damaged)
        for beside in ("-wal", "-reserve"):
            Path(path + beside).unlink(missing_ok=True)
        try:
            again = EmbeddedStore(path)
        except KbrokerError:
            refused += 1
        else:
            assert again._tree.values == good, at
            again.stop()
    assert refused > 50


def test_a_file_without_a_sum_gets_one(path: str) -> None:
    store = EmbeddedStore(path)
    store.connect().create("/a", b"x")
    store.stop()
    database = sqlite3.connect(path)
    database.execute("ALTER TABLE opened DROP COLUMN sum")
    database.execute("PRAGMA user_version=1")
    database.commit()
    database.close()
    store = EmbeddedStore(path)
    store.connect().create("/b", b"y")
    store.stop()
    database = sqlite3.connect(path)
    database.execute("UPDATE node SET value = ? WHERE path = '/a'", (bytes(40) + b"z",))
    database.commit()
    database.close()
    with pytest.raises(StoreDamaged, match="not those that were written"):
        EmbeddedStore(path)


def test_a_start_runs_no_python_for_each_node(path: str) -> None:
    def calls_of_a_start() -> int:
        calls: list[str] = []
        sys.setprofile(lambda frame, event, _: calls.append(event) if event == "call" else None)
        try:
            opened = EmbeddedStore(path)
        finally:
            sys.setprofile(None)
        opened.stop()
        return len(calls)

    calls_of_a_start()
    of_an_empty_one = calls_of_a_start()
    store = EmbeddedStore(path)
    session = store.connect()
    session.multi([Create(f"/{number}", b"x" * 30) for number in range(1000)])
    store.stop()
    assert calls_of_a_start() <= of_an_empty_one + 50
