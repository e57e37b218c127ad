"""ISRs that change: who is let in and put out, and how the controller is asked (AlterPartition)."""

from __future__ import annotations

import logging
import threading

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.replication import in_sync_requests
from kbroker.replication.hosted import Hosted
from tests.kit.models.replica_logs import ModelFollower, ModelLogs, ModelState
from tests.kit.parts.members import FIRST, ME, TOPIC, TOPIC_ID, Ask, Member, role

LAG_MS = 30_000
SECOND = TopicPartition(TOPIC, 1)
A = M.AlterPartitionRequest


@pytest.fixture
def led(member: Member, logs: ModelLogs) -> ModelState:
    """The log of partition 0, led with replica 2 in the ISR and replica 3 outside; both are where the leader is."""
    member.tell_roles(role(0, isr=[1, 2], leader_epoch=5, partition_epoch=7))
    state = logs.logs[FIRST].state
    state.log_end_offset = state.high_watermark = 100
    now_ms = int(member.clock.monotonic() * 1000)
    for node_id in (2, 3):
        state.seen[node_id] = ModelFollower(node_id, 500 + node_id, 100, 0, now_ms, node_id == 2)
    return state


def hosted(member: Member, topic_partition: TopicPartition = FIRST) -> Hosted:
    found = member.partitions.get(topic_partition)
    assert found is not None
    return found


def pass_ms(member: Member, ms: int) -> int:
    member.clock.now_ms += ms
    return member.partitions.tick()


def only_ask(member: Member) -> Ask:
    (ask,) = member.asks
    member.asks.clear()
    return ask


def asked(ask: Ask, version: int = 3) -> dict[int, list[int]]:
    """The ISRs in a request, by partition."""
    return {
        part.partition_index: [each.broker_id for each in part.new_isr_with_epochs] if version >= 3 else part.new_isr
        for topic in ask.request(version).topics
        for part in topic.partitions
    }


# --- letting in


def test_a_follower_that_has_caught_up_is_let_in_and_counts_at_once(member: Member, led: ModelState) -> None:
    member.partitions.on_news([FIRST])
    assert (led.committed, led.maximal) == ({1, 2}, {1, 2, 3})
    assert hosted(member).proposed is not None
    ask = only_ask(member)
    request = ask.request()
    assert (request.broker_id, request.broker_epoch) == (ME, 100)
    (topic,) = request.topics
    (part,) = topic.partitions
    assert (topic.topic_id, part.partition_index) == (TOPIC_ID.bytes, 0)
    assert (part.leader_epoch, part.partition_epoch, part.leader_recovery_state) == (5, 7, 0)
    epochs = {each.broker_id: each.broker_epoch for each in part.new_isr_with_epochs}
    assert epochs == {1: 100, 2: 502, 3: 503}  # KIP-903
    ask.commit()
    assert (led.committed, led.maximal) == ({1, 2, 3}, {1, 2, 3})
    found = hosted(member)
    assert (found.isr, found.partition_epoch, found.proposed) == ((1, 2, 3), 8, None)
    assert member.partitions.counts == (1, 0, 0, 0)


@pytest.mark.parametrize("version", range(4))
def test_every_version_of_alter_partition_is_asked_and_understood(
    member: Member, led: ModelState, version: int
) -> None:
    member.partitions.on_news([FIRST])
    ask = only_ask(member)
    request = ask.request(version)
    assert request.topics[0].topic_name == (TOPIC if version <= 1 else "")
    assert asked(ask, version) == {0: [1, 2, 3]}
    ask.commit(version)
    assert led.committed == {1, 2, 3}


@pytest.mark.parametrize(("version", "highest"), [(4, 1), (5, 3)])
def test_without_topic_ids_a_lower_version_is_asked(
    member: Member, logs: ModelLogs, version: int, highest: int
) -> None:
    member.tell_roles(role(0, isr=[1]), version=version)
    logs.logs[FIRST].state.seen[2].log_end_offset = 0
    member.partitions.on_news([FIRST])
    assert only_ask(member).highest == highest


@pytest.mark.parametrize(
    ("live", "end", "high_watermark", "is_let_in"),
    [((1, 2, 3), 100, 100, True), ((1, 2), 100, 100, False), ((1, 2, 3), 99, 100, False), ((1, 2, 3), 99, 99, True)],
)
def test_who_is_let_in(
    member: Member, led: ModelState, live: tuple[int, ...], end: int, high_watermark: int, is_let_in: bool
) -> None:
    member.tell_brokers(*live)
    led.seen[3].log_end_offset, led.high_watermark = end, high_watermark
    member.partitions.on_news([FIRST])
    assert bool(member.asks) == is_let_in


