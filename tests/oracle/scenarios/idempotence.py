"""InitProducerId, and Produce with producer ids and sequences (KIP-98): duplicates, gaps, epochs."""

from __future__ import annotations

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.requests import produce, records

INIT, PRODUCE = ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE
SEQUENCE_MAX = 2**31 - 1


def producer_id(t: Talk) -> int:
    """Return a new producer id."""
    answer = t.do(M.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000))
    t.must(answer.error_code, "a producer id")
    made: int = answer.producer_id
    return made


def send(t: Talk, topic: str, producer: int, sequence: int, epoch: int = 0, count: int = 1) -> None:
    t.ask(produce(topic, records(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)))


@scenario(INIT)
def an_idempotent_producer(t: Talk) -> None:
    for _ in range(2):
        t.ask(M.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000))
    for timeout_ms in (0, -1, 2**31 - 1):
        t.ask(M.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=timeout_ms))


@scenario(INIT)
def an_empty_transactional_id(t: Talk) -> None:
    t.ask(M.InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60000))


@scenario(INIT, since=3)
def an_epoch_of_one_s_own(t: Talk) -> None:
    """KIP-360: a producer that knows its id asks for the next epoch. Without a transactional id it gets a new id."""
    got = t.ask(M.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000))
    known = {"transactional_id": None, "transaction_timeout_ms": 60000}
    t.ask(M.InitProducerIdRequest(producer_id=got.producer_id, producer_epoch=got.producer_epoch, **known))
    t.ask(M.InitProducerIdRequest(producer_id=got.producer_id, producer_epoch=-1, **known))
    t.ask(M.InitProducerIdRequest(producer_id=-1, producer_epoch=0, **known))
    t.ask(M.InitProducerIdRequest(producer_id=123456789, producer_epoch=5, **known))


@scenario(PRODUCE)
def sequences_in_order(t: Talk) -> None:
    topic, producer = t.topic(), producer_id(t)
    for sequence, count in ((0, 3), (3, 1), (4, 2), (6, 1)):
        send(t, topic, producer, sequence, count=count)


@scenario(PRODUCE)
def duplicates_of_the_last_five(t: Talk) -> None:
    """The last five batches are remembered: duplicates of them get the old offsets; older ones are refused."""
    topic, producer = t.topic(), producer_id(t)
    for sequence in range(0, 12, 2):
        send(t, topic, producer, sequence, count=2)
    for sequence in range(10, -2, -2):
        send(t, topic, producer, sequence, count=2)
    for sequence, count in ((10, 1), (11, 1), (9, 2), (8, 4)):
        send(t, topic, producer, sequence, count=count)
    send(t, topic, producer, 12)


@scenario(PRODUCE)
def a_gap(t: Talk) -> None:
    topic, producer = t.topic(), producer_id(t)
    for sequence in (0, 2, 1, 5, 2):
        send(t, topic, producer, sequence)


@scenario(PRODUCE)
def a_producer_nobody_has_seen(t: Talk) -> None:
    """The first sequence of an unknown producer may be any: earlier batches may have been deleted."""
    topic, producer = t.topic(), producer_id(t)
    send(t, topic, producer, 7)
    send(t, topic, producer, 8)
    send(t, topic, producer, 0)
    other = t.topic("epoch")
    send(t, other, producer_id(t), 5, epoch=3)
    send(t, other, 2**62, 0)


@scenario(PRODUCE)
def a_new_epoch(t: Talk) -> None:
    topic, producer = t.topic(), producer_id(t)
    send(t, topic, producer, 0)
    send(t, topic, producer, 1, epoch=1)
    send(t, topic, producer, 0, epoch=1)
    send(t, topic, producer, 1, epoch=1)
    send(t, topic, producer, 0, epoch=5)


@scenario(PRODUCE)
def an_old_epoch(t: Talk) -> None:
    topic, producer = t.topic(), producer_id(t)
    send(t, topic, producer, 0, epoch=2)
    for epoch in (1, 0, -1, -2):
        send(t, topic, producer, 1, epoch=epoch)
    send(t, topic, producer, 0, epoch=1)
    send(t, topic, producer, 1, epoch=2)


@scenario(PRODUCE)
def sequences_wrap(t: Talk) -> None:
    topic, producer = t.topic(), producer_id(t)
    send(t, topic, producer, SEQUENCE_MAX - 1)
    send(t, topic, producer, SEQUENCE_MAX)
    send(t, topic, producer, 0)
    send(t, topic, producer, SEQUENCE_MAX)
    across = t.topic("across")
    send(t, across, producer, SEQUENCE_MAX - 1, count=5)
    send(t, across, producer, 3)
    send(t, across, producer, SEQUENCE_MAX - 1, count=5)
    send(t, across, producer, 4)


@scenario(PRODUCE)
def a_duplicate_without_waiting_for_all(t: Talk) -> None:
    topic, producer = t.topic(), producer_id(t)
    batch = records(2, producer_id=producer, producer_epoch=0, base_sequence=0)
    t.ask(produce(topic, batch, acks=1))
    t.ask(produce(topic, batch, acks=1))
    t.ask(produce(topic, batch))


@scenario(PRODUCE)
def a_duplicate_with_log_append_time(t: Talk) -> None:
    topic, producer = t.topic(message_timestamp_type="LogAppendTime"), producer_id(t)
    for _ in range(2):
        send(t, topic, producer, 0, count=2)


@scenario(PRODUCE)
def sequences_belong_to_partitions(t: Talk) -> None:
    topic, producer = t.topic(partitions=2), producer_id(t)
    for partition in (0, 1, 0, 1):
        t.ask(produce(topic, records(producer_id=producer, producer_epoch=0, base_sequence=0), partition=partition))


@scenario(PRODUCE)
def a_refused_batch_does_not_move_the_sequence(t: Talk) -> None:
    topic, producer = t.topic(max_message_bytes=500), producer_id(t)
    send(t, topic, producer, 0)
    t.ask(produce(topic, records(1, 900, producer_id=producer, producer_epoch=0, base_sequence=1)))
    send(t, topic, producer, 1)


@scenario(PRODUCE)
def records_that_are_gone_take_no_producer_with_them(t: Talk) -> None:
    """Deleting records keeps the producer's sequences while its segment is there."""
    topic, producer = t.topic(), producer_id(t)
    send(t, topic, producer, 0, count=3)
    one = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)
    wanted = M.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[one])
    t.do(M.DeleteRecordsRequest(topics=[wanted], timeout_ms=30000))
    send(t, topic, producer, 0, count=3)
    send(t, topic, producer, 5)
    send(t, topic, producer, 3)
