"""The owner of a log directory, and directories that are damaged, foreign or missing: one clear line for each."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.errors import ErrorCode, ProtocolError, StorageFailed
from kbroker.fs import RealFileSystem
from kbroker.model import TopicPartition
from kbroker.storage import checkpoints
from kbroker.storage.directory import WrongDirectory, load_meta_properties
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.crash.fs import CrashFileSystem
from tests.kit.logs.home import TOPIC_ID, batch_of, read_all
from tests.kit.parts.processors import wait_until

FS = RealFileSystem()
KAFKA = b"#\n#Sun Nov 22 03:26:19 UTC 2026\nbroker.id=3\nversion=0\ncluster.id=vPeOCWypqUOSepEvx0cbog\n"
ORDERS = TopicPartition("orders", 0)


def manager(*folders: Path, fs: RealFileSystem | CrashFileSystem | None = None) -> LogManager:
    return LogManager(StorageOptions(tuple(map(str, folders)), flusher_threads=1), fs=fs)


def test_what_kafka_writes_is_understood(tmp_path: Path) -> None:
    assert load_meta_properties(FS, str(tmp_path)) is None
    (tmp_path / "meta.properties").write_bytes(KAFKA + b"directory.id=Hk8xHtZvRnyJXc5gdGu2yg\n")
    meta = load_meta_properties(FS, str(tmp_path))
    assert meta is not None
    assert (meta.node_id, meta.cluster_id) == (3, "vPeOCWypqUOSepEvx0cbog")
    assert meta.directory_id is not None
    # Kafka before 0.10.1 wrote no cluster id.
    (tmp_path / "meta.properties").write_bytes(b"version=0\nbroker.id=3\n")
    meta = load_meta_properties(FS, str(tmp_path))
    assert meta is not None
    assert (meta.node_id, meta.cluster_id) == (3, None)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"version=1\nnode.id=1\ncluster.id=x\n", "KRaft mode"),
        (b"node.id=1\n", "KRaft mode"),
        (b"broker.id=1\nversion=2\n", "version 2 is of a newer format; this release of kbroker reads 0 at byte 12"),
        (b"broker.id=1\nversion=x\n", "version=x is no version at byte 12"),
        (b"", "there is no version at byte 0"),
        (b"broker.id=1\n", "there is no version at byte 12"),
        (b"broker.id=one\nversion=0\n", "broker.id=one is not one at byte 0"),
        (b"broker.id=1\nversion=0\ncluster.id=\n", "cluster.id= is not one at byte 22"),
        (b"broker.id=1\nversion=0\ndirectory.id=x\n", "directory.id=x is not one at byte 22"),
        (b"broker.id=1\nversion=0\ncluster\n", "the line 'cluster' is cut short at byte 22"),
        (b"\xff\xfe\n", "cut short at byte 0"),
    ],
)
def test_a_meta_properties_that_is_not_for_us_is_refused_with_its_place(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "meta.properties").write_bytes(data)
    with pytest.raises(WrongDirectory) as refused:
        manager(tmp_path).lock_directories()
    assert said in str(refused.value)
    assert f"{tmp_path}/meta.properties: " in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("size", range(len(KAFKA)))
def test_a_meta_properties_cut_short_is_never_another_identity(tmp_path: Path, size: int) -> None:
    (tmp_path / "meta.properties").write_bytes(KAFKA[:size])
    try:
        meta = load_meta_properties(FS, str(tmp_path))
    except WrongDirectory:
        return
    assert meta is not None
    assert (meta.node_id, meta.cluster_id) == (3, None), "as an old Kafka has written it"


def test_a_kraft_directory_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    with pytest.raises(WrongDirectory, match="KRaft mode"):
        manager(tmp_path).start(lambda at: None)
    assert {path.name for path in tmp_path.iterdir()} <= {".lock", "__cluster_metadata-0"}


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    for name, cluster_id in (("a", "one"), ("b", "two")):
        logs = manager(tmp_path / name)
        logs.start(lambda at: None, 1, cluster_id, background=False)
        logs.stop()
    logs = manager(tmp_path / "a", tmp_path / "b")
    with pytest.raises(WrongDirectory, match=r"b belongs to cluster two, not to one"):
        logs.start(lambda at: None, 1, "one", background=False)


def test_the_identity_is_put_together_from_all_directories(tmp_path: Path) -> None:
    for name, text in (("a", "version=0\n"), ("b", "version=0\nbroker.id=7\n"), ("c", "version=0\ncluster.id=x\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text(text)
    logs = manager(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    meta = logs.lock_directories()
    assert meta is not None
    assert (meta.node_id, meta.cluster_id) == (7, "x")
    logs.stop()


def test_a_partition_that_is_in_two_directories_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "orders-0").mkdir(parents=True)
    logs = manager(tmp_path / "a", tmp_path / "b")
    with pytest.raises(WrongDirectory, match=r"b/orders-0 and .*/a/orders-0 are of the same partition"):
        logs.start({ORDERS: (TOPIC_ID, LogOptions())}.get, background=False)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Path]]:
    """Two directories with a log in each."""
    folders = [tmp_path / "a", tmp_path / "b"]
    logs = manager(*folders)
    logs.start(lambda at: None, 1, "c", background=False)
    for partition_id in range(2):
        logs.create("orders", TOPIC_ID, partition_id, LogOptions()).append(batch_of([b"x"]))
    logs.stop()
    assert [len(list(folder.glob("orders-*"))) for folder in folders] == [1, 1]
    yield folders


def start_without_one(two: list[Path]) -> LogManager:
    """Start a broker after the first directory was replaced by a file."""
    two[0].rename(two[0].with_name("elsewhere"))
    two[0].write_text("")
    logs = manager(*two)
    logs.start(
        {TopicPartition("orders", at): (TOPIC_ID, LogOptions()) for at in range(2)}.get, 1, "c", background=False
    )
    return logs


def test_a_directory_that_is_bad_at_the_start_is_left_out_while_others_are_good(
    two: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    logs = start_without_one(two)
    assert logs.usable_directories == [str(two[1])]
    assert [line for line in caplog.messages if "offline" in line] == [
        f"log directory {two[0]} is offline: log directory {two[0]} cannot be made: file exists ({two[0]})"
    ]
    assert logs.offline_directories == [str(two[0])]
    # The other one serves, and takes what is new.
    found = {at: logs.get(TopicPartition("orders", at)) for at in range(2)}
    (served,) = (log for log in found.values() if log is not None)
    assert served.append(batch_of([b"y"])).base_offset == 1
    assert logs.create("new", TOPIC_ID, 0, LogOptions()).append(batch_of([b"x"])).base_offset == 0
    # What was in the bad one is offline, and not made anew elsewhere.
    (missing,) = (at for at, log in found.items() if log is None)
    log = logs.create("orders", TOPIC_ID, missing, LogOptions(), is_new=False)
    with pytest.raises(ProtocolError) as refused:
        log.append(batch_of([b"x"]))
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    failed: list[tuple[str, list[TopicPartition]]] = []
    logs.set_on_directory_failed(lambda *what: failed.append(what))
    assert failed == [(str(two[0]), [TopicPartition("orders", missing)])]
    logs.stop()
    assert not two[0].is_dir()
    # When it is back, everything is there.
    two[0].unlink()
    two[0].with_name("elsewhere").rename(two[0])
    logs = manager(*two)
    logs.start(lambda at: (TOPIC_ID, LogOptions()), 1, "c", background=False)
    back = logs.get(TopicPartition("orders", missing))
    assert back is not None
    assert len(read_all(back)) == 1
    logs.stop()


class Unreadable(RealFileSystem):
    """A file system with one file that cannot be read."""

    def __init__(self, path: Path):
        self._path = str(path)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if path == self._path:
            raise OSError(errno.EIO, "input/output error", path)
        return super().open(path, flags, mode)


@pytest.mark.parametrize("name", [checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS])
def test_a_directory_whose_checkpoints_cannot_be_read_is_left_out_while_others_are_good(
    two: list[Path], name: str
) -> None:
    logs = manager(*two, fs=Unreadable(two[0] / name))
    logs.start(lambda at: (TOPIC_ID, LogOptions()), 1, "c", background=False)
    assert logs.offline_directories == [str(two[0])]
    assert logs.left_out == [f"input/output error ({two[0]}/{name})"]
    (served,) = logs.logs()
    assert served.append(batch_of([b"y"])).base_offset == 1
    logs.stop()


def test_if_all_directories_are_bad_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "b").write_text("")
    with pytest.raises(StorageFailed) as refused:
        manager(tmp_path / "a", tmp_path / "b").start(lambda at: None)
    assert str(refused.value) == (
        f"log directory {tmp_path}/a cannot be made: file exists ({tmp_path}/a); "
        f"log directory {tmp_path}/b cannot be made: file exists ({tmp_path}/b); no log directory can be used"
    )


def test_who_is_to_know_hears_of_a_directory_that_fails_on_another_thread(two: list[Path]) -> None:
    logs = manager(*two)
    logs.start(lambda at: (TOPIC_ID, LogOptions()), 1, "c", background=False)
    heard: list[tuple[str, list[TopicPartition]]] = []
    logs.set_on_directory_failed(lambda *what: heard.append(what))
    log = logs.get(ORDERS)
    assert log is not None
    log.directory.fail("a test")
    wait_until(lambda: heard == [(log.directory.path, [ORDERS])], "the partitions that failed")
    logs.stop()


@pytest.mark.parametrize("name", ["orders-0.12345678901234567890123456789012-stray", "orders-0.0f0f-future"])
def test_directories_that_were_put_aside_are_kept_with_a_line(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "00000000000000000000.log").write_bytes(b"x")
    logs = manager(tmp_path)
    logs.start(lambda at: (TOPIC_ID, LogOptions()), background=False)
    assert [line for line in caplog.messages if name in line and "is left alone" in line]
    logs.run_due_jobs()
    logs.stop()
    assert (tmp_path / name / "00000000000000000000.log").exists()


def test_a_deletion_that_was_begun_is_finished_and_what_resists_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun, resisting = tmp_path / "a-0.0f-delete", tmp_path / "b-0.0f-delete"
    for path in (begun, resisting):
        path.mkdir()
        (path / "00000000000000000000.log").write_bytes(b"x")
    (resisting / "folder").mkdir()
    logs = manager(tmp_path)
    logs.start(lambda at: None, background=False)
    logs.run_due_jobs()
    logs.stop()
    assert not begun.exists()
    assert resisting.exists()
    assert [line for line in caplog.messages if str(resisting) in line and "cannot be removed" in line]


def test_a_file_with_the_name_of_a_partition_is_told(tmp_path: Path) -> None:
    (tmp_path / "orders-0").write_text("")
    logs = manager(tmp_path)
    logs.start(lambda at: (TOPIC_ID, LogOptions()), background=False)
    log = logs.get(ORDERS)
    assert log is not None
    with pytest.raises(StorageFailed, match=r"orders-0: .*[Nn]ot a directory"):
        log.open()
    logs.stop()
    assert (tmp_path / "orders-0").is_file()


def test_when_all_directories_have_failed_everything_is_refused_and_nothing_ends(two: list[Path]) -> None:
    logs = manager(*two)
    logs.start(lambda at: (TOPIC_ID, LogOptions()), 1, "c", background=False)
    for log in logs.logs():
        log.directory.fail("a test")
    for log in logs.logs():
        with pytest.raises(ProtocolError) as refused:
            log.append(batch_of([b"x"]))
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(StorageFailed, match="every log directory is offline"):
        logs.create("new", TOPIC_ID, 0, LogOptions())
    logs.write_checkpoints()
    logs.check_retention()
    logs.stop()
