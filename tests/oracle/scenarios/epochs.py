"""Transactions of version 2 (KIP-890): Produce 12, TxnOffsetCommit 5 and EndTxn 5, as Kafka 4.3 answers them.

Kafka ends a transaction a little after it has answered; scenarios wait for that, so that both brokers are asked in the
same state.
"""

from __future__ import annotations

from typing import Any

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.answers import tree_of
from tests.oracle.scenario import Talk, newer_scenario
from tests.oracle.scenarios.requests import FetchTopic, fetch, fetch_partition, produce_all, records
from tests.oracle.scenarios.transactional_data import is_gone, java_string_hash, log_end, written
from tests.oracle.scenarios.transactions import TIMEOUT_MS, Txn, described

VERSIONS, PRODUCE, COMMIT, END = (
    ApiKey.API_VERSIONS,
    ApiKey.PRODUCE,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)
PRODUCE_VERSION, COMMIT_VERSION, END_VERSION = 12, 5, 5
EVERY_VERSION = range(5)
FEATURE = "transaction.version"


class EpochTxn(Txn):
    """A transactional id whose producer goes on with the id and epoch that EndTxn returns."""

    def ask_send(self, topic: str, count: int = 1, partition: int = 0, version: int = PRODUCE_VERSION, **f: int) -> Any:
        """Send the next batch, without adding the partition before."""
        answer = self.t.ask(self.batch(topic, count, partition, **f), version=version)
        if not answer.responses[0].partition_responses[0].error_code and not f:
            self.sequences[topic, partition] = self.sequences.get((topic, partition), 0) + count
        return answer

    def ask_end(self, commit: bool = True, **fields: object) -> Any:
        """End the transaction; the next one has the producer id and epoch of the answer."""
        answer = self.t.ask(self.end(commit, **fields), version=END_VERSION)
        self.await_rest()
        if not answer.error_code and not fields:
            self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}
        return answer

    def await_rest(self) -> None:
        asked = M.DescribeTransactionsRequest(transactional_ids=[self.id])
        self.t.until(lambda: not self.t.do(asked).transaction_states[0].transaction_state.startswith("Prepare"), "rest")

    def commit_offsets(self, group: str, topic: str, offset: int = 5, **fields: object) -> M.TxnOffsetCommitRequest:
        R = M.TxnOffsetCommitRequest
        partition = R.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        topics = [R.TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])]
        return R(**{**self.known(), "group_id": group, "topics": topics, **fields})  # type: ignore[arg-type]


def producers(t: Talk, topic: str) -> None:
    """Compare the producers that the partition knows."""
    R = M.DescribeProducersRequest
    t.ask(R(topics=[R.TopicRequest(name=topic, partition_indexes=[0])]), keep=without_times)


def without_times(answer: M.DescribeProducersResponse) -> None:
    for topic in answer.topics:
        for partition in topic.partitions:
            for producer in partition.active_producers:
                producer.last_timestamp = 0


def committed(t: Talk, topic: str) -> None:
    """Compare what a reader of committed records gets."""
    t.ask(fetch([FetchTopic(topic=topic, partitions=[fetch_partition()])], isolation_level=1), version=11)


@newer_scenario(VERSIONS)
def features(t: Talk) -> None:
    """Only the feature of transactions is compared; the epoch of the features is each broker's own."""

    def only_transactions(answer: M.ApiVersionsResponse) -> None:
        answer.api_keys = []
        answer.supported_features = [one for one in answer.supported_features if one.name == FEATURE]
        answer.finalized_features = [one for one in answer.finalized_features if one.name == FEATURE]
        answer.finalized_features_epoch = min(answer.finalized_features_epoch, 0)

    for version in EVERY_VERSION:
        asked = M.ApiVersionsRequest(client_software_name="oracle", client_software_version="1.0")
        t.ask(asked, version=version, keep=only_transactions)


# --- EndTxn 5 --------------------------------------------------------------------------------------------------------


@newer_scenario(END)
def each_end_brings_an_epoch(t: Talk) -> None:
    topic, txn = t.topic(), EpochTxn(t)
    for commit in (True, False, True):
        txn.ask_send(topic)
        txn.ask_send(topic, 2)
        described(t, txn)
        txn.ask_end(commit)
        described(t, txn)
        producers(t, topic)
        committed(t, topic)


