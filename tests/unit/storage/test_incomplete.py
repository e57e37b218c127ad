"""A member's log knows what it has lost of that which was committed, until it is made good."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.errors import KbrokerError
from kbroker.fs import RealFileSystem
from kbroker.model import TopicPartition
from kbroker.storage import checkpoints, file_names
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import NEVER, LogOptions, StorageOptions
from tests.kit.logs.home import TOPIC_ID, TOPIC_PARTITION, batch_of

OPTIONS = LogOptions(segment_bytes=400, index_interval_bytes=0)
EPOCH = 3


class Member:
    """The logs of one broker, which has several lives."""

    def __init__(self, path: Path):
        self.path = path
        self.start()

    def start(self) -> None:
        self.manager = LogManager(StorageOptions((str(self.path),)), is_member=True)
        self.manager.start(lambda _: (TOPIC_ID, OPTIONS), background=False)

    def kill(self) -> None:
        self.manager.abandon()

    def create(self, *, is_new: bool = True) -> Log:
        topic, partition_id = TOPIC_PARTITION
        return self.manager.create(topic, TOPIC_ID, partition_id, OPTIONS, is_new=is_new)

    @property
    def log(self) -> Log:
        found = self.manager.get(TOPIC_PARTITION)
        assert found is not None
        return found

    def stored_high_watermark(self) -> int:
        self.manager.write_high_watermarks()
        found = checkpoints.load_offsets(RealFileSystem(), f"{self.path}/{checkpoints.HIGH_WATERMARKS}")
        return found[TOPIC_PARTITION]

    def flip(self, offset: int) -> None:
        """Flip a bit of the record at an offset. The file and the place are found by the record's value."""
        for path in self.path.glob(f"*/*{file_names.LOG}"):
            data = bytearray(path.read_bytes())
            at = data.find(b"record %03d" % offset)
            if at >= 0:
                data[at] ^= 1
                path.write_bytes(data)
                return
        raise AssertionError(f"no record {offset}")


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    member = Member(tmp_path)
    yield member
    member.kill()


def fill(log: Log, first: int, last: int, high_watermark: int) -> None:
    """Append records as their leader sends them."""
    log.follow(EPOCH)
    sent = [(at, batch_of([b"record %03d" % at])) for at in range(first, last)]
    data = b"".join(at.to_bytes(8, "big") + batch[8:] for at, batch in sent)
    assert log.state.append_as_follower(data, EPOCH, high_watermark, 0) == 0


@pytest.fixture
def filled(member: Member) -> Member:
    fill(member.create(), 0, 20, 18)
    assert member.stored_high_watermark() == 18
    return member


def open_refused(log: Log) -> str:
    with pytest.raises(KbrokerError) as refused:
        log.open()
    return str(refused.value)


def test_a_log_that_recovery_has_cut_below_its_high_watermark_says_so_until_it_is_made_good(
    filled: Member, caplog: pytest.LogCaptureFixture
) -> None:
    filled.kill()
    filled.flip(9)
    filled.start()
    filled.log.open()
    assert (filled.log.log_end_offset, filled.log.is_complete) == (9, False)
    assert "ends at offset 9, and was committed up to 18" in caplog.text
    assert filled.stored_high_watermark() == 18
    filled.kill()
    filled.start()
    filled.log.open()
    assert not filled.log.is_complete, "the next start knows it too"
    filled.log.mend()
    assert filled.log.is_complete
    assert filled.stored_high_watermark() == 9
    fill(filled.log, 9, 20, 20)


def test_what_recovery_cuts_above_the_stored_high_watermark_may_have_been_committed_since(filled: Member) -> None:
    filled.kill()
    filled.flip(19)
    filled.start()
    filled.log.open()
    assert (filled.log.log_end_offset, filled.log.is_complete) == (19, False)
    filled.log.accept()
    assert filled.log.is_complete


def test_a_log_that_was_not_cut_is_complete(filled: Member) -> None:
    filled.kill()
    filled.start()
    filled.log.open()
    assert (filled.log.log_end_offset, filled.log.is_complete) == (20, True)


