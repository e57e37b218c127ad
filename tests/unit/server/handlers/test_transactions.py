"""The APIs of transactions over a coordinator in memory, every version of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from kbroker.cluster.new_topics import NewTopic
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.server.dispatch import ROUTES
from kbroker.server.handlers import end_txn
from kbroker.transactions.markers import Marker
from kbroker.transactions.records import decode_value
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.handlers import call, services_on
from tests.kit.parts.transactions import TransactionHome

TOPIC = "orders"


def versions(api_key: ApiKey) -> range:
    return range(SERVED[api_key].min, SERVED[api_key].max + 1)


class ShardsStub(NamedTuple):
    """The part of the groups' shards that AddOffsetsToTxn uses."""

    partition: int

    def partition_for(self, group_id: str) -> int:
        return self.partition


class Served:
    """Handlers over a coordinator in memory."""

    def __init__(self, cluster: Cluster):
        self.home = TransactionHome()
        groups = SimpleNamespace(shards=ShardsStub(3))
        self.services = services_on(cluster, groups=groups, transactions=self.home.coordinator)
        self.services.markers = self.home.markers
        cluster.topics.create([NewTopic(TOPIC, 2, 1)])

    def ask(self, api_key: ApiKey, version: int, message: Any) -> Any:
        return call(self.services, api_key, version, message)

    def init(self, version: int = 4, name: str | None = "id", **fields: Any) -> tuple[int, int, int]:
        given = {"transaction_timeout_ms": 60_000} | fields
        answer = self.ask(ApiKey.INIT_PRODUCER_ID, version, M.InitProducerIdRequest(transactional_id=name, **given))
        return answer.error_code, answer.producer_id, answer.producer_epoch

    def add(
        self, version: int, who: tuple[int, int], topics: dict[str, list[int]], name: str = "id", verify: bool = False
    ) -> dict[TopicPartition, int]:
        R = M.AddPartitionsToTxnRequest
        wanted = [R.AddPartitionsToTxnTopic(name=topic, partitions=ids) for topic, ids in topics.items()]
        if version < 4:
            answer = self.ask(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version,
                R(
                    v3_and_below_transactional_id=name,
                    v3_and_below_producer_id=who[0],
                    v3_and_below_producer_epoch=who[1],
                    v3_and_below_topics=wanted,
                ),
            )
            results = answer.results_by_topic_v3_and_below
        else:
            one = R.AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=who[0], producer_epoch=who[1], verify_only=verify, topics=wanted
            )
            answer = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, R(transactions=[one]))
            assert answer.error_code == 0
            (result,) = answer.results_by_transaction
            assert result.transactional_id == name
            results = result.topic_results
        return {
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for topic in results
            for each in topic.results_by_partition
        }

    def add_offsets(self, version: int, who: tuple[int, int], name: str = "id") -> int:
        message = M.AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=who[0], producer_epoch=who[1], group_id="g"
        )
        code: int = self.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, message).error_code
        return code

    def end(self, version: int, who: tuple[int, int], name: str = "id", commit: bool = True) -> int:
        message = M.EndTxnRequest(transactional_id=name, producer_id=who[0], producer_epoch=who[1], committed=commit)
        code: int = self.ask(ApiKey.END_TXN, version, message).error_code
        return code


@pytest.fixture
def served(cluster: Cluster) -> Served:
    return Served(cluster)