@newer_scenario(END)
def an_end_twice(t: Talk) -> None:
    topic, txn = t.topic(), EpochTxn(t)
    for commit in (True, False):
        txn.ask_send(topic)
        old = txn.epoch
        txn.ask_end(commit)
        for again in (commit, not commit, commit):
            txn.ask_end(again, producer_epoch=old)
        described(t, txn)
    txn.ask_end(True)
    txn.ask_send(topic)
    for again in (True, False):
        txn.ask_end(again, producer_epoch=txn.epoch - 1)


@newer_scenario(END)
def without_a_transaction(t: Talk) -> None:
    """To commit without a transaction is refused; to abort without one ends a transaction like any other."""
    txn = EpochTxn(t)
    txn.ask_end(True)
    for _ in range(2):
        txn.ask_end(False)
        described_state(t, txn)
    txn.ask_end(True)
    txn.ask_end(False, producer_epoch=txn.epoch - 1)
    txn.ask_end(True, producer_epoch=txn.epoch - 1)
    txn.ask_end(False, producer_epoch=txn.epoch - 2)
    txn.do_init()
    txn.ask_end(False, producer_epoch=txn.epoch - 1)
    txn.ask_end(True, producer_epoch=txn.epoch - 1)


def described_state(t: Talk, txn: Txn) -> None:
    """Compare the described transaction without the time of its start."""

    def timeless(answer: M.DescribeTransactionsResponse) -> None:
        for each in answer.transaction_states:
            each.transaction_start_time_ms = min(each.transaction_start_time_ms, 0)

    t.ask(M.DescribeTransactionsRequest(transactional_ids=[txn.id]), keep=timeless)


@newer_scenario(END)
def an_end_by_strangers(t: Talk) -> None:
    topic, txn = t.topic(), EpochTxn(t)
    txn.ask_send(topic)
    for fields in (
        {"transactional_id": t.name("nowhere")},
        {"transactional_id": ""},
        {"producer_id": txn.producer_id + 1_000_000},
        {"producer_id": txn.producer_id + 1_000_000, "producer_epoch": 32766},
        {"producer_epoch": -1},
        {"producer_epoch": txn.epoch + 1},
        {"producer_epoch": 32766},
        {"producer_epoch": 32767},
    ):
        txn.ask_end(True, **fields)
    old = txn.epoch
    txn.do_init()
    txn.ask_end(False, producer_epoch=old)
    txn.ask_end(True, producer_epoch=old)
    described(t, txn)


@newer_scenario(END)
def ends_of_both_kinds(t: Talk) -> None:
    """A client that keeps its epoch goes on after one that got a new epoch, and the other way round."""
    topic, txn = t.topic(), EpochTxn(t)
    txn.ask_send(topic)
    txn.ask_end()
    txn.do_send(topic)
    t.ask(txn.end(True), version=4)
    txn.await_end()
    t.ask(txn.end(True), version=4)
    t.ask(txn.end(False), version=4)
    described(t, txn)
    txn.do_send(topic)
    txn.ask_end()
    described(t, txn)
    producers(t, topic)
    committed(t, topic)


@newer_scenario(END)
def a_transaction_that_times_out(t: Talk) -> None:
    """The transaction is aborted; its producer goes on with the next epoch if no other producer has come."""
    topic, txn = t.topic(), EpochTxn(t, timeout_ms=500)
    txn.ask_send(topic)
    txn.await_end()
    described_state(t, txn)
    txn.ask_send(topic)
    txn.ask_end(True, producer_epoch=txn.epoch)
    txn.ask_end(False, producer_epoch=txn.epoch)
    txn.timeout_ms = TIMEOUT_MS
    t.ask(txn.init(producer_id=txn.producer_id, producer_epoch=txn.epoch), version=5)
    t.ask(txn.init(producer_id=txn.producer_id, producer_epoch=txn.epoch + 1), version=5)
    producers(t, topic)


