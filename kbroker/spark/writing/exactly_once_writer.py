"""Writes a stream's rows to a topic exactly once, for readers of committed records (read_committed).

Other readers see the rows of failed attempts too.

An attempt of a task writes in a transaction of its own and leaves it prepared. The driver decides, durably, which
transactions are the batch, and then commits them. A batch that runs again finds what was decided: it commits that, and
writes anew only what was lost because its transaction was open for longer than brokers allow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from kbroker.client import AdminClient, ClientError, ErrorCode, Producer
from kbroker.client.config.network import NETWORK
from kbroker.spark.errors import SinkFailed, WrongOption, without_traceback
from kbroker.spark.options.format_options import SparkOptions
from kbroker.spark.options.kafka_options import client_options
from kbroker.spark.workers.task_producers import check_producer_options, producer_options
from kbroker.spark.writing.at_least_once_writers import topic_of
from kbroker.spark.writing.row_columns import RowColumns
from kbroker.spark.writing.sink_ledger import SinkLedger
from kbroker.spark.writing.sink_state import Brought, Winner, Winners, attempt_id, digest, driver_id, settle

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

log = logging.getLogger("kbroker.spark")

TIMEOUT_MS = 900_000
"""How long a batch may take, from its first row to the driver's commit: the longest that brokers allow by default."""
DRIVER_TIMEOUT_MS = 10_000
"""How long writing a decision may take. Nobody reads decisions meanwhile, even if the driver that writes is gone."""
CLOSE_S = 5.0
"""How long a failed attempt tries to abort its transaction. If it cannot, brokers do when the transaction times out."""
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  #: properties that Spark gives its tasks


class Attempt(NamedTuple):
    """The attempt of a task that runs in this process."""

    query_id: str
    batch_id: int
    task: int
    attempt: int

    @classmethod
    def here(cls) -> Attempt:
        context = TaskContext.get()
        if context is None or not (query_id := context.getLocalProperty(QUERY_ID)):
            raise SinkFailed("exactlyOnce=true is for tasks of a streaming query, and this is none")
        batch_id = int(context.getLocalProperty(BATCH_ID) or 0)
        return cls(query_id, batch_id, context.partitionId(), context.attemptNumber())