A0, A1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_init_producer_id_says_fenced_as_its_version_knows_it(served: Served, version: int) -> None:
    error, producer_id, epoch = served.init(version)
    assert (error, epoch) == (0, 0)
    assert served.init(version) == (0, producer_id, 1)
    assert served.init(version, "") == (ErrorCode.INVALID_REQUEST, -1, -1)
    assert served.init(version, transaction_timeout_ms=0) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1, -1)
    if version >= 3:
        fenced = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert served.init(version, producer_id=producer_id, producer_epoch=0) == (fenced, -1, -1)
        assert served.init(version, producer_id=producer_id, producer_epoch=1) == (0, producer_id, 2)
        assert served.init(version, producer_id=7)[0] == ErrorCode.INVALID_REQUEST
        assert served.init(version, producer_epoch=7)[0] == ErrorCode.INVALID_REQUEST
    assert served.init(version, None)[1:] != served.init(version, None)[1:]


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
def test_partitions_are_added_all_or_none(served: Served, version: int) -> None:
    _, *who = served.init()
    at = who[0], who[1]
    assert served.add(version, at, {TOPIC: [0, 7], "none": [0]}) == {
        A0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        TopicPartition(TOPIC, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        TopicPartition("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert served.home.state() == "Empty"
    assert served.add(version, at, {TOPIC: [0, 1]}) == {A0: 0, A1: 0}
    assert served.home.coordinator.describe("id").partitions == {A0, A1}
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert served.add(version, (at[0], 5), {TOPIC: [0]}) == {A0: fenced}
    assert served.add(version, (1, 0), {TOPIC: [0]}) == {A0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert served.add(version, at, {TOPIC: [0]}, name="") == {A0: ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
def test_who_adds_several_transactions_at_once_has_an_epoch_for_each(served: Served, version: int) -> None:
    _, *who = served.init()
    served.add(version, (who[0], who[1]), {TOPIC: [0]})
    (_, value), *_ = reversed(served.home.replica.records())
    assert decode_value("id", value or b"").client_version == (2 if version >= 4 else 0)


@pytest.mark.parametrize("version", [4, 5])
def test_other_brokers_ask_whether_partitions_are_in_transactions(served: Served, version: int) -> None:
    _, *who = served.init()
    at = who[0], who[1]
    assert served.add(version, at, {TOPIC: [0]}, verify=True) == {A0: ErrorCode.TRANSACTION_ABORTABLE}
    assert served.home.state() == "Empty", "nothing was added"
    served.add(3, at, {TOPIC: [0]})
    found = served.add(version, at, {TOPIC: [0, 1]}, verify=True)
    assert found == {A0: 0, A1: ErrorCode.TRANSACTION_ABORTABLE}
    R = M.AddPartitionsToTxnRequest
    wanted = [R.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])]
    two = [
        R.AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=at[0], producer_epoch=at[1], verify_only=verify, topics=wanted
        )
        for name, verify in (("id", True), ("other", False))
    ]
    answer = served.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, R(transactions=two))
    assert [
        (each.transactional_id, each.topic_results[0].results_by_partition[0].partition_error_code)
        for each in answer.results_by_transaction
    ] == [("id", 0), ("other", ErrorCode.INVALID_PRODUCER_ID_MAPPING)]
    assert served.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, R(transactions=[])).results_by_transaction == []


@pytest.mark.parametrize("version", versions(ApiKey.ADD_OFFSETS_TO_TXN))
def test_offsets_add_the_partition_of_the_group(served: Served, version: int) -> None:
    _, *who = served.init()
    at = who[0], who[1]
    assert served.add_offsets(version, at) == 0
    assert served.home.coordinator.describe("id").partitions == {TopicPartition("__consumer_offsets", 3)}
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert served.add_offsets(version, (at[0], 9)) == fenced
    assert served.add_offsets(version, (1, 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert served.add_offsets(version, at, name="") == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(end_txn.BUMPED_FROM))
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends(served: Served, version: int, commit: bool) -> None:
    _, *who = served.init()
    at = who[0], who[1]
    assert served.end(version, at, commit=commit) == ErrorCode.INVALID_TXN_STATE
    served.add(3, at, {TOPIC: [0]})
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert served.end(version, (at[0], 9), commit=commit) == fenced
    assert served.end(version, at, commit=commit) == 0
    assert served.home.markers.of(A0) == [commit]
    assert served.end(version, at, commit=commit) == 0
    assert served.end(version, at, commit=not commit) == ErrorCode.INVALID_TXN_STATE
    assert served.end(version, at, name="") == ErrorCode.INVALID_REQUEST
    assert served.end(version, at, name="other") == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_tells_the_next_epoch(served: Served, commit: bool) -> None:
    _, *who = served.init()

    def end(epoch: int, **fields: Any) -> tuple[int, int, int]:
        known = {"transactional_id": "id", "producer_id": who[0], "producer_epoch": epoch, "committed": commit}
        answer = served.ask(ApiKey.END_TXN, end_txn.BUMPED_FROM, M.EndTxnRequest(**{**known, **fields}))
        return answer.error_code, answer.producer_id, answer.producer_epoch

    assert end(0, committed=True) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    served.home.add((who[0], who[1]), A0, version=2)
    assert end(9) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert end(0) == end(0) == (ErrorCode.NONE, who[0], 1)
    assert served.home.markers.of(A0) == [commit]
    assert end(0, committed=not commit) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    assert end(1, transactional_id="") == (ErrorCode.INVALID_REQUEST, -1, -1)


class Asked:
    """The part of a request that handlers use."""

    def __init__(self, version: int):
        self.api_version = version


def test_an_end_with_many_markers_is_not_for_a_processor(served: Served) -> None:
    _, *who = served.init()
    message = M.EndTxnRequest(transactional_id="id")
    assert not ROUTES[ApiKey.END_TXN].blocking
    for count, blocks in ((16, False), (17, True)):
        served.home.add((who[0], who[1]), *(TopicPartition("t", number) for number in range(count)))
        assert end_txn.blocks(served.services, cast(Any, Asked(5)), message) is blocks
    assert not end_txn.blocks(served.services, cast(Any, Asked(5)), M.EndTxnRequest(transactional_id="other"))


def test_an_end_that_needs_a_producer_id_is_not_for_a_processor(served: Served) -> None:
    served.init()
    message = M.EndTxnRequest(transactional_id="id")
    for epoch, blocks in ((32765, False), (32766, True)):
        served.home.coordinator.shards._shards[0].transactions["id"].producer_epoch = epoch
        assert end_txn.blocks(served.services, cast(Any, Asked(5)), message) is blocks
        assert not end_txn.blocks(served.services, cast(Any, Asked(4)), message)


@pytest.mark.parametrize("version", versions(ApiKey.WRITE_TXN_MARKERS))
def test_markers_are_written_for_other_coordinators(served: Served, version: int) -> None:
    R = M.WriteTxnMarkersRequest
    served.home.markers.refuse[A1] = [ErrorCode.INVALID_PRODUCER_EPOCH]
    message = R(
        markers=[
            R.WritableTxnMarker(
                producer_id=5, producer_epoch=2, coordinator_epoch=9, transaction_result=True,
                topics=[R.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0, 1])],
            ),
            R.WritableTxnMarker(
                producer_id=6, producer_epoch=0, coordinator_epoch=9, transaction_result=False,
                topics=[R.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])],
            ),
            R.WritableTxnMarker(producer_id=7),
        ]
    )  # fmt: skip
    answer = served.ask(ApiKey.WRITE_TXN_MARKERS, version, message)
    assert {
        each.producer_id: [(one.partition_index, one.error_code) for one in each.topics[0].partitions]
        for each in answer.markers
    } == {5: [(0, 0), (1, ErrorCode.INVALID_PRODUCER_EPOCH)], 6: [(0, 0)]}
    assert served.home.markers.written == [(A0, Marker(5, 2, 9, True)), (A0, Marker(6, 0, 9, False))]
    assert served.ask(ApiKey.WRITE_TXN_MARKERS, version, R(markers=[])).markers == []