def test_nobody_is_let_in_before_the_start_of_the_leaders_epoch(member: Member, led: ModelState) -> None:
    """KAFKA-7128."""
    led.log_end_offset = 150
    member.tell_roles(role(0, isr=[1, 2], leader_epoch=6, partition_epoch=8))
    led.seen[3].log_end_offset = 149
    member.partitions.on_news([FIRST])
    assert member.asks == []
    led.seen[3].log_end_offset = 150
    member.partitions.on_news([FIRST])
    assert asked(only_ask(member)) == {0: [1, 2, 3]}


def test_two_that_are_ready_come_one_after_the_other(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0, isr=[1]))
    for follower in logs.logs[FIRST].state.seen.values():
        follower.log_end_offset = 0
    member.partitions.on_news([FIRST])
    ask = only_ask(member)
    assert asked(ask) == {0: [1, 2]}
    ask.commit()
    assert member.asks == []
    member.partitions.on_news([FIRST])
    ask = only_ask(member)
    assert asked(ask) == {0: [1, 2, 3]}


# --- putting out


def test_a_follower_that_lags_is_put_out_after_one_to_one_and_a_half_lag_times(member: Member, led: ModelState) -> None:
    led.log_end_offset = 101
    led.seen[3].log_end_offset = 0
    elapsed = 0
    while not member.asks:
        due = member.partitions.tick()
        assert 0 < due <= LAG_MS / 2
        elapsed += due
        pass_ms(member, due)
    assert LAG_MS < elapsed <= 1.5 * LAG_MS
    assert led.maximal == {1, 2}  # it counts until the controller has put it out
    ask = only_ask(member)
    assert asked(ask) == {0: [1]}
    ask.commit()
    assert led.maximal == {1}
    pass_ms(member, LAG_MS)
    led.silent = {2}  # it is where the high watermark is, but it does not fetch
    member.partitions.on_news([FIRST])
    assert member.asks == []
    assert member.partitions.counts == (0, 1, 0, 0)


def test_one_line_says_whose_isrs_have_changed_alike(
    member: Member, logs: ModelLogs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kbroker.replication")
    member.tell_roles(*(role(each, isr=[1, 2], leader_epoch=5) for each in range(3)))
    now_ms = int(member.clock.monotonic() * 1000)
    for each in range(3):
        state = logs.logs[TopicPartition(TOPIC, each)].state
        state.log_end_offset = 100
        state.seen[2] = ModelFollower(2, 502, 0, 0, now_ms, True)
    while not member.asks:
        pass_ms(member, member.partitions.tick())
    only_ask(member).commit()
    assert [record.message for record in caplog.records if " ISR" in record.message] == [
        f"{TOPIC}-0, {TOPIC}-1, {TOPIC}-2: putting out of the ISR (1, 2) who lags: 2",
        f"{TOPIC}-0, {TOPIC}-1, {TOPIC}-2: the ISR is (1,), was (1, 2)",
    ]


def test_a_follower_at_the_end_is_not_put_out_however_long_ago_it_fetched(member: Member, led: ModelState) -> None:
    led.seen[3].log_end_offset = 0
    for _ in range(10):
        pass_ms(member, LAG_MS)
    assert member.asks == []


# --- what the controller answers


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_after_a_refusal_the_committed_isr_is_back_and_it_is_tried_again_later(
    member: Member, led: ModelState, code: ErrorCode
) -> None:
    member.partitions.on_news([FIRST])
    only_ask(member).refuse_each(code)
    assert (led.maximal, hosted(member).proposed) == ({1, 2}, None)
    assert member.partitions.counts == (0, 0, 1, 0)
    member.partitions.on_news([FIRST])
    assert member.asks == []  # a follower fetches often, and the controller is not asked as often
    member.clock.now_ms += 500
    member.partitions.on_news([FIRST])
    assert asked(only_ask(member)) == {0: [1, 2, 3]}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
    ],
)
def test_a_proposal_that_may_have_been_committed_waits_for_news(
    member: Member, led: ModelState, code: ErrorCode
) -> None:
    member.partitions.on_news([FIRST])
    only_ask(member).refuse_each(code)
    pass_ms(member, 10 * LAG_MS)
    member.partitions.on_news([FIRST])
    assert member.asks == []
    assert (led.committed, led.maximal) == ({1, 2}, {1, 2, 3})
    member.tell_roles(role(0, isr=[1, 2], leader_epoch=6, partition_epoch=8))
    member.partitions.on_news([FIRST])
    assert asked(only_ask(member)) == {0: [1, 2, 3]}