@newer_scenario(END)
def an_id_that_somebody_else_takes(t: Talk) -> None:
    topic, txn, other = t.topic(), EpochTxn(t), EpochTxn(t, begin=False)
    txn.ask_send(topic)
    other.do_init()
    t.note("epoch", other.epoch)
    txn.ask_send(topic)
    txn.ask_end(True, producer_epoch=txn.epoch)
    t.ask(txn.init(producer_id=txn.producer_id, producer_epoch=txn.epoch), version=5)
    other.ask_send(topic)
    other.ask_end()
    committed(t, topic)


@newer_scenario(END)
def an_epoch_that_was_not_heard_of(t: Talk) -> None:
    """InitProducerId with the previous epoch returns the epoch that the end of the transaction has brought."""
    topic, txn = t.topic(), EpochTxn(t)
    txn.ask_send(topic)
    old = txn.epoch
    txn.ask_end()
    known = {"producer_id": txn.producer_id}
    for epoch in (old, old, old + 1, old, old + 2):
        t.ask(txn.init(producer_epoch=epoch, **known), version=5)


@newer_scenario(END)
def epochs_that_are_used_up(t: Talk) -> None:
    """Every epoch is used up by an end without a transaction: then there is another producer id."""
    topic, txn = t.topic(), EpochTxn(t)
    first = txn.producer_id
    while txn.epoch < 32765:
        answer = t.do(txn.end(False), END_VERSION)
        if not answer.error_code:
            txn.epoch = answer.producer_epoch
    for _ in range(2):
        txn.ask_send(topic)
        last = txn.epoch
        txn.ask_end()
    t.note("another producer id", txn.producer_id != first)
    described(t, txn)
    producers(t, topic)
    for commit in (True, False):
        txn.ask_end(commit, producer_id=first, producer_epoch=last)
    t.ask(txn.init(producer_id=first, producer_epoch=last), version=5)
    txn.ask_send(topic)
    txn.ask_end(True, producer_id=first, producer_epoch=last)
    txn.ask_end()
    committed(t, topic)


# --- Produce 12 ------------------------------------------------------------------------------------------------------


@newer_scenario(PRODUCE)
def a_batch_adds_its_partition(t: Talk) -> None:
    topic, other, txn = t.topic(partitions=3), t.topic("other"), EpochTxn(t)
    described_state(t, txn)
    txn.ask_send(topic)
    described(t, txn)
    txn.ask_send(topic, partition=2)
    txn.ask_send(other)
    described(t, txn)
    txn.ask_end()
    txn.ask_send(topic, partition=1)
    described(t, txn)


@newer_scenario(PRODUCE)
def several_partitions_at_once(t: Talk) -> None:
    topic, txn = t.topic(partitions=3), EpochTxn(t)
    known = {"producer_id": txn.producer_id, "producer_epoch": txn.epoch, "is_transactional": True}
    for sequence in (0, 1):
        data = records(1, base_sequence=sequence, **known)  # type: ignore[arg-type]
        both = {topic: {0: data, 2: data}, t.name("nowhere"): {0: data}}
        t.ask(produce_all(both, transactional_id=txn.id), version=PRODUCE_VERSION)
        described(t, txn)


@newer_scenario(PRODUCE)
def batches_of_older_and_newer_epochs(t: Talk) -> None:
    topic, txn = t.topic(), EpochTxn(t)
    txn.ask_send(topic)
    for epoch in (txn.epoch + 1, txn.epoch - 1):
        txn.ask_send(topic, producer_epoch=epoch, base_sequence=0)
    old = txn.epoch
    txn.ask_end()
    for epoch, sequence in ((old, 1), (old, 0), (old + 2, 0), (old + 1, 3)):
        txn.ask_send(topic, producer_epoch=epoch, base_sequence=sequence)
    txn.ask_send(topic)
    txn.ask_send(topic)
    producers(t, topic)


@newer_scenario(PRODUCE)
def a_first_batch_that_is_not_the_first(t: Talk) -> None:
    """An epoch begins with sequence 0."""
    topic, txn = t.topic(), EpochTxn(t)
    txn.ask_send(topic, base_sequence=2)
    described(t, txn)
    txn.ask_send(topic)
    txn.ask_send(topic, base_sequence=5)
    txn.ask_send(topic, base_sequence=0)
    txn.ask_end()
    txn.ask_send(topic, base_sequence=1)
    txn.ask_send(topic)