@pytest.mark.parametrize("version", versions(ApiKey.WRITE_TXN_MARKERS))
def test_a_marker_that_fails_in_an_unknown_way_is_one_that_the_coordinator_tries_again(
    served: Served, version: int
) -> None:
    """Kafka's coordinator fails inside at any other code, and the transaction never ends."""
    R = M.WriteTxnMarkersRequest
    outcomes = (
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.INVALID_RECORD, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR),
        (ErrorCode.NONE, ErrorCode.NONE),
    )
    for code, told in outcomes:
        served.home.markers.refuse[A1] = [code]
        marker = R.WritableTxnMarker(
            producer_id=5, producer_epoch=2, coordinator_epoch=9, transaction_result=True,
            topics=[R.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0, 1])],
        )  # fmt: skip
        answer = served.ask(ApiKey.WRITE_TXN_MARKERS, version, R(markers=[marker]))
        (topic,) = answer.markers[0].topics
        assert [(one.partition_index, one.error_code) for one in topic.partitions] == [(0, 0), (1, told)]


def test_transactions_are_described(served: Served) -> None:
    _, *who = served.init()
    served.add(3, (who[0], who[1]), {TOPIC: [1, 0]})
    message = M.DescribeTransactionsRequest(transactional_ids=["id", "other", ""])
    mine, other, empty = served.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, message).transaction_states
    assert (mine.transactional_id, mine.error_code, mine.transaction_state) == ("id", 0, "Ongoing")
    assert (mine.producer_id, mine.producer_epoch, mine.transaction_timeout_ms) == (*who, 60_000)
    assert mine.transaction_start_time_ms == served.home.clock.now_ms
    assert [(topic.topic, topic.partitions) for topic in mine.topics] == [(TOPIC, [0, 1])]
    assert (other.transactional_id, other.error_code) == ("other", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    assert empty.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
def test_transactions_are_listed(served: Served, version: int) -> None:
    _, *who = served.init()
    served.init(name="other")
    served.add(3, (who[0], who[1]), {TOPIC: [0]})

    def listed(**fields: Any) -> tuple[set[tuple[str, str]], list[str]]:
        answer = served.ask(ApiKey.LIST_TRANSACTIONS, version, M.ListTransactionsRequest(**fields))
        assert answer.error_code == 0
        states = {(each.transactional_id, each.transaction_state) for each in answer.transaction_states}
        return states, answer.unknown_state_filters

    assert listed() == ({("id", "Ongoing"), ("other", "Empty")}, [])
    assert listed(state_filters=["Ongoing", "Nonsense"]) == ({("id", "Ongoing")}, ["Nonsense"])
    assert listed(producer_id_filters=[who[0]]) == ({("id", "Ongoing")}, [])
    assert listed(producer_id_filters=[1]) == (set(), [])
    if version >= 1:
        # A transaction that has not begun is older than any, as in Kafka.
        assert listed(duration_filter=0) == ({("other", "Empty")}, [])