def test_a_proposal_whose_answer_was_lost_is_settled_by_the_metadata(member: Member, led: ModelState) -> None:
    """The controller tells everybody a committed ISR, the leader among them."""
    member.partitions.on_news([FIRST])
    only_ask(member).refuse_each(ErrorCode.INVALID_UPDATE_VERSION)
    U = M.UpdateMetadataRequest

    def tell(leader: int, leader_epoch: int, partition_epoch: int, isr: list[int]) -> None:
        state = U.UpdateMetadataPartitionState(
            leader=leader, leader_epoch=leader_epoch, zk_version=partition_epoch, isr=isr, replicas=[1, 2, 3]
        )
        topic = U.UpdateMetadataTopicState(topic_name=TOPIC, topic_id=TOPIC_ID.bytes, partition_states=[state])
        member.tell_brokers(1, 2, 3, topic_states=[topic])

    for stale in ((ME, 5, 7, [1]), (ME, 6, 9, [1]), (2, 5, 9, [1]), (-2, -2, 9, [])):
        tell(*stale)
        assert led.committed == {1, 2} and hosted(member).proposed is not None
    tell(ME, 5, 8, [1, 2, 3])
    assert (led.committed, led.maximal, hosted(member).partition_epoch) == ({1, 2, 3}, {1, 2, 3}, 8)
    pass_ms(member, LAG_MS)
    assert member.asks == []


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_after_another_error_of_the_partition_the_same_is_asked_again_after_a_pause(
    member: Member, led: ModelState, code: ErrorCode
) -> None:
    """KAFKA-14154: a controller that is none any more says NOT_CONTROLLER, for the next one to be asked."""
    member.partitions.on_news([FIRST])
    only_ask(member).refuse_each(code)
    assert (member.asks, member.dues) == ([], 1)
    assert member.partitions.tick() == in_sync_requests.RETRY_MS
    assert pass_ms(member, in_sync_requests.RETRY_MS) > in_sync_requests.RETRY_MS
    assert asked(only_ask(member)) == {0: [1, 2, 3]}


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER, None])
def test_without_an_answer_everything_is_asked_again_after_a_pause(
    member: Member, led: ModelState, code: ErrorCode | None
) -> None:
    member.partitions.on_news([FIRST])
    ask = only_ask(member)
    ask.fail() if code is None else ask.refuse(code)
    assert (member.asks, member.dues) == ([], 1)
    member.broker_epoch = 101  # a new session
    pass_ms(member, in_sync_requests.RETRY_MS)
    ask = only_ask(member)
    assert ask.request().broker_epoch == 101
    ask.commit()
    assert led.committed == {1, 2, 3}


def test_an_error_that_stays_is_told_once(member: Member, led: ModelState, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, in_sync_requests.__name__)
    member.partitions.on_news([FIRST])
    for code in (ErrorCode.NOT_CONTROLLER,) * 3 + (ErrorCode.STALE_BROKER_EPOCH,) * 2:
        only_ask(member).refuse(code)
        pass_ms(member, in_sync_requests.RETRY_MS)
    told = [one.getMessage() for one in caplog.records]
    assert told == [f"AlterPartition of 1 partitions: {name}" for name in ("NOT_CONTROLLER", "STALE_BROKER_EPOCH")]
    only_ask(member).commit()


def test_a_partition_that_the_answer_leaves_out_is_asked_for_again(member: Member, led: ModelState) -> None:
    member.partitions.on_news([FIRST])
    only_ask(member).answered(M.AlterPartitionResponse(), 3)
    assert hosted(member).proposed is not None
    pass_ms(member, in_sync_requests.RETRY_MS)
    assert asked(only_ask(member)) == {0: [1, 2, 3]}


def test_an_answer_for_a_former_epoch_is_ignored(member: Member, led: ModelState) -> None:
    member.partitions.on_news([FIRST])
    ask = only_ask(member)
    member.tell_roles(role(0, isr=[1, 3], leader_epoch=6, partition_epoch=9))
    ask.commit()
    assert (led.committed, hosted(member).isr, hosted(member).partition_epoch) == ({1, 3}, (1, 3), 9)


def test_an_answer_after_the_leadership_is_ignored(member: Member, led: ModelState, logs: ModelLogs) -> None:
    member.partitions.on_news([FIRST])
    ask = only_ask(member)
    member.tell_roles(role(0, leader=2, leader_epoch=6, partition_epoch=9))
    before = hosted(member)
    ask.commit()
    assert (hosted(member), logs.logs[FIRST].role, led.committed) == (before, "follower", {1, 2})
    assert member.asks == []


