"""Coordinating transactions: InitProducerId with transactional ids, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn."""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.requests import produce, records

INIT, ADD, ADD_OFFSETS, END = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
)
BATCHED_SINCE = 4  # AddPartitionsToTxn of several transactions, for brokers
SINGLE = 3
TIMEOUT_MS = 60_000
WAIT_FOR = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class Txn:
    """A transactional id with a producer. Methods `do_...` ask without comparing; the others build requests."""

    def __init__(self, t: Talk, word: str = "txn", timeout_ms: int = TIMEOUT_MS, begin: bool = True):
        self.t = t
        self.id = t.name(word)
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch, self.sequences = -1, -1, dict[tuple[str, int], int]()
        if begin:
            self.do_init()

    # --- requests
    def init(self, **fields: object) -> M.InitProducerIdRequest:
        known = {"transactional_id": self.id, "transaction_timeout_ms": self.timeout_ms}
        return M.InitProducerIdRequest(**{**known, **fields})  # type: ignore[arg-type]

    def add(self, topics: dict[str, list[int]], **fields: Any) -> M.AddPartitionsToTxnRequest:
        known: dict[str, Any] = {"transactional_id": self.id, "producer_id": self.producer_id}
        known |= {"producer_epoch": self.epoch, **fields}
        R = M.AddPartitionsToTxnRequest
        wanted = [R.AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()]
        if self.version_of(ADD) >= BATCHED_SINCE:
            return R(transactions=[R.AddPartitionsToTxnTransaction(topics=wanted, **known)])
        return R(v3_and_below_topics=wanted, **{f"v3_and_below_{name}": value for name, value in known.items()})

    def add_offsets(self, group: str, **fields: object) -> M.AddOffsetsToTxnRequest:
        return M.AddOffsetsToTxnRequest(**{**self.known(), "group_id": group, **fields})  # type: ignore[arg-type]

    def end(self, commit: bool, **fields: object) -> M.EndTxnRequest:
        return M.EndTxnRequest(**{**self.known(), "committed": commit, **fields})  # type: ignore[arg-type]

    def batch(self, topic: str, count: int = 1, partition: int = 0, **fields: int) -> M.ProduceRequest:
        """Return a request with the next records of this producer."""
        sequence = self.sequences.get((topic, partition), 0)
        known = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "base_sequence": sequence, **fields}
        data = records(count, is_transactional=True, **known)
        return produce(topic, data, partition=partition, transactional_id=self.id)

    def known(self) -> dict[str, object]:
        return {"transactional_id": self.id, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def version_of(self, api: ApiKey) -> int:
        return self.t.version if self.t.scenario.api is api else SINGLE

    # --- what a scenario needs
    def do(self, message: Any, version: int | None = None) -> Any:
        """Ask, without comparing, until nothing of the last transaction is in the way."""
        answers: list[Any] = []

        def is_answered() -> bool:
            answers.append(self.t.do(message, version))
            return answers[-1].error_code not in WAIT_FOR

        self.t.until(is_answered, "answer")
        self.t.must(answers[-1].error_code, type(message).__name__)
        return answers[-1]

    def do_init(self) -> None:
        """Get a new epoch."""
        got = self.do(self.init())
        self.producer_id, self.epoch, self.sequences = got.producer_id, got.producer_epoch, {}
        self.t.names.of("producer id", got.producer_id)

    def do_add(self, topics: dict[str, list[int]]) -> None:
        R = M.AddPartitionsToTxnRequest
        wanted = [R.AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()]
        asked = R(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=wanted,
        )

        def is_added() -> bool:
            found = self.t.do(asked, SINGLE).results_by_topic_v3_and_below[0].results_by_partition[0]
            return found.partition_error_code == 0

        self.t.until(is_added, "added partition")

    def do_send(self, topic: str, count: int = 1, partition: int = 0, add: bool = True) -> int:
        """Send records in the transaction; return their base offset."""
        if add:
            self.do_add({topic: [partition]})
        (answer,) = self.t.do(self.batch(topic, count, partition)).responses[0].partition_responses
        self.t.must(answer.error_code, f"producing to {topic}")
        self.sequences[topic, partition] = self.sequences.get((topic, partition), 0) + count
        offset: int = answer.base_offset
        return offset

    def do_add_offsets(self, group: str) -> None:
        self.do(self.add_offsets(group))

    def do_end(self, commit: bool = True) -> None:
        """End the transaction, and wait until all markers are written."""
        self.do(self.end(commit))
        self.await_end()

    def await_end(self) -> None:
        """Wait for the end: EndTxn is answered before the markers are written."""
        asked = M.DescribeTransactionsRequest(transactional_ids=[self.id])
        self.t.until(lambda: self.t.do(asked).transaction_states[0].transaction_state.startswith("Complete"), "end")


# --- InitProducerId --------------------------------------------------------------------------------------------------


@scenario(INIT)
def a_transactional_id(t: Talk) -> None:
    """A transactional id gets the same producer id each time, with a new epoch."""
    txn = Txn(t, begin=False)
    for _ in range(3):
        t.ask(txn.init())
    t.ask(Txn(t, "other", begin=False).init())


@scenario(INIT)
def timeouts(t: Talk) -> None:
    txn = Txn(t, begin=False)
    for timeout_ms in (0, -1, -(2**31), 2**31 - 1, 900_001):
        t.ask(txn.init(transaction_timeout_ms=timeout_ms))
    for timeout_ms in (900_000, 1):
        t.ask(txn.init(transaction_timeout_ms=timeout_ms))


@scenario(INIT, since=3)
def a_producer_that_knows_its_epoch(t: Talk) -> None:
    """KIP-360: a producer that sends its epoch gets a new one; the same answer if it asks again."""
    txn = Txn(t)
    known = {"producer_id": txn.producer_id}
    t.ask(txn.init(producer_epoch=txn.epoch, **known))
    t.ask(txn.init(producer_epoch=txn.epoch, **known))
    t.ask(txn.init(producer_epoch=txn.epoch + 1, **known))
    t.ask(txn.init(producer_epoch=txn.epoch, **known))
    t.ask(txn.init(producer_epoch=txn.epoch + 9, **known))
    t.ask(txn.init(producer_id=txn.producer_id + 1_000_000, producer_epoch=txn.epoch + 2))
    t.ask(txn.init(producer_epoch=-1, **known))
    t.ask(txn.init(producer_id=-1, producer_epoch=3))
    t.ask(txn.init())


@scenario(INIT, since=3)
def a_producer_nobody_knows_that_knows_its_epoch(t: Talk) -> None:
    t.ask(Txn(t, begin=False).init(producer_id=1_000_000_007, producer_epoch=5))


@scenario(INIT)
def in_an_open_transaction(t: Talk) -> None:
    """The open transaction is aborted first; the producer has to ask again."""
    topic, txn = t.topic(), Txn(t)
    txn.do_send(topic)
    t.ask(txn.init())
    txn.do_init()
    t.note("epoch", txn.epoch)
    fenced = Txn(t, begin=False)
    fenced.producer_id, fenced.epoch = txn.producer_id, txn.epoch - 1
    t.ask(fenced.end(True), version=3)


@scenario(INIT)
def after_a_transaction(t: Talk) -> None:
    topic, txn = t.topic(), Txn(t)
    for commit in (True, False):
        txn.do_send(topic)
        txn.do_end(commit)
        txn.do_init()
        t.note("epoch", txn.epoch)
    t.ask(txn.init())


# --- AddPartitionsToTxn ----------------------------------------------------------------------------------------------


@scenario(ADD)
def partitions(t: Talk) -> None:
    topic, other, txn = t.topic(partitions=3), t.topic("other"), Txn(t)
    t.ask(txn.add({topic: [0, 2]}))
    t.ask(txn.add({topic: [0], other: [0]}))
    t.ask(txn.add({topic: [1, 1]}))
    txn.do_end()
    t.ask(txn.add({topic: [0]}))


@scenario(ADD)
def nothing_to_add(t: Talk) -> None:
    topic, txn = t.topic(), Txn(t)
    t.ask(txn.add({}))
    t.ask(txn.add({topic: []}))
    described(t, txn)


@scenario(ADD)
def topics_that_are_not_there(t: Talk) -> None:
    """No topic is added if one of them does not exist."""
    topic, txn = t.topic(), Txn(t)
    t.ask(txn.add({topic: [0], t.name("nowhere"): [0, 1]}))
    t.ask(txn.add({topic: [0, 1, -1]}))
    t.ask(txn.add({"": [0], "a b": [0]}))
    t.ask(txn.add({"__consumer_offsets": [0]}))
    described(t, txn)


@scenario(ADD)
def partitions_by_strangers(t: Talk) -> None:
    topic, txn = t.topic(), Txn(t)
    one = {topic: [0]}
    t.ask(txn.add(one, transactional_id=t.name("nowhere")))
    t.ask(txn.add(one, transactional_id=""))
    t.ask(txn.add(one, producer_id=txn.producer_id + 1_000_000))
    t.ask(txn.add(one, producer_id=-1))
    for epoch in (-1, txn.epoch + 1, 32767):
        t.ask(txn.add(one, producer_epoch=epoch))
    old = txn.epoch
    txn.do_init()
    t.ask(txn.add(one, producer_epoch=old))
    t.ask(txn.add(one))


@scenario(ADD, since=BATCHED_SINCE)
def of_several_transactions(t: Talk) -> None:
    topic, first, second = t.topic(partitions=2), Txn(t, "a"), Txn(t, "b")
    both = [*first.add({topic: [0]}).transactions, *second.add({topic: [1]}, producer_epoch=77).transactions]
    t.ask(M.AddPartitionsToTxnRequest(transactions=both))
    described(t, first)
    described(t, second)
    t.still_waits(t.send(M.AddPartitionsToTxnRequest(transactions=[])))


@scenario(ADD, since=BATCHED_SINCE)
def verification_only(t: Talk) -> None:
    """KIP-890: the request that brokers send before they take the first batch."""
    topic, txn = t.topic(partitions=2), Txn(t)
    t.ask(txn.add({topic: [0]}, verify_only=True))
    txn.do_add({topic: [0]})
    t.ask(txn.add({topic: [0]}, verify_only=True))
    t.ask(txn.add({topic: [0, 1], t.name("nowhere"): [0]}, verify_only=True))
    t.ask(txn.add({topic: [0]}, verify_only=True, producer_epoch=txn.epoch + 1))
    t.ask(txn.add({topic: [0]}, verify_only=True, producer_id=txn.producer_id + 1_000_000))
    t.ask(txn.add({topic: [0]}, verify_only=True, transactional_id=t.name("nowhere")))
    txn.do_end()
    t.ask(txn.add({topic: [0]}, verify_only=True))


# --- AddOffsetsToTxn -------------------------------------------------------------------------------------------------


@scenario(ADD_OFFSETS)
def offsets_of_a_group(t: Talk) -> None:
    txn = Txn(t)
    t.ask(txn.add_offsets(t.name("g")))
    t.ask(txn.add_offsets(t.name("g")))
    t.ask(txn.add_offsets(t.name("h")))
    described(t, txn)


@scenario(ADD_OFFSETS)
def offsets_of_a_group_without_a_name(t: Talk) -> None:
    txn = Txn(t)
    t.ask(txn.add_offsets(""))


@scenario(ADD_OFFSETS)
def offsets_by_strangers(t: Talk) -> None:
    txn, group = Txn(t), t.name("g")
    t.ask(txn.add_offsets(group, transactional_id=t.name("nowhere")))
    t.ask(txn.add_offsets(group, transactional_id=""))
    t.ask(txn.add_offsets(group, producer_id=txn.producer_id + 1_000_000))
    for epoch in (-1, txn.epoch + 1):
        t.ask(txn.add_offsets(group, producer_epoch=epoch))
    old = txn.epoch
    txn.do_init()
    t.ask(txn.add_offsets(group, producer_epoch=old))


# --- EndTxn ----------------------------------------------------------------------------------------------------------


@scenario(END)
def a_commit_and_an_abort(t: Talk) -> None:
    topic, txn = t.topic(), Txn(t)
    for commit in (True, False):
        txn.do_send(topic)
        t.ask(txn.end(commit))
        txn.await_end()
        described(t, txn)


@scenario(END)
def without_a_transaction(t: Talk) -> None:
    txn = Txn(t)
    t.ask(txn.end(True))
    t.ask(txn.end(False))
    described(t, txn)


@scenario(END)
def an_end_twice(t: Talk) -> None:
    """The same end again is a retry; the other end is an error."""
    topic, txn = t.topic(), Txn(t)
    for commit in (True, False):
        txn.do_send(topic)
        txn.do_end(commit)
        t.ask(txn.end(commit))
        t.ask(txn.end(not commit))
        t.ask(txn.end(commit))


@scenario(END)
def a_transaction_with_partitions_and_no_records(t: Talk) -> None:
    topic, txn = t.topic(partitions=2), Txn(t)
    txn.do_add({topic: [0, 1]})
    t.ask(txn.end(True))
    txn.await_end()
    t.ask(txn.end(True))


@scenario(END)
def an_end_by_strangers(t: Talk) -> None:
    topic, txn = t.topic(), Txn(t)
    txn.do_send(topic)
    t.ask(txn.end(True, transactional_id=t.name("nowhere")))
    t.ask(txn.end(True, transactional_id=""))
    t.ask(txn.end(True, producer_id=txn.producer_id + 1_000_000))
    for epoch in (-1, txn.epoch + 1, 32767):
        t.ask(txn.end(True, producer_epoch=epoch))
    old = txn.epoch
    txn.do_init()
    t.ask(txn.end(False, producer_epoch=old))
    t.ask(txn.end(True, producer_epoch=old))
    described(t, txn)


@scenario(END)
def a_transaction_that_times_out(t: Talk) -> None:
    """A transaction that times out is aborted, and its producer is fenced."""
    topic, txn = t.topic(), Txn(t, timeout_ms=500)
    txn.do_send(topic)
    txn.await_end()
    t.ask(txn.end(True))
    t.ask(txn.end(False))
    t.ask(txn.batch(topic))
    txn.timeout_ms = TIMEOUT_MS
    txn.do_init()
    t.note("epoch", txn.epoch)
    txn.do_send(topic)
    t.ask(txn.end(True))


@scenario(END, alone=True)
def a_transaction_in_a_topic_that_is_deleted(t: Talk) -> None:
    """A deleted topic needs no marker."""
    topic, other, txn = t.topic(), t.topic("other"), Txn(t)
    txn.do_send(topic)
    txn.do_send(other)
    t.do(M.DeleteTopicsRequest(topic_names=[topic], timeout_ms=30000), version=5)
    t.ask(txn.end(True))
    txn.await_end()
    txn.do_send(other)
    txn.do_end()


# --- somebody else's producer id -------------------------------------------------------------------------------------


def two_producers(t: Talk) -> tuple[str, Txn, Txn, dict[str, Any]]:
    """Return a topic, a producer, another one with an open transaction there, and the fields that name the latter."""
    topic, mine, other = t.topic(partitions=2), Txn(t), Txn(t, "other")
    other.do_send(topic)
    return topic, mine, other, {"producer_id": other.producer_id, "producer_epoch": other.epoch}


@scenario(INIT, since=3)
def as_another_producer(t: Talk) -> None:
    _, mine, other, as_other = two_producers(t)
    t.ask(mine.init(**as_other))
    described(t, mine, other)


@scenario(ADD)
def partitions_of_another_producer(t: Talk) -> None:
    topic, mine, other, as_other = two_producers(t)
    for partition in (0, 1):
        t.ask(mine.add({topic: [partition]}, **as_other))
    described(t, mine, other)


@scenario(ADD_OFFSETS)
def offsets_of_another_producer(t: Talk) -> None:
    _, mine, other, as_other = two_producers(t)
    t.ask(mine.add_offsets(t.name("g"), **as_other))
    described(t, mine, other)


@scenario(END)
def the_end_of_another_producer(t: Talk) -> None:
    topic, mine, other, as_other = two_producers(t)
    t.ask(mine.end(True, **as_other))
    mine.do_send(topic)
    t.ask(mine.end(False, **as_other))
    described(t, mine, other)


def described(t: Talk, *transactions: Txn) -> Any:
    """Compare what the coordinator knows about the transaction."""

    def in_order(answer: M.DescribeTransactionsResponse) -> None:
        for each in answer.transaction_states:
            for topic in each.topics:
                topic.partitions = sorted(topic.partitions)

    return t.ask(M.DescribeTransactionsRequest(transactional_ids=[txn.id for txn in transactions]), keep=in_order)
