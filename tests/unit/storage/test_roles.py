"""A partition's role: leader, follower, stopped; what a leader makes of its followers' fetches."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import LogHome, batch_of


@pytest.fixture
def home(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path, options=LogOptions(min_in_sync=2))


def fetched(log: Log, node_id: int, offset: int, now_ms: int = 1000) -> ErrorCode:
    return ErrorCode(log.state.follower_fetched(node_id, -1, offset, 0, now_ms))


def test_a_leaders_high_watermark_is_what_all_in_sync_replicas_have(home: LogHome) -> None:
    log = home.create()
    log.lead(3, {2: -1, 3: -1}, [1, 2, 3])
    log.append(batch_of([b"a", b"b"]), wait=False)
    assert (log.high_watermark, log.log_end_offset) == (0, 2)
    assert fetched(log, 2, 2) is ErrorCode.NONE
    assert log.high_watermark == 0
    assert fetched(log, 3, 1) is ErrorCode.NONE
    assert log.high_watermark == 1
    assert fetched(log, 3, 2) is ErrorCode.NONE
    assert log.high_watermark == 2
    assert fetched(log, 7, 2) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_nothing_is_committed_or_taken_while_the_in_sync_set_is_too_small(home: LogHome) -> None:
    log = home.create()
    log.lead(3, {2: -1, 3: -1}, [1, 2])
    log.append(batch_of([b"a"]), wait=False)
    log.state.set_in_sync([1], [1])
    with pytest.raises(ProtocolError) as refused:
        log.append(batch_of([b"b"]), wait=False)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    log.append(batch_of([b"b"]), wait=False, acks=1)
    fetched(log, 2, 2)
    assert log.high_watermark == 0
    log.state.set_in_sync([1, 2], [1, 2])
    assert log.high_watermark == 2


def test_what_was_sent_behind_a_batch_that_too_few_replicas_refused_is_refused_for_them_too(home: LogHome) -> None:
    """The ISR may grow in between. By OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka sends again what may have been stored."""
    log = home.create()
    log.lead(3, {2: -1, 3: -1}, [1, 2])
    log.append(batch_of([b"0"], producer_id=7, producer_epoch=0, base_sequence=0), wait=False)
    log.state.set_in_sync([1], [1])
    with pytest.raises(ProtocolError):
        log.append(batch_of([b"1"], producer_id=7, producer_epoch=0, base_sequence=1), wait=False)
    log.state.set_in_sync([1, 2], [1, 2])
    for sequence in (2, 3):
        with pytest.raises(ProtocolError) as refused:
            log.append(batch_of([b"2"], producer_id=7, producer_epoch=0, base_sequence=sequence), wait=False)
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    for sequence in (1, 2, 3):
        batch = batch_of([b"3"], producer_id=7, producer_epoch=0, base_sequence=sequence)
        assert log.append(batch, wait=False).base_offset == sequence


@pytest.mark.parametrize(("registered_as", "known_end"), [(-1, 2), (69, 2), (70, 2), (71, -1)])
def test_what_a_follower_had_before_it_was_registered_anew_counts_no_more_in_the_next_epoch(
    home: LogHome, registered_as: int, known_end: int
) -> None:
    """The follower may have come back with an emptied disk: what it has now is known when it fetches."""
    log = home.create()
    log.lead(3, {2: -1}, [1, 2])
    log.append(batch_of([b"a", b"b"]), wait=False)
    log.state.follower_fetched(2, 70, 2, 0, 1000)
    log.append(batch_of([b"c"]), wait=False)
    log.lead(4, {2: registered_as}, [1, 2])
    (follower,) = log.state.followers()
    assert (follower.log_end_offset, follower.broker_epoch) == (known_end, max(registered_as, 70))


@pytest.mark.parametrize(("epoch", "committed"), [(3, 2), (4, 2), (5, 0)])
def test_what_a_follower_had_counts_no_more_if_another_broker_may_have_led_since(
    home: LogHome, epoch: int, committed: int
) -> None:
    """A leader that has missed an epoch: in it, the follower may have been told to cut its log."""
    log = home.create()
    log.lead(3, {2: -1}, [1, 2])
    log.append(batch_of([b"a", b"b"]), wait=False)
    log.state.set_in_sync([1], [1])
    assert fetched(log, 2, 2) is ErrorCode.NONE
    log.lead(epoch, {2: -1}, [1, 2])
    assert log.high_watermark == committed
    assert fetched(log, 2, 1) is ErrorCode.NONE
    assert log.high_watermark == max(committed, 1)


def test_a_follower_from_before_all_that_the_leader_knows_is_in_sync_once_its_log_begins_where_the_leaders_does(
    home: LogHome,
) -> None:
    """The follower was the leader. Others have deleted what they wrote in place of its last records."""
    log = home.create()
    log.lead(3, {2: -1}, [1])
    log.append(batch_of([b"a", b"b"]), wait=False, acks=1)
    log.state.set_in_sync([1], [1])
    fetched(log, 2, 2)
    log.lead(4, {2: -1}, [1, 2])
    fetched(log, 2, 2)
    log.delete_records_before(2)
    log.lead(5, {2: -1}, [1])
    for start, known_end in ((1, -1), (2, 2)):
        assert log.state.serve_follower(2, -1, 2, 3, start, 1000) == (0, (-1, -1))
        (follower,) = log.state.followers()
        assert follower.log_end_offset == known_end


def test_followers_and_stopped_replicas_take_no_append(home: LogHome) -> None:
    log = home.create()
    log.follow(1)
    with pytest.raises(ProtocolError) as refused:
        log.append(batch_of([b"a"]), acks=1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    log.stop_replica()
    assert log.state.role == "stopped"
    with pytest.raises(ProtocolError) as refused:
        log.append(batch_of([b"a"]), acks=1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_epoch_begins_at_election_without_an_append(home: LogHome) -> None:
    log = home.create()
    log.lead(1, {2: -1}, [1, 2])
    log.append(batch_of([b"a", b"b"]), wait=False)
    log.lead(4, {2: -1}, [1, 2])
    assert log.end_offset_for_epoch(4) == (4, 2)
    assert log.end_offset_for_epoch(3) == (1, 2)
    assert (log.state.led_since, log.state.epoch_start_offset) == (1, 2)


@pytest.mark.parametrize("clean", [True, False])
def test_the_epoch_of_an_empty_log_is_known_after_a_start_and_dropped_if_the_cluster_has_not_come_so_far(
    home: LogHome, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    home.context.is_member = True
    log = home.create()
    log.lead(5, {2: -1}, [1, 2])
    log.close()
    log = home.reopen(clean=clean)
    assert log.epochs == [(5, 0)]
    log.follow(6)
    assert log.epochs == [(5, 0)], "as in Kafka: the leader of epoch 6 tells where it differs"
    log.lead(3, {2: -1}, [1, 2])
    assert log.epochs == [(3, 0)], "an epoch that nobody has given fences nobody"
    assert caplog.messages == []


# --- fsync before ack


@pytest.fixture
def flushing(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path, options=LogOptions(min_in_sync=2, flush_messages=1))


def test_with_fsync_before_ack_nothing_is_committed_before_its_leader_has_flushed_it(flushing: LogHome) -> None:
    """All may lose power at once: a consumer has seen nothing that only some of them have."""
    log = flushing.create()
    log.lead(3, {2: -1, 3: -1}, [1, 2, 3])
    log.append(batch_of([b"a", b"b"]), wait=False)
    fetched(log, 2, 2)
    fetched(log, 3, 2)
    assert (log.state.flushed_offset, log.high_watermark) == (0, 0)
    log.flush()
    assert log.high_watermark == 2


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_with_fsync_before_ack_a_new_role_begins_with_what_an_earlier_one_has_left_unflushed(
    flushing: LogHome, role: str
) -> None:
    """The log's end is told in the new role at once, and counts as stored."""
    log = flushing.create()
    log.follow(1)
    records = batch_of([b"a", b"b"])
    assert log.state.append_as_follower(records, 1, 0, 0) == 0
    assert log.state.flushed_offset == 0
    if role == "leader":
        log.lead(2, {2: -1, 3: -1}, [1, 2])
    else:
        log.follow(2)
    assert log.state.flushed_offset == 2


def test_without_fsync_before_ack_a_new_role_flushes_nothing(home: LogHome) -> None:
    log = home.create()
    log.follow(1)
    assert log.state.append_as_follower(batch_of([b"a"]), 1, 0, 0) == 0
    log.follow(2)
    assert log.state.flushed_offset == 0
