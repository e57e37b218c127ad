"""What a producer does on its thread: metadata, its producer id, and decisions that its engine cannot make.

Nothing here holds a reference to the `Producer`, so that it is collected when its user drops it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Coroutine
from typing import Any

from kbroker._core.client.producer.engine import ProduceEngine
from kbroker.client.config.option import Options
from kbroker.client.errors import BrokerError, ClientError, ConnectionFailed, TimedOut, raise_for, raise_for_topic
from kbroker.client.network.backoff import retry_backoff
from kbroker.client.network.cluster import Cluster
from kbroker.client.network.cluster_view import ClusterView, TopicView
from kbroker.client.network.network import Network
from kbroker.client.network.thread import ClientThread
from kbroker.client.producer.sender import Sender
from kbroker.client.producer.transactions import Transactions
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M

log = logging.getLogger("kbroker.client")


class Background:
    """The background of one producer. For its thread."""

    def __init__(self, thread: ClientThread, engine: ProduceEngine, options: Options, *, idempotent: bool):
        self.cluster = Cluster(Network(thread, options))
        self.transactions: Transactions | None = None
        self.broken: ClientError | None = None
        """Why the producer can never send again; None while it can."""
        block_ms: int = options["max.block.ms"]
        self.block_s = block_ms / 1000 if block_ms >= 0 else math.inf
        """How long a call may wait for the metadata of a topic, in seconds."""
        self._loop = thread.loop
        self._engine = engine
        self._accumulator = engine.accumulator
        self._options = options
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self.cluster.on_view.append(self._seen)
        if options["transactional.id"] is not None:
            self.transactions = Transactions(
                engine, self.cluster, options["transactional.id"], options["transaction.timeout.ms"]
            )
        self.sender = Sender(
            engine,
            idempotent=idempotent,
            retries=options["retries"],
            delivery_timeout_ms=options["delivery.timeout.ms"],
            backoff_s=options.seconds("retry.backoff.ms"),
            longest_backoff_s=options.seconds("retry.backoff.max.ms"),
            refresh=self._refresh,
            renew=self._renew,
            note_leader=self.cluster.note_leader,
            transactions=self.transactions,
        )
        thread.pump.add(engine)
        if idempotent and self.transactions is None:
            self._renew()

    async def await_topic(self, topic: str) -> None:
        """Wait until records can be sent to the topic.

        Raises BrokerError when the broker refused the topic up to max.block.ms, TimedOut when nobody answered for it.
        """
        create = self._options["allow.auto.create.topics"]

        async def attempt() -> None:
            await self.cluster.metadata([topic], allow_auto_creation=create)
            found = self.cluster.view.topics.get(topic)
            if found is None:
                raise_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, f"topic {topic!r}")
            elif not found.partitions:
                raise_for_topic(found.error_code or ErrorCode.LEADER_NOT_AVAILABLE, f"topic {topic!r}")

        try:
            await self.cluster.retried(attempt, timeout_s=self.block_s)
        except (ConnectionFailed, TimedOut) as error:
            if isinstance(error.__cause__, BrokerError):
                raise error.__cause__ from None
            raise TimedOut(f"metadata of topic {topic!r}: {error.message}", hint=error.hint) from None
        if topic not in self._accumulator.topics:
            self.cluster.add_topics([topic])
            self._set_topic(self.cluster.view.topics[topic])

    async def count_partitions(self, topic: str, timeout_s: float | None) -> int:
        """Return how many partitions the topic has now; 0 when no broker answers within `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.cluster.metadata([topic])
        except (ClientError, TimeoutError) as error:
            log.debug("topic %r: %s", topic, error)
            return 0
        found = self.cluster.view.topics.get(topic)
        if found is None or not found.partitions:
            return 0
        self._set_topic(found)
        return len(found.partitions)

    def _seen(self, view: ClusterView) -> None:
        for name in self._accumulator.topics:
            found = view.topics.get(name)
            if found is not None and found.partitions:
                self._set_topic(found)

    def _set_topic(self, topic: TopicView) -> None:
        # Partitions are numbered from 0 on: a wrong answer with the number 2,000,000,000 must not make so long a list.
        partitions = [topic.partitions.get(i) for i in range(len(topic.partitions))]
        self._accumulator.set_topic(
            topic.name,
            [-1 if each is None else each.leader_id for each in partitions],
            [-1 if each is None else each.leader_epoch for each in partitions],
        )

    def _refresh(self, topics: Collection[str]) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._spawn(self._refresh_until_led())

    async def _refresh_until_led(self) -> None:
        """Refresh metadata again and again while there are records for a partition without a leader."""
        backoff = retry_backoff(self._options)
        while True:
            try:
                await self.cluster.refresh()
            except ClientError:
                pass
            self._seen(self.cluster.view)
            await asyncio.sleep(backoff.next_s())
            leaderless, _ = self._engine.waiting()
            if not leaderless:
                return

    def _renew(self) -> None:
        self._spawn(self._initialize())

    async def _initialize(self) -> None:
        """Get a producer id, trying for as long as it takes: batches that wait for it expire by themselves."""
        backoff = retry_backoff(self._options)
        while True:
            try:
                answer = await self.cluster.call(
                    M.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
                )
                raise_for(answer.error_code, None, "a producer id")
                break
            except ClientError as error:
                if error.code == ErrorCode.UNSUPPORTED_VERSION:
                    self._do_without(error)
                    return
                await asyncio.sleep(backoff.next_s())
        self.sender.renewed(answer.producer_id, answer.producer_epoch)

    def _do_without(self, error: ClientError) -> None:
        """Go on without idempotence, because the broker is older than Kafka 0.11.

        If enable.idempotence is set, the producer breaks instead: every record fails.
        """
        if self._options["enable.idempotence"]:
            self.broken = ClientError(error.message, code=error.code, hint="leave enable.idempotence out, or upgrade")
            self._accumulator.shut()
            self._engine.fail_all(self.broken)
            return
        log.warning("%s: records are sent without idempotence, and may be there twice after a retry", error.message)
        self.sender.idempotent = False
        self._accumulator.set_idempotent(False)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
