"""Groups and transactions on three brokers: markers, questions and state that goes from broker to broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kbroker.cluster.producer_ids import NoIdYet
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.records import control_type, read_batches
from kbroker.rules.consumer_group_member import Beat, BeatAnswer
from kbroker.rules.group_offsets import CommittedOffset
from kbroker.server.handlers import offset_fetch
from kbroker.state_log.state_partition import Producer
from tests.kit.logs.home import batch_of
from tests.kit.parts.coordinated import DATA, GROUPS, TRANSACTIONS, Brokers
from tests.kit.parts.handlers import Call, Caller

Who = tuple[int, int]
P0 = TopicPartition("t", 0)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    yield made
    made.stop()


def init(brokers: Brokers) -> Who:
    """Return producer id and epoch. A coordinator that has no ids yet has the client ask again."""
    answers: list[Any] = []
    for _ in range(2):
        brokers.leader_of(TRANSACTIONS).transactions.init_producer_id("id", 60_000, None, answers.append)
        brokers.run()
        if answers[-1].error is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            break
    answer = answers[-1]
    assert answer.error is ErrorCode.NONE
    return answer.producer_id, answer.producer_epoch


def add(brokers: Brokers, who: Who, *partitions: TopicPartition) -> None:
    answers: list[ErrorCode] = []
    brokers.leader_of(TRANSACTIONS).transactions.add_partitions("id", *who, partitions, answers.append)
    brokers.run()
    assert answers == [ErrorCode.NONE]


def end(brokers: Brokers, who: Who, commit: bool = True) -> None:
    answers: list[ErrorCode] = []
    brokers.leader_of(TRANSACTIONS).transactions.end("id", *who, commit, answers.append)
    brokers.run()
    assert answers == [ErrorCode.NONE]


def write(brokers: Brokers, who: Who, at: TopicPartition, sequence: int = 0) -> ErrorCode:
    """Produce one record in the transaction, as the leader does that asks the coordinator first."""
    node = brokers.leader_of(at)
    guard = node.logs[at].verify(*who, sequence)
    told: list[ErrorCode] = []
    node.coordinators.verifier.verify("id", *who, [at], lambda codes: told.append(codes[at]))
    brokers.run()
    (error,) = told
    if not error:
        node.logs[at].append(
            batch_of([b"x"], producer_id=who[0], producer_epoch=who[1], base_sequence=sequence, is_transactional=True),
            guard=guard,
        )
        brokers.run()
    return error


def markers(brokers: Brokers, at: TopicPartition) -> list[tuple[str, int]]:
    """The markers in the leader's log: the kind, and the coordinator's epoch."""
    log = brokers.leader_of(at).logs[at]
    found = []
    for batch in read_batches(log.read(0, 1 << 20, to_log_end=True)):
        if batch.info.is_control:
            (record,) = batch.records()
            kind = control_type(record)
            assert kind is not None and record.value is not None
            found.append((kind.name, int.from_bytes(record.value[2:6], "big")))
    return found


def test_markers_reach_the_leaders_of_all_partitions(brokers: Brokers) -> None:
    who = init(brokers)
    add(brokers, who, *DATA)
    assert [write(brokers, who, at) for at in DATA] == [ErrorCode.NONE] * 3
    assert [brokers.leader_of(at).logs[at].last_stable_offset for at in DATA] == [0] * 3
    end(brokers, who)
    assert [markers(brokers, at) for at in DATA] == [[("COMMIT", 0)]] * 3
    assert [brokers.leader_of(at).logs[at].last_stable_offset for at in DATA] == [2] * 3
    assert brokers.leader_of(TRANSACTIONS).transactions.describe("id").state == "CompleteCommit"


def test_a_leader_elsewhere_hears_that_a_partition_is_not_in_the_transaction(brokers: Brokers) -> None:
    who = init(brokers)
    add(brokers, who, DATA[1])
    assert write(brokers, who, DATA[1]) is ErrorCode.NONE
    assert write(brokers, who, DATA[2]) is ErrorCode.TRANSACTION_ABORTABLE
    assert write(brokers, (who[0], who[1] + 1), DATA[2]) is ErrorCode.PRODUCER_FENCED


def test_a_leader_elsewhere_adds_a_partition(brokers: Brokers) -> None:
    who = init(brokers)
    told: list[Any] = []
    brokers.nodes[3].coordinators.verifier.add("id", *who, [DATA[2]], told.append)
    brokers.run()
    assert told == [{DATA[2]: ErrorCode.NONE}]
    described = brokers.leader_of(TRANSACTIONS).transactions.describe("id")
    assert (described.state, described.partitions) == ("Ongoing", {DATA[2]})


def test_a_transaction_goes_on_with_the_next_coordinator(brokers: Brokers) -> None:
    who = init(brokers)
    add(brokers, who, *DATA)
    assert write(brokers, who, DATA[0]) is ErrorCode.NONE
    brokers.move(TRANSACTIONS, 2)
    assert brokers.nodes[2].transactions.describe("id").error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    brokers.run()
    assert write(brokers, who, DATA[1]) is ErrorCode.NONE
    assert brokers.nodes[1].transactions.describe("id").error is ErrorCode.NOT_COORDINATOR
    end(brokers, who)
    assert [markers(brokers, at) for at in DATA] == [[("COMMIT", 1)]] * 3


def test_a_marker_follows_its_partition_to_the_next_leader(brokers: Brokers) -> None:
    who = init(brokers)
    add(brokers, who, DATA[1])
    assert write(brokers, who, DATA[1]) is ErrorCode.NONE
    brokers.cut.add(2)  # paused: it neither answers nor fetches
    answers: list[ErrorCode] = []
    brokers.nodes[1].transactions.end("id", *who, True, answers.append)
    brokers.run()
    assert answers == [], "broker 2 is in the ISR of the coordinator's partition"
    brokers.nodes[1].logs[TRANSACTIONS].state.set_in_sync([1, 3], [1, 3])
    brokers.nodes[1].logs[TRANSACTIONS].state.set_live([1, 3])
    brokers.run()
    assert answers == [ErrorCode.NONE]
    assert brokers.nodes[1].transactions.describe("id").state == "PrepareCommit"
    brokers.move(DATA[1], 3)
    brokers.nodes[3].logs[DATA[1]].state.set_in_sync([1, 3], [1, 3])
    brokers.nodes[3].logs[DATA[1]].state.set_live([1, 3])
    brokers.run()
    brokers.run(20)
    assert markers(brokers, DATA[1]) == [("COMMIT", 0)]
    assert brokers.nodes[1].transactions.describe("id").state == "CompleteCommit"
    brokers.cut.clear()
    brokers.run()
    assert markers(brokers, DATA[1]) == [("COMMIT", 0)], "broker 2 does not lead any more"


def test_a_coordinator_that_led_before_is_fenced(brokers: Brokers) -> None:
    """Broker 1 has prepared, and cannot reach a partition. Broker 2 ends the transaction in its place."""
    who = init(brokers)
    add(brokers, who, DATA[2])
    assert write(brokers, who, DATA[2]) is ErrorCode.NONE
    brokers.nodes[1].peers.sent.clear()
    answers: list[ErrorCode] = []
    brokers.nodes[1].transactions.end("id", *who, True, answers.append)
    while not answers:
        brokers._follow()
        brokers._call()
    (late,) = brokers.nodes[1].peers.sent
    brokers.nodes[1].peers.sent.clear()
    brokers.move(TRANSACTIONS, 2)
    brokers.run()
    assert markers(brokers, DATA[2]) == [("COMMIT", 1)]
    told: list[Any] = []
    brokers.nodes[1].peers.sent.append(late)
    late.answered = lambda answer, _: told.append(answer)  # type: ignore[assignment]
    brokers.run()
    ((result,),) = ([t.partitions[0].error_code for m in told[0].markers for t in m.topics],)
    assert result == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert markers(brokers, DATA[2]) == [("COMMIT", 1)]


def test_offsets_of_a_transaction_count_when_its_coordinator_elsewhere_commits(brokers: Brokers) -> None:
    brokers.move(GROUPS, 3)
    who = init(brokers)
    add(brokers, who, GROUPS)
    node, answers = brokers.nodes[3], []

    def ask(at: TopicPartition, asked: Any) -> None:
        node.coordinators.verifier.verify("id", *who, [at], lambda codes: asked(codes[at]))

    node.groups.offsets.commit_transactional(
        "g", Producer(*who), -1, "", None, {P0: CommittedOffset(5, -1, "", 0)}, ask,
        lambda error, _: answers.append(error),
    )  # fmt: skip
    brokers.run()
    assert answers == [ErrorCode.NONE]
    assert node.groups.offsets.fetch("g", [P0], False)[1][0].offset == -1
    brokers.move(GROUPS, 2)
    end(brokers, who)
    brokers.run(1000)
    assert brokers.nodes[2].groups.offsets.fetch("g", [P0], False)[1][0].offset == 5
    brokers.move(GROUPS, 1)
    assert brokers.nodes[1].groups.offsets.fetch("g", [P0], False)[1][0].offset == 5


def fetch_offset(brokers: Brokers, node_id: int, version: int = 9) -> list[tuple[int, int]]:
    """Ask a broker for the offset of group g. Return its error and the offset, once it has answered."""
    node, R = brokers.nodes[node_id], M.OffsetFetchRequest
    asked = R(group_id="g", topics=[R.OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    if version >= 8:
        topics = [R.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        asked = R(groups=[R.OffsetFetchRequestGroup(group_id="g", topics=topics)])
    call = Call(version, Caller())
    assert offset_fetch.handle(cast(Any, node.services), cast(Any, call), asked) is None
    brokers.run()
    found = []
    for body in call.answers:
        message: Any = M.OffsetFetchResponse.decode(body, version)
        of_group = message.groups[0] if version >= 8 else message
        (offset,) = [part.committed_offset for topic in of_group.topics for part in topic.partitions] or [-1]
        found.append((of_group.error_code, offset))
    return found


def drop_from_isr(brokers: Brokers, node_id: int) -> None:
    """Have the leader of the groups commit without that broker."""
    in_sync = tuple(set(brokers.nodes) - {node_id})
    state = brokers.leader_of(GROUPS).logs[GROUPS].state
    state.set_live(in_sync)
    state.set_in_sync(in_sync, in_sync)


def commit_offset(brokers: Brokers, offset: int) -> None:
    answers: list[ErrorCode] = []
    brokers.leader_of(GROUPS).groups.offsets.commit(
        "g", -1, "", None, {P0: CommittedOffset(offset, -1, "", 0)}, lambda error, _: answers.append(error)
    )
    brokers.run()
    assert answers == [ErrorCode.NONE]


@pytest.mark.parametrize("version", [2, 9])
def test_a_coordinator_that_has_not_heard_of_the_next_one_tells_no_old_offset(brokers: Brokers, version: int) -> None:
    commit_offset(brokers, 5)
    assert fetch_offset(brokers, 1, version) == [(ErrorCode.NONE, 5)]
    brokers.deaf = {1}
    brokers.move(GROUPS, 2)
    drop_from_isr(brokers, 1)
    commit_offset(brokers, 6)
    assert brokers.nodes[1].groups.offsets.fetch("g", [P0], False)[1][0].offset == 5, "it still takes itself for it"
    assert fetch_offset(brokers, 1, version) == [(ErrorCode.NOT_COORDINATOR, -1)]
    assert fetch_offset(brokers, 2, version) == [(ErrorCode.NONE, 6)], "one that has not heard of it does not lead"
    brokers.deaf = set()
    brokers.move(GROUPS, 3)
    assert fetch_offset(brokers, 1, version) == [(ErrorCode.NOT_COORDINATOR, -1)]


def test_a_coordinator_that_reaches_nobody_tells_no_offset(brokers: Brokers) -> None:
    commit_offset(brokers, 5)
    brokers.cut = {1}
    assert fetch_offset(brokers, 1) == []
    for sent in list(brokers.nodes[1].peers.sent):
        brokers.nodes[1].peers.sent.remove(sent)
        sent.fail()
    brokers.run()
    brokers.cut = set()
    assert fetch_offset(brokers, 1) == [(ErrorCode.NONE, 5)], "the next question is a new one"


def test_producer_ids_of_all_brokers_differ(brokers: Brokers) -> None:
    for node in brokers.nodes.values():
        with pytest.raises(NoIdYet):  # the first need asks the controller
            node.coordinators.producer_ids.next()
    brokers.run()
    given = [node.coordinators.producer_ids.next() for node in brokers.nodes.values() for _ in range(3)]
    assert len(set(given)) == 9


def test_consumer_groups_end_when_the_cluster_says_that_a_kafka_has_joined(brokers: Brokers) -> None:
    node = brokers.leader_of(GROUPS)
    answers: list[BeatAnswer] = []

    def join() -> ErrorCode:
        beat = Beat("m", 0, "c", "/h", rebalance_timeout_ms=1000, topics=("t",), owned={})
        node.groups.consumers.heartbeat("g", beat, answers.append)
        brokers.run()
        return answers.pop().error

    assert join() is ErrorCode.NONE
    node.view.become(only_kbrokers=False)
    brokers.run()
    assert node.groups.consumers.describe("g").members == ()
    assert join() is ErrorCode.UNSUPPORTED_VERSION