@newer_scenario(PRODUCE)
def batches_by_strangers(t: Talk) -> None:
    topic, txn = t.topic(), EpochTxn(t)
    txn.ask_send(topic, producer_id=txn.producer_id + 1_000_000)
    txn.ask_send(topic, producer_epoch=txn.epoch + 1)
    known = {"producer_id": txn.producer_id, "producer_epoch": txn.epoch, "base_sequence": 0, "is_transactional": True}
    for transactional_id in (t.name("nowhere"), ""):
        data = produce_all({topic: {0: records(1, **known)}}, transactional_id=transactional_id)  # type: ignore[arg-type]
        t.ask(data, version=PRODUCE_VERSION)
    described_state(t, txn)


@newer_scenario(PRODUCE)
def batches_as_another_producer(t: Talk) -> None:
    topic, mine, other = t.topic(partitions=2), EpochTxn(t), EpochTxn(t, "other")
    other.ask_send(topic)
    as_other = {"producer_id": other.producer_id, "producer_epoch": other.epoch}
    for partition, sequence in ((1, 0), (0, 1), (0, 2)):
        mine.ask_send(topic, partition=partition, base_sequence=sequence, **as_other)
    mine.ask_end(True, **as_other)
    t.ask(mine.commit_offsets(t.name("g"), topic, **as_other), version=COMMIT_VERSION)
    described_state(t, mine)
    described(t, other)
    other.ask_end()
    mine.ask_send(topic, base_sequence=3, **as_other)
    committed(t, topic)


@newer_scenario(PRODUCE, alone=True)
def batches_to_a_topic_that_is_deleted_and_made_again(t: Talk) -> None:
    topic, other, txn = t.topic(), t.topic("other"), EpochTxn(t)
    txn.ask_send(topic)
    txn.ask_send(other)
    t.do(M.DeleteTopicsRequest(topic_names=[topic], timeout_ms=30000), version=5)
    t.until(lambda: is_gone(t, topic), "end of the topic")
    txn.ask_send(topic)
    txn.ask_send(other)
    t.topic()
    txn.ask_send(topic, base_sequence=1)
    txn.ask_send(topic, base_sequence=0)
    described(t, txn)
    txn.ask_end()
    producers(t, topic)
    for each in (topic, other):
        committed(t, each)


@newer_scenario(PRODUCE)
def batches_of_both_kinds_of_clients(t: Talk) -> None:
    """A batch of Produce 11 is refused in a partition that was not added to the transaction."""
    topic, txn = t.topic(partitions=2), EpochTxn(t)
    txn.ask_send(topic, version=11)
    txn.ask_send(topic)
    txn.ask_send(topic, version=11)
    txn.ask_send(topic, partition=1, version=11)
    txn.ask_send(topic, partition=1)
    txn.ask_end()
    committed(t, topic)


@newer_scenario(PRODUCE)
def a_producer_without_transactions(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce_all({topic: {0: records(2)}}), version=PRODUCE_VERSION)
    got = t.do(M.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000))
    for sequence in (0, 0, 1, 3):
        data = records(1, producer_id=got.producer_id, producer_epoch=0, base_sequence=sequence)
        t.ask(produce_all({topic: {0: data}}), version=PRODUCE_VERSION)


# --- TxnOffsetCommit 5 -----------------------------------------------------------------------------------------------


@newer_scenario(COMMIT)
def a_commit_adds_the_partition_of_its_group(t: Talk) -> None:
    topic, txn, group = t.topic(), EpochTxn(t), t.name("g")
    for commit in (True, False):
        t.ask(txn.commit_offsets(group, topic, 5 if commit else 9), version=COMMIT_VERSION)
        t.ask(txn.commit_offsets(group, topic, 6 if commit else 10), version=COMMIT_VERSION)
        described_by_topic(t, txn)
        txn.ask_end(commit)
        fetched(t, group, topic)


def described_by_topic(t: Talk, txn: Txn) -> None:
    """Compare the described transaction without the group's partition, which depends on the group's name."""

    def nameless(answer: M.DescribeTransactionsResponse) -> None:
        for each in answer.transaction_states:
            for topic in each.topics:
                topic.partitions = [len(topic.partitions)]

    t.ask(M.DescribeTransactionsRequest(transactional_ids=[txn.id]), keep=nameless)