@dataclass
class SinkMessage(WriterCommitMessage):
    """The message in which an attempt of a task tells the driver what it has done."""

    query_id: str
    task: int
    brought: Brought


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """The writer of one query to one topic."""

    def __init__(self, options: SparkOptions, schema: StructType):
        topic = topic_of(options)
        if topic is None:
            raise WrongOption("option exactlyOnce=true needs option topic: how far it has come is kept with that topic")
        self._topic = topic
        self._rows = RowColumns(schema, topic)
        self._client = options.client
        check_producer_options(options.client)

    # --- in a task ------------------------------------------------------------------------------------------

    @without_traceback
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> SinkMessage:
        here = Attempt.here()
        rows = (batch for batch in iterator if len(batch))
        first = next(rows, None)
        brought = Brought(None)
        if first is not None:
            brought = self._brought(here, chain([first], rows))
        return SinkMessage(here.query_id, here.task, brought)

    def _brought(self, here: Attempt, rows: Iterator[pyarrow.RecordBatch]) -> Brought:
        with self._admin() as admin:
            ledger = SinkLedger(admin, here.query_id, self._topic)
            decided = ledger.decision(here.batch_id)
            if decided is not None and not self._is_lost(ledger, here.batch_id, decided):
                for _ in rows:  # so that the worker can be used again
                    pass
                return Brought(None, skipped=True)
            name = attempt_id(here.query_id, here.task, here.attempt)
            with self._transactional(admin, name, self._timeout_ms) as producer:
                producer.begin_transaction()
                self._rows.send(producer, rows)
                ledger.add_batch(producer, here.batch_id, here.task)
                found = producer.prepare_transaction()
        instead_of = None if decided is None else digest(decided)
        return Brought(Winner(here.attempt, found.producer_id, found.epoch, found.version), instead_of=instead_of)

    def _is_lost(self, ledger: SinkLedger, batch_id: int, decided: Winners) -> bool:
        """Commit what was decided. Return False if all is committed, True if all is lost and has to be written anew.

        Raises SinkFailed when only some of it is lost.
        """
        lost = ledger.finish(batch_id, decided)
        if lost and lost != _tasks(decided):
            raise _by_halves(batch_id, lost, decided)
        return bool(lost)

    # --- in the driver --------------------------------------------------------------------------------------

    @without_traceback
    def commit(self, messages: list[SinkMessage], batchId: int) -> None:  # type: ignore[override]
        found = sorted(messages, key=lambda each: each.task)
        brought = [each.brought for each in found]
        if all(each == Brought(None) for each in brought):
            return
        query_id = found[0].query_id
        with self._admin() as admin:
            ledger = SinkLedger(admin, query_id, self._topic)
            with self._transactional(admin, driver_id(query_id), min(self._timeout_ms, DRIVER_TIMEOUT_MS)) as producer:
                decided = ledger.decision(batchId)
                if decided is None and batchId > 0 and not ledger.knows_any():
                    log.warning(
                        "batch %d is the first of query %s in topic %s that is known: those before had no rows, or "
                        "another sink wrote them, or what was kept of them has expired (offsets.retention.minutes of "
                        "the brokers); but for the first case rows of this batch may be there already, and are twice "
                        "then",
                        batchId,
                        query_id,
                        self._topic,
                    )
                settled = settle(decided, brought)
                if settled.is_news:
                    ledger.check_open(batchId, settled.winners)
                    ledger.decide(producer, batchId, settled.winners)
            lost = ledger.finish(batchId, settled.winners)
            ledger.abort(settled.losers)
            ledger.abort_attempts()
        if lost and lost != _tasks(settled.winners):
            raise _by_halves(batchId, lost, settled.winners)
        if lost:
            raise SinkFailed(
                f"batch {batchId}: its transactions were aborted before they could be committed; it is written anew "
                "when the query starts again"
            )

    def abort(self, messages: list[SinkMessage | None], batchId: int) -> None:  # type: ignore[override]
        found = {each.task: each for each in messages if each is not None and each.brought.winner is not None}
        if not found:
            return
        with self._admin() as admin:
            ledger = SinkLedger(admin, next(iter(found.values())).query_id, self._topic)
            try:
                decided = set(ledger.decision(batchId) or ())
            except SinkFailed:
                decided = set()  # a later batch has been decided: nobody needs these transactions
            except ClientError as error:
                log.warning(
                    "batch %d: nobody knows whether it was decided; it is seen when it runs again: %s", batchId, error
                )
                return
            mine = {task: each.brought.winner for task, each in found.items()}
            ledger.abort({task: each for task, each in mine.items() if each is not None and each not in decided})

    # --- clients --------------------------------------------------------------------------------------------

    @property
    def _timeout_ms(self) -> int:
        """The timeout of an attempt's transaction."""
        return int(self._client.get("transaction.timeout.ms", TIMEOUT_MS))

    def _admin(self) -> AdminClient:
        return AdminClient({"client.id": "kbroker-spark", **client_options(self._client, NETWORK)})

    @contextmanager
    def _transactional(self, admin: AdminClient, transactional_id: str, timeout_ms: int) -> Iterator[Producer]:
        """Yield a producer that has fenced whoever had the id before, and close it.

        A transaction that is open then is aborted; one that is prepared stays prepared.
        """
        options: dict[str, Any] = {
            **producer_options(self._client),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
        }
        producer = Producer(options)
        try:
            try:
                producer.init_transactions()
            except ClientError as error:
                if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT or "transaction.timeout.ms" in self._client:
                    raise
                producer.close(timeout=0)
                producer = Producer(options | {"transaction.timeout.ms": _longest_transaction_ms(admin)})
                producer.init_transactions()
            yield producer
        except BaseException:
            producer.close(timeout=CLOSE_S)
            raise
        producer.close()


def _tasks(winners: Winners) -> set[int]:
    return {task for task, each in enumerate(winners) if each is not None}


def _longest_transaction_ms(admin: AdminClient) -> int:
    """Return the longest transaction timeout that the brokers allow."""
    found = admin.describe_broker_config(admin.describe_cluster().brokers[0].node_id)["transaction.max.timeout.ms"]
    return int(found.value or TIMEOUT_MS)


def _by_halves(batch_id: int, lost: set[int], winners: Winners) -> SinkFailed:
    return SinkFailed(
        f"batch {batch_id}: the transactions of {len(lost)} of {len(_tasks(winners))} tasks were aborted when others "
        "were committed (was the driver away for longer than kafka.transaction.timeout.ms?), and rows may be in other "
        "tasks now: to write that batch again, so that none is missing and some are there twice, start the query once "
        "with exactlyOnce=false"
    )