def test_an_answer_that_comes_while_the_next_epoch_begins_does_not_reach_it(
    member: Member, led: ModelState, logs: ModelLogs
) -> None:
    """The ISR of the epoch before may have members that the controller has put out since."""
    member.partitions.on_news([FIRST])
    ask = only_ask(member)
    logs.logs[FIRST].has_led = ask.commit
    member.tell_roles(role(0, isr=[1], leader_epoch=6, partition_epoch=9))
    assert (led.committed, hosted(member).isr, hosted(member).leader_epoch) == ({1}, (1,), 6)


@pytest.mark.parametrize("ends", ["follows", "is stopped", "is away"])
def test_who_leads_no_more_asks_no_more(member: Member, led: ModelState, ends: str) -> None:
    member.partitions.on_news([FIRST])
    only_ask(member).fail()
    if ends == "follows":
        member.tell_roles(role(0, leader=2, leader_epoch=6, partition_epoch=9))
    elif ends == "is stopped":
        member.tell_stop(0, deletes=True, leader_epoch=6)
    else:
        member.partitions.directory_failed([FIRST])
    pass_ms(member, 10 * in_sync_requests.RETRY_MS)
    assert member.asks == []


# --- one request at a time


def test_changes_that_come_meanwhile_go_together_in_the_next_request(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(*(role(each, isr=[1, 2]) for each in range(5)))
    for log in logs.logs.values():
        log.state.seen[3].log_end_offset = 0
    for each in range(5):
        member.partitions.on_news([TopicPartition(TOPIC, each)])
    ask = only_ask(member)
    assert asked(ask) == {0: [1, 2, 3]}
    ask.commit()
    ask = only_ask(member)
    assert asked(ask) == {each: [1, 2, 3] for each in range(1, 5)}
    ask.commit()
    assert member.asks == []
    assert all(log.state.committed == {1, 2, 3} for log in logs.logs.values())


def test_a_request_has_a_limited_number_of_changes(
    member: Member, logs: ModelLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_sync_requests, "MAX_CHANGES", 3)
    member.tell_roles(*(role(each, isr=[1, 2]) for each in range(5)))
    for log in logs.logs.values():
        log.state.seen[3].log_end_offset = 0
    member.partitions.on_news([TopicPartition(TOPIC, each) for each in range(5)])
    sizes = []
    while member.asks:
        ask = only_ask(member)
        sizes.append(len(asked(ask)))
        ask.commit()
    assert sizes == [3, 2]


def test_a_new_change_takes_the_place_of_one_that_waits(member: Member, led: ModelState) -> None:
    member.partitions.on_news([FIRST])
    first = only_ask(member)
    member.tell_roles(role(0, isr=[1, 2], leader_epoch=6, partition_epoch=9))
    member.partitions.on_news([FIRST])
    assert member.asks == []  # one request in flight, whatever it asks
    first.commit()
    ask = only_ask(member)
    assert [(p.leader_epoch, p.partition_epoch) for t in ask.request().topics for p in t.partitions] == [(6, 9)]
    ask.commit()
    assert led.committed == {1, 2, 3}


def test_after_the_stop_nothing_is_asked(member: Member, led: ModelState) -> None:
    member.partitions.stop()
    member.partitions.on_news([FIRST])
    assert member.asks == []


def test_a_leader_alone_asks_nothing(member: Member) -> None:
    member.tell_roles(role(0, replicas=[ME]))
    pass_ms(member, LAG_MS)
    member.partitions.on_news([FIRST])
    assert member.asks == []


def test_roles_and_answers_and_news_on_many_threads_leave_the_log_as_the_last_role_says(
    member: Member, logs: ModelLogs
) -> None:
    """Answers come on the network's thread, news on another one, roles on the control lane."""
    member.tell_roles(role(0, isr=[1, 2]))
    state = logs.logs[FIRST].state
    state.seen[3].log_end_offset = 0
    stopping = threading.Event()

    def answer() -> None:
        while not stopping.is_set():
            if member.asks:
                member.asks.pop().commit()

    def tell_news() -> None:
        while not stopping.is_set():
            member.partitions.on_news([FIRST])

    threads = [threading.Thread(target=answer), threading.Thread(target=tell_news)]
    for thread in threads:
        thread.start()
    for epoch in range(1, 300):
        leader = ME if epoch % 3 else 2
        member.tell_roles(role(0, leader=leader, isr=[1, 2], leader_epoch=epoch, partition_epoch=epoch * 10))
        assert logs.logs[FIRST].role == ("leader" if leader == ME else "follower")
        found = hosted(member)
        assert (found.leader, found.leader_epoch) == (leader, epoch)
        assert found.isr in ((1, 2), (1, 2, 3))
        if leader != ME:
            assert found.isr == (1, 2)
            assert found.partition_epoch == epoch * 10
    stopping.set()
    for thread in threads:
        thread.join()
    assert hosted(member).leader_epoch == 299
    assert set(hosted(member).isr) == state.committed