def test_a_log_that_is_refused_after_a_clean_stop_is_cut_only_when_it_is_mended(filled: Member) -> None:
    filled.manager.stop()
    newest = max(filled.path.glob(f"*/*{file_names.LOG}"))
    newest.write_bytes(newest.read_bytes()[:-3])
    size = newest.stat().st_size
    filled.start()
    assert "cut it there" in open_refused(filled.log)
    assert not filled.log.is_complete
    with pytest.raises(KbrokerError):
        filled.log.accept()
    assert newest.stat().st_size == size
    filled.log.mend()
    assert (filled.log.log_end_offset, filled.log.is_complete) == (19, True)


def test_a_log_in_place_of_one_that_should_be_there_lacks_everything(member: Member) -> None:
    log = member.create(is_new=False)
    log.open()
    assert not log.is_complete
    assert member.stored_high_watermark() == NEVER
    member.kill()
    member.start()
    member.log.open()
    assert (member.log.is_complete, member.log.high_watermark) == (False, 0)
    member.log.mend()
    assert member.log.is_complete


def test_that_a_log_was_lost_is_known_before_it_is_made_anew(member: Member) -> None:
    member.create(is_new=False)
    member.kill()
    member.start()
    member.log.open()
    assert not member.log.is_complete


def test_lost_logs_are_noted_together(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, _ = TOPIC_PARTITION
    lost = [TopicPartition(topic, each) for each in range(20)]
    member.manager.expect(lost)
    assert checkpoints.load_offsets(RealFileSystem(), f"{member.path}/{checkpoints.HIGH_WATERMARKS}") == dict.fromkeys(
        lost, NEVER
    )
    monkeypatch.setattr(checkpoints, "store_offsets", None)
    for each in lost:
        assert not member.manager.create(topic, TOPIC_ID, each.partition_id, OPTIONS, is_new=False).is_complete


def test_a_log_is_not_made_in_place_of_a_lost_one_where_that_cannot_be_noted(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as context:
        context.setattr(checkpoints, "store_offsets", refuse)
        with pytest.raises(KbrokerError, match=r"is lost, and .* cannot note that"):
            member.create(is_new=False)
    assert member.manager.get(TOPIC_PARTITION) is None
    assert not member.create(is_new=False).is_complete


def test_a_new_log_is_not_taken_for_a_lost_one_of_the_same_name(member: Member) -> None:
    member.manager.expect([TOPIC_PARTITION])
    member.create()
    member.kill()
    member.start()
    member.log.open()
    assert member.log.is_complete


def test_a_lost_log_that_was_made_good_is_complete_although_no_checkpoint_says_so(member: Member) -> None:
    member.create(is_new=False)
    member.log.mend()
    fill(member.log, 0, 20, 18)
    member.kill()
    member.start()
    member.log.open()
    assert (member.log.log_end_offset, member.log.is_complete, member.log.high_watermark) == (20, True, 0)
    member.kill()
    member.flip(9)
    member.start()
    member.log.open()
    assert (member.log.log_end_offset, member.log.is_complete) == (9, False), "what was cut off may be committed"


@pytest.mark.parametrize("offset", [0, 9, 19])
def test_a_damaged_batch_is_found_and_the_log_cut_there(
    filled: Member, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert [filled.log.find_damage(at) for at in range(21)] == [None] * 21
    filled.flip(offset)
    found = {filled.log.find_damage(at) for at in range(20)} - {None}
    assert found == {offset}
    assert f", offset {offset}" in caplog.text
    filled.log.note_damage(offset)
    assert not filled.log.is_complete
    assert filled.stored_high_watermark() == max(18, offset + 1)
    filled.log.mend()
    assert (filled.log.log_end_offset, filled.log.is_complete) == (offset, True)
    fill(filled.log, offset, 25, 25)
    assert filled.log.find_damage(offset) is None


def test_logs_of_a_broker_that_is_alone_lack_nothing(tmp_path: Path) -> None:
    manager = LogManager(StorageOptions((str(tmp_path),)))
    manager.start(lambda _: (TOPIC_ID, OPTIONS), background=False)
    topic, partition_id = TOPIC_PARTITION
    log = manager.create(topic, TOPIC_ID, partition_id, OPTIONS, is_new=False)
    log.open()
    assert log.is_complete
    manager.abandon()