def fetched(t: Talk, group: str, topic: str) -> None:
    R = M.OffsetFetchRequest
    wanted = R.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    asked = R(group_id=group, topics=[wanted], require_stable=True)

    def is_stable() -> bool:
        return t.do(asked, 7).topics[0].partitions[0].error_code == 0

    t.until(is_stable, "stable offset")
    t.ask(asked, version=7)


@newer_scenario(COMMIT)
def commits_by_strangers(t: Talk) -> None:
    topic, txn, group = t.topic(), EpochTxn(t), t.name("g")
    for fields in (
        {"transactional_id": t.name("nowhere")},
        {"transactional_id": ""},
        {"producer_id": txn.producer_id + 1_000_000},
        {"producer_epoch": txn.epoch + 1},
        {"producer_epoch": txn.epoch - 1},
        {"group_id": ""},
    ):
        t.ask(txn.commit_offsets(group, topic, **fields), version=COMMIT_VERSION)
    t.ask(txn.commit_offsets(group, t.name("nowhere")), version=COMMIT_VERSION)
    t.ask(txn.commit_offsets(group, topic), version=COMMIT_VERSION)
    old = txn.epoch
    txn.ask_end()
    t.ask(txn.commit_offsets(group, topic, producer_epoch=old), version=COMMIT_VERSION)
    fetched(t, group, topic)


@newer_scenario(COMMIT)
def commits_of_both_kinds_of_clients(t: Talk) -> None:
    topic, txn, group = t.topic(), EpochTxn(t), t.name("g")
    t.ask(txn.commit_offsets(group, topic), version=4)
    t.ask(txn.commit_offsets(group, topic), version=COMMIT_VERSION)
    t.ask(txn.commit_offsets(group, topic), version=4)
    txn.ask_end()
    fetched(t, group, topic)


@newer_scenario(COMMIT, alone=True)
def commits_of_a_client_of_before_verification(t: Talk) -> None:
    """A commit of version 3 is refused with another code; it is taken once a newer client has added the partition.

    Kafka asks the coordinator for the transactions of several requests at once, and answers all of them with codes that
    the client of the first one knows. Beside this scenario others would now and then get INVALID_TXN_STATE instead of
    TRANSACTION_ABORTABLE, and this scenario the other way round.
    """
    topic, txn, group = t.topic(), EpochTxn(t), t.name("g")
    t.ask(txn.commit_offsets(group, topic), version=3)
    t.ask(txn.commit_offsets(group, topic), version=COMMIT_VERSION)
    t.ask(txn.commit_offsets(group, topic, 6), version=3)
    txn.ask_end()
    fetched(t, group, topic)


# --- what is stored --------------------------------------------------------------------------------------------------


@newer_scenario(ApiKey.DESCRIBE_TRANSACTIONS)
def what_is_stored(t: Talk) -> None:
    """Compare the records of a transactional id in `__transaction_state`, except times, after both kinds of ends."""
    topic, txn = t.topic(partitions=3), EpochTxn(t, begin=False)
    place = ("__transaction_state", java_string_hash(txn.id) % 3)
    begin = log_end(t, *place)
    txn.do_init()
    for is_commit in (True, False):
        txn.do_add({topic: [0]})
        txn.do_add({topic: [0]})
        txn.do_add({topic: [1, 2]})
        txn.do_end(is_commit)
    for is_commit in (True, False):
        txn.ask_send(topic)
        txn.ask_send(topic)
        txn.ask_send(topic, partition=1)
        txn.ask_end(is_commit)
    txn.ask_end(False)
    txn.do_init()
    txn.do_send(topic)
    txn.do_init()
    entries = [record for batch in written(t, *place, begin) for record in batch.records()]
    mine = [one for one in entries if one.key is not None and one.key.endswith(txn.id.encode())]
    t.must(len(mine) < 23, f"{len(mine)} records")
    for one in mine:
        assert one.value is not None
        version = int.from_bytes(one.value[:2])
        value = M.TransactionLogValue.decode(one.value[2:], version)
        for of_topic in value.transaction_partitions or ():
            of_topic.partition_ids = sorted(of_topic.partition_ids)
        t.note("record", [one.key.hex(), version, tree_of(value, version, t.names)])
